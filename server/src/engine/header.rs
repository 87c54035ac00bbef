//! What a new entry says of itself.

use std::sync::atomic::Ordering;

use onesided_protocol::layout::entry::{EntryHeader, FLAG_LARGE, is_large};
use onesided_protocol::rpc::{ErrorCode, RpcError};

use super::bucket::Hit;
use super::change::Decision;
use super::room::Need;
use super::table::Table;

impl Table {
    /// The header of a new entry, its version apart.
    pub(super) fn header(
        &self,
        key: &[u8],
        value: &[u8],
        decision: Decision,
        live: Option<Hit>,
    ) -> Result<EntryHeader, RpcError> {
        let max_bytes = self.shared.value_max_bytes;
        let old = live.map(|hit| hit.header).unwrap_or_default();
        let header = EntryHeader {
            version: 0,
            value_len: value.len() as u32,
            key_len: key.len() as u16,
            flags: if is_large(value.len()) { FLAG_LARGE } else { 0 },
            expiry_s: match decision.ttl {
                Some(ttl) => self.expiry_s(ttl),
                None => old.expiry_s,
            },
            user_flags: decision.user_flags.unwrap_or(old.user_flags),
        };
        if header.expiry_s != 0 && !self.expiring.load(Ordering::Relaxed) {
            self.expiring.store(true, Ordering::Relaxed);
        }
        let run_max_bytes = self.shared.pool.run_max_bytes();
        if value.len() > max_bytes || header.padded_bytes() > run_max_bytes {
            let text = format!(
                "a value of {} bytes: the limit is {max_bytes}, and {run_max_bytes} for an entry \
                 with header and key",
                value.len()
            );
            return Err(RpcError::new(ErrorCode::TooLarge, text));
        }
        let replaces = live.is_some_and(|hit| hit.header.padded_bytes() >= header.padded_bytes());
        let need = if replaces { Need::Replace } else { Need::Grow };
        self.account.check_ever(header.padded_bytes(), need, &self.shared.pool)?;
        Ok(header)
    }

    /// One that was never given before, if the entry needs it.
    pub(super) fn append_number(&self, header: &EntryHeader) -> u64 {
        match header.is_large() {
            true => self.shared.append_numbers.fetch_add(1, Ordering::Relaxed),
            false => 0,
        }
    }
}
