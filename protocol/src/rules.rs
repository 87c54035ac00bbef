//! The rules of design.md 12 by name. In a test build with the feature `weaken`, one of them can
//! be switched off on the current thread, to show that the checks notice; otherwise
//! [`holds`] is the constant `true` and costs nothing.

/// A rule whose absence breaks linearizability.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "the names are the model's; design.md explains them")]
pub enum Rule {
    Pending,
    InsertPointsFirst,
    MarkBeforePublish,
    CleanMarks,
    DeleteMarks,
    CacheNeverProvesMiss,
    MissRechecksVersion,
    Checksum,
    DeadLooksAgain,
    /// Large values: the state word is read again, after the value.
    LargeReadsStateAgain,
    /// Large values: the append number makes a state word unique.
    LargeUnique,
    /// Memory whose bytes do not prove themselves is used again only when all sessions have
    /// acknowledged its epoch, or have ended.
    RetiredWaits,
    /// A session acknowledges an epoch only when what it began before is over.
    AcknowledgeWaits,
    /// Nothing that begins after a region was said to be retired READs in it.
    RetiredIsForgotten,
    /// A miss counts only if the session had not ended after the last READ.
    FencedProvesNoMiss,
    /// Tables that clients update: a pending entry is committed by compare-and-swap, since it may
    /// have been committed and replaced by then.
    FinishByCas,
    /// Tables that clients update: before a segment is used again every slot that leads into it,
    /// also over forwarded entries, points at the newest entry.
    RepairBeforeReuse,
    /// A counter's cell is ended before its entry goes.
    CounterEndsFirst,
    /// Tables that clients update: what is replaced is this very entry, not whatever is there.
    Token,
    /// Tables that clients update: they never write the index.
    IndexReadOnly,
    /// Words that clients change over a device whose atomics are its own the server changes over
    /// that device.
    ThroughDevice,
}

impl Rule {
    /// All of them, for tests that try each.
    pub const ALL: [Self; 21] = [
        Self::Pending,
        Self::InsertPointsFirst,
        Self::MarkBeforePublish,
        Self::CleanMarks,
        Self::DeleteMarks,
        Self::CacheNeverProvesMiss,
        Self::MissRechecksVersion,
        Self::Checksum,
        Self::DeadLooksAgain,
        Self::LargeReadsStateAgain,
        Self::LargeUnique,
        Self::RetiredWaits,
        Self::AcknowledgeWaits,
        Self::RetiredIsForgotten,
        Self::FencedProvesNoMiss,
        Self::FinishByCas,
        Self::RepairBeforeReuse,
        Self::CounterEndsFirst,
        Self::Token,
        Self::IndexReadOnly,
        Self::ThroughDevice,
    ];
}

/// Whether the rule is followed.
#[cfg(not(feature = "weaken"))]
#[inline(always)]
#[must_use]
pub const fn holds(_rule: Rule) -> bool {
    true
}

#[cfg(feature = "weaken")]
pub use weakened::{holds, without};

#[cfg(feature = "weaken")]
mod weakened {
    use super::Rule;
    use std::cell::Cell;

    thread_local! {
        static OFF: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Whether the rule is followed on this thread.
    #[must_use]
    pub fn holds(rule: Rule) -> bool {
        OFF.get() != Some(rule)
    }

    /// Runs `body` on this thread with one rule switched off, or none.
    pub fn without<T>(rule: Option<Rule>, body: impl FnOnce() -> T) -> T {
        struct Restore(Option<Rule>);
        impl Drop for Restore {
            fn drop(&mut self) {
                OFF.set(self.0);
            }
        }
        let _restore = Restore(OFF.replace(rule));
        body()
    }
}
