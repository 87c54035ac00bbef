//! A table's log: where entries are put.

use onesided_protocol::LogAddr;
use onesided_protocol::rpc::RpcError;
use parking_lot::Mutex;

use super::memory::{Account, Pool, Use};

/// Appends to one segment at a time, which begins with one block and grows as it fills, as long
/// as the memory behind it is free. A sealed segment whose entries are all dead is free at once.
#[derive(Default)]
pub(super) struct Log {
    active: Mutex<Option<Active>>,
}

struct Active {
    segment: LogAddr,
    len_bytes: usize,
    used_bytes: usize,
}

impl Log {
    /// Room for an entry of `len_bytes` (a multiple of 16), counted as live from now on. One that
    /// is longer than a segment takes adjacent segments of its own.
    pub(super) fn reserve(
        &self,
        pool: &Pool,
        account: &Account,
        owner: u32,
        len_bytes: usize,
    ) -> Result<LogAddr, RpcError> {
        if len_bytes > pool.segment_bytes() {
            let addr = take(pool, account, owner, len_bytes)?;
            pool.add_live(addr, len_bytes);
            return Ok(addr);
        }
        let mut active = self.active.lock();
        if let Some(active) = &mut *active
            && active.make_room(pool, account, len_bytes)
        {
            return Ok(active.append(pool, len_bytes));
        }
        let segment = take(pool, account, owner, len_bytes)?;
        pool.activate(segment);
        let segment_bytes = len_bytes.next_multiple_of(pool.block_bytes());
        let mut fresh = Active { segment, len_bytes: segment_bytes, used_bytes: 0 };
        let addr = fresh.append(pool, len_bytes);
        if let Some(full) = active.replace(fresh) {
            account.give(pool.seal(full.segment));
        }
        Ok(addr)
    }

    /// The entry of `len_bytes` at `addr` is dead.
    #[inline]
    pub(super) fn release(pool: &Pool, account: &Account, addr: LogAddr, len_bytes: usize) {
        account.give(pool.sub_live(addr, len_bytes));
    }

    /// Appends no more.
    pub(super) fn close(&self, pool: &Pool, account: &Account) {
        if let Some(active) = self.active.lock().take() {
            account.give(pool.seal(active.segment));
        }
    }

    /// Bytes of the active segment that nothing was put in yet.
    pub(super) fn rest_bytes(&self) -> usize {
        self.active.lock().as_ref().map_or(0, |active| active.len_bytes - active.used_bytes)
    }
}

impl Active {
    /// Whether an entry fits: behind the others, from the start if all are dead, or by more
    /// blocks.
    fn make_room(&mut self, pool: &Pool, account: &Account, len_bytes: usize) -> bool {
        if self.used_bytes + len_bytes > self.len_bytes && pool.is_all_dead(self.segment) {
            self.used_bytes = 0;
        }
        let needed_bytes = (self.used_bytes + len_bytes).next_multiple_of(pool.block_bytes());
        let Some(more_bytes) = needed_bytes.checked_sub(self.len_bytes).filter(|&more| more > 0)
        else {
            return true;
        };
        if needed_bytes > pool.segment_bytes() || account.take(more_bytes).is_err() {
            return false;
        }
        let longer = pool.extend(self.segment, self.len_bytes, more_bytes);
        match longer {
            true => self.len_bytes = needed_bytes,
            false => account.give(more_bytes),
        }
        longer
    }

    fn append(&mut self, pool: &Pool, len_bytes: usize) -> LogAddr {
        let offset = self.segment.offset_bytes() + self.used_bytes;
        let addr = LogAddr::new(self.segment.region(), offset);
        self.used_bytes += len_bytes;
        pool.add_live(addr, len_bytes);
        addr
    }
}

fn take(pool: &Pool, account: &Account, owner: u32, len_bytes: usize) -> Result<LogAddr, RpcError> {
    let taken_bytes = len_bytes.next_multiple_of(pool.block_bytes());
    account.take(taken_bytes)?;
    pool.take(len_bytes, Use::Log, owner).inspect_err(|_| account.give(taken_bytes))
}
