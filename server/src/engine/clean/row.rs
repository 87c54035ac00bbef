//! Room in a row: free blocks may be enough and yet lie apart. Then the cheapest stretch of a
//! region is emptied.

use super::{Walk, Work};
use crate::engine::Shared;
use crate::engine::room::Wanted;

/// Empties a stretch for so many bytes in a row, which must be free in all. `false`: there is
/// none that can be.
pub(super) fn make(shared: &Shared, work: &mut Work, wanted: Wanted) -> bool {
    if !shared.pool.has_enough(wanted) {
        return false;
    }
    // Long values move only if there is no other way.
    let stretch =
        [false, true].into_iter().find_map(|runs| shared.pool.cheapest_stretch(wanted, runs));
    let Some(stretch) = stretch else { return false };
    // Neither copies nor others take what becomes free in it meanwhile.
    let _held = shared.pool.hold(stretch.blocks.clone());
    for segment in stretch.segments {
        if let Some(walk) = Walk::pin(shared, segment, None, |_| true) {
            work.empty(shared, walk);
        }
    }
    shared.pool.is_free(stretch.blocks)
}
