//! A table's log: where entries are put.

use onesided_fabric::Rights;
use onesided_protocol::LogAddr;
use onesided_protocol::rpc::RpcError;
use parking_lot::Mutex;

use super::account::Account;
use super::block::Use;
use super::evict::Part;
use super::memory::Pool;
use super::room::{Level, Need, Wanted};

/// Appends to one segment at a time, which begins with one block and grows as it fills, as long
/// as the memory behind it is free. A sealed segment whose entries are all dead is free at once.
pub(super) struct Log {
    part: Part,
    /// Of the regions that its segments are in.
    rights: Rights,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    active: Option<Active>,
    /// Bytes of all entries that were ever put here.
    appended_bytes: u64,
}

struct Active {
    segment: LogAddr,
    len_bytes: usize,
    used_bytes: usize,
}

/// Who puts an entry, and what for.
#[derive(Clone, Copy)]
pub(super) struct Putter<'a> {
    pub(super) pool: &'a Pool,
    pub(super) account: &'a Account,
    /// The table's id.
    pub(super) owner: u32,
    pub(super) need: Need,
}

impl Log {
    /// An empty one.
    pub(super) fn of(part: Part, rights: Rights) -> Self {
        Self { part, rights, state: Mutex::default() }
    }

    /// Of the regions that its segments are in.
    pub(super) fn rights(&self) -> Rights {
        self.rights
    }

    /// What it asks the pool for.
    pub(super) fn wanted(&self, owner: u32, len_bytes: usize, need: Need) -> Wanted {
        Wanted { owner, len_bytes, need, rights: self.rights }
    }

    fn take(&self, by: Putter<'_>, len_bytes: usize) -> Result<LogAddr, RpcError> {
        let Putter { pool, account, owner, need } = by;
        let taken_bytes = len_bytes.next_multiple_of(pool.block_bytes());
        account.take(taken_bytes, need, pool.segment_bytes())?;
        let wanted = self.wanted(owner, len_bytes, need);
        pool.take(wanted, Use::Log, owner).inspect_err(|_| account.give(taken_bytes))
    }

    /// Room for an entry of `len_bytes` (a multiple of 16), counted as live from now on, and pinned
    /// until [`Pool::unpin`]: the cleaner must not look at it before it is written. One that is
    /// longer than a segment takes adjacent segments of its own.
    pub(super) fn reserve(&self, by: Putter<'_>, len_bytes: usize) -> Result<LogAddr, RpcError> {
        let Putter { pool, account, need, .. } = by;
        if need == Need::Grow {
            // What is left of a segment that was begun to replace entries is for that, too.
            account.may_grow(len_bytes)?;
            if pool.level(self.rights) == Level::Full && account.owed_bytes() == 0 {
                return Err(pool.refusal(len_bytes, self.rights));
            }
        }
        if len_bytes > pool.segment_bytes() {
            let addr = self.take(by, len_bytes)?;
            pool.add_alone(addr, self.part, len_bytes);
            self.state.lock().appended_bytes += len_bytes as u64;
            return Ok(addr);
        }
        let mut state = self.state.lock();
        if let Some(active) = &mut state.active
            && active.make_room(by, len_bytes)
        {
            let addr = active.append(pool, len_bytes);
            state.appended_bytes += len_bytes as u64;
            return Ok(addr);
        }
        let segment = self.take(by, len_bytes)?;
        state.appended_bytes += len_bytes as u64;
        pool.activate(segment);
        let segment_bytes = len_bytes.next_multiple_of(pool.block_bytes());
        let mut fresh = Active { segment, len_bytes: segment_bytes, used_bytes: 0 };
        let addr = fresh.append(pool, len_bytes);
        if let Some(full) = state.active.replace(fresh) {
            account.give(pool.seal(full.segment, self.part, full.used_bytes));
        }
        Ok(addr)
    }

    /// The entry of `len_bytes` at `addr` is dead.
    #[inline]
    pub(super) fn release(pool: &Pool, account: &Account, addr: LogAddr, len_bytes: usize) {
        account.give(pool.sub(addr, len_bytes));
    }

    /// Seals the segment that is appended to; the next entry begins another one. `false`: there
    /// was none.
    pub(super) fn close(&self, pool: &Pool, account: &Account) -> bool {
        let active = self.state.lock().active.take();
        if let Some(active) = &active {
            account.give(pool.seal(active.segment, self.part, active.used_bytes));
        }
        active.is_some()
    }

    /// As [`Self::close`], if that segment is in this region.
    pub(super) fn leave(&self, pool: &Pool, account: &Account, region: u32) {
        let in_it = |active: &mut Active| active.segment.region() == region;
        let active = self.state.lock().active.take_if(in_it);
        if let Some(active) = active {
            account.give(pool.seal(active.segment, self.part, active.used_bytes));
        }
    }

    /// As [`Self::close`], if `anyway`, or if an eighth of the segment is dead: its rest comes back
    /// only when it is emptied. `false`: there was none.
    pub(super) fn close_to_clean(&self, pool: &Pool, account: &Account, anyway: bool) -> bool {
        let worth_it = self.state.lock().active.as_ref().is_some_and(|active| {
            let live_bytes = pool.live_bytes(active.segment);
            anyway || active.used_bytes.saturating_sub(live_bytes) * 8 >= active.len_bytes
        });
        worth_it && self.close(pool, account)
    }

    /// Bytes of the active segment that nothing was put in yet.
    pub(super) fn rest_bytes(&self) -> usize {
        let state = self.state.lock();
        state.active.as_ref().map_or(0, |active| active.len_bytes - active.used_bytes)
    }

    /// An entry was written over one of this log.
    pub(super) fn note_appended(&self, len_bytes: usize) {
        self.state.lock().appended_bytes += len_bytes as u64;
    }

    /// Bytes of all entries that were put here.
    pub(super) fn appended_bytes(&self) -> u64 {
        self.state.lock().appended_bytes
    }
}

impl Active {
    /// Whether an entry fits: behind the others, from the start if all are dead, or by more
    /// blocks.
    fn make_room(&mut self, by: Putter<'_>, len_bytes: usize) -> bool {
        let Putter { pool, account, need, .. } = by;
        if self.used_bytes + len_bytes > self.len_bytes && pool.is_all_dead(self.segment) {
            self.used_bytes = 0;
        }
        let needed_bytes = (self.used_bytes + len_bytes).next_multiple_of(pool.block_bytes());
        let Some(more_bytes) = needed_bytes.checked_sub(self.len_bytes).filter(|&more| more > 0)
        else {
            return true;
        };
        if needed_bytes > pool.segment_bytes()
            || account.take(more_bytes, need, pool.segment_bytes()).is_err()
        {
            return false;
        }
        let longer = pool.extend(self.segment, self.len_bytes, more_bytes, need);
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
        pool.add(addr, len_bytes);
        addr
    }
}
