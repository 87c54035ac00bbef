//! Reading a value by the server's CPU.

use super::table::{Stored, Table};

impl Table {
    /// Copies the value into `into`, whose contents it replaces. `None`: absent or expired, or
    /// the table was dropped.
    pub fn get(&self, key: &[u8], into: &mut Vec<u8>) -> Option<Stored> {
        into.clear();
        self.get_behind(key, into)
    }

    /// As [`Self::get`], to behind what `into` holds.
    pub fn get_behind(&self, key: &[u8], into: &mut Vec<u8>) -> Option<Stored> {
        let found = self.find(key).ok()?;
        let hit = found.probe.hit?;
        if self.is_expired(&hit.header) {
            return None;
        }
        if hit.header.is_counter() {
            // One whose cell a client has overwritten has no value.
            let number = self.number_of(&hit).ok()?;
            into.extend_from_slice(number.to_string().as_bytes());
        } else {
            let value = self.shared.pool.at(hit.addr).plus(hit.header.value_offset());
            value.append_to(hit.header.value_len as usize, into);
        }
        self.heat.note(found.hash());
        Some(hit.header.into())
    }
}
