//! What the server's clock gives an entry: its version, and when its time is over.

use std::sync::atomic::Ordering;

use onesided_protocol::layout::entry::EntryHeader;
use onesided_protocol::rpc::Ttl;

use super::table::Table;

const NS_PER_S: u64 = 1_000_000_000;

impl Table {
    /// Whoever gives a version later gives a greater one.
    pub(super) fn note_version(&self, version: u64) {
        if version > self.greatest_version.load(Ordering::Relaxed) {
            self.greatest_version.fetch_max(version, Ordering::Relaxed);
        }
    }

    /// Greater than every version this table has given.
    pub(super) fn new_version(&self) -> u64 {
        let now_ns = self.shared.clock.unix_ns();
        let next = |greatest: u64| now_ns.max(greatest.saturating_add(1));
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        match self.greatest_version.fetch_update(set, fetch, |greatest| Some(next(greatest))) {
            Ok(greatest) | Err(greatest) => next(greatest),
        }
    }

    fn now_s(&self) -> u32 {
        u32::try_from(self.shared.clock.unix_ns() / NS_PER_S).unwrap_or(u32::MAX)
    }

    pub(super) fn is_expired(&self, header: &EntryHeader) -> bool {
        header.expiry_s != 0 && self.now_s() >= header.expiry_s
    }

    pub(super) fn expiry_s(&self, ttl: Ttl) -> u32 {
        let seconds = match ttl {
            Ttl::Never => return 0,
            Ttl::Seconds(seconds) => seconds,
            Ttl::TableDefault => match self.default_ttl_s.load(Ordering::Relaxed) {
                0 => return 0,
                seconds => seconds,
            },
        };
        // 0 would mean never.
        self.now_s().saturating_add(seconds).max(1)
    }
}
