//! Which operations are under way, so that the client can tell when what it began before some
//! moment is over.
//!
//! What one look decides costs two plain stores by its thread, to a word of its own
//! ([`crate::stats::Shard::look`]); that the other side sees them in time is the business of
//! [`barrier`], which is rare. All else holds a token.

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use rustix::thread::{MembarrierCommand, membarrier};

use crate::stats::{ClientStats, Shard};

/// Held by whoever is in the middle of an operation that READs.
#[derive(Debug, Default)]
pub(crate) struct Begun;

/// The operations of one client.
#[derive(Default)]
pub(crate) struct Operations {
    current: ArcSwap<Begun>,
}

impl Operations {
    /// An operation begins; it is over when what is returned is dropped. Before it looks at what
    /// may be READ.
    pub(crate) fn begin(&self) -> Arc<Begun> {
        self.current.load_full()
    }

    /// What is under way at this moment.
    pub(crate) fn under_way(&self, stats: &ClientStats) -> UnderWay {
        let begun = Arc::downgrade(&self.current.swap(Arc::default()));
        let fenced = barrier();
        let looks = stats.looks();
        UnderWay { begun, looks, fenced }
    }
}

/// What was under way at some moment and may not be over.
pub(crate) struct UnderWay {
    begun: Weak<Begun>,
    /// Threads in the middle of a look, and which of their looks it was.
    looks: Vec<(Arc<Shard>, u64)>,
    /// Whether other threads' stores were seen for certain.
    pub(crate) fenced: bool,
}

impl UnderWay {
    /// Whether all of it is over.
    pub(crate) fn is_over(&mut self) -> bool {
        self.looks.retain(|(shard, look)| shard.is_in_look(*look));
        self.looks.is_empty() && self.begun.strong_count() == 0
    }
}

/// Every thread of this process has, at some moment of this call, stored what it did before and
/// loaded nothing that comes after: so a thread either sees what the caller did before, or the
/// caller sees that the thread is in the middle of something. `false`: the system does not offer
/// this, and the caller has to give processors time (a store is seen within a microsecond).
fn barrier() -> bool {
    // Registering again does nothing.
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
        && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_began_before_is_waited_for_and_what_begins_later_is_not() {
        let (operations, stats) = (Operations::default(), ClientStats::default());
        let table = stats.table();
        let before = operations.begin();
        let look = table.shard().look();
        let mut under_way = operations.under_way(&stats);
        let _later = operations.begin();
        assert!(!under_way.is_over());
        drop(before);
        assert!(!under_way.is_over(), "the look is not over");
        drop(look);
        let _again = table.shard().look();
        assert!(under_way.is_over(), "the look under way is another one");
        assert!(operations.under_way(&stats).looks.len() == 1);
    }
}
