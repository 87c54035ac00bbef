//! Reading a value by the server's CPU.

use super::table::{Stored, Table};

impl Table {
    /// Copies the value into `into`, whose contents it replaces. `None`: absent or expired, or
    /// the table was dropped.
    pub fn get(&self, key: &[u8], into: &mut Vec<u8>) -> Option<Stored> {
        into.clear();
        self.get_if(key, into, |_| true)
    }

    /// As [`Self::get`], to behind what `into` holds, and only if its length is one that `wanted`
    /// wants: nobody can make the server copy what it will not send.
    pub fn get_if(
        &self,
        key: &[u8],
        into: &mut Vec<u8>,
        wanted: impl FnOnce(usize) -> bool,
    ) -> Option<Stored> {
        let found = self.find(key).ok()?;
        let hit = found.probe.hit?;
        if self.is_expired(&hit.header) {
            return None;
        }
        if hit.header.is_counter() {
            // One whose cell a client has overwritten has no value.
            let number = self.number_of(&hit).ok()?;
            let text = number.to_string();
            if wanted(text.len()) {
                into.extend_from_slice(text.as_bytes());
            }
        } else if wanted(hit.header.value_len as usize) {
            let value = self.shared.pool.at(hit.addr).plus(hit.header.value_offset());
            value.append_to(hit.header.value_len as usize, into);
        }
        self.heat.note(found.hash());
        Some(hit.header.into())
    }
}
