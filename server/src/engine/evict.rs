//! What goes when memory is full and cleaning alone gives no room: of tables that may lose
//! entries, the oldest segment is emptied, and each live entry in it is asked for here.

use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::entry::EntryHeader;

use super::table::Table;

/// Decides what stays. The cleaner asks, with the index segment of the key locked: answers must
/// come at once.
pub(super) trait Evict: Send + Sync {
    /// Whether a live entry of the oldest segment is kept (copied) or dropped.
    fn keeps(&self, table: &Table, hash: KeyHash, header: &EntryHeader) -> bool;
}

/// First in, first out: keeps nothing.
pub(super) struct KeepNothing;

impl Evict for KeepNothing {
    fn keeps(&self, _table: &Table, _hash: KeyHash, _header: &EntryHeader) -> bool {
        false
    }
}
