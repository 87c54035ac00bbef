//! The oldest segments of a table that may lose entries: what is emptied when nothing is dead that
//! would be worth a copy.

use std::collections::BTreeMap;
use std::sync::Weak;

use onesided_protocol::LogAddr;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::line::{BUCKET_BYTES, BUCKET_WORDS, BUCKETS, LINE_WORDS};
use onesided_protocol::layout::slot::Slot;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Walk;
use crate::engine::Shared;
use crate::engine::bucket::header_at;
use crate::engine::evict::{Coldest, Part, Plan, Thinning};
use crate::engine::heat::HEAT_MAX;
use crate::engine::table::Table;

/// One look at all segments is good for one of so many of a table's.
const LOOK_PART: usize = 64;
/// Buckets whose entries show how warm a table is.
const SAMPLED_BUCKETS: usize = 64;
/// Where they have fewer entries than this, more are looked at,
const SAMPLED_ENTRIES_MIN: u32 = 16;
/// but no more than so many.
const SAMPLED_BUCKETS_MAX: usize = 1_024;

/// Of one table, as they were at a look.
#[derive(Default)]
pub(super) struct Oldest {
    owner: u32,
    table: Weak<Table>,
    fresh: Queue,
    kept: Queue,
    coldest: Coldest,
    /// How many are emptied before it is time to look again.
    left: usize,
    /// Looks so far, of whatever table.
    pub(super) looks: u64,
}

/// Sealed segments of one part.
#[derive(Default)]
struct Queue {
    /// And when they were sealed; the oldest last.
    segments: Vec<(u64, LogAddr)>,
    bytes: u64,
}

impl Oldest {
    /// Pins the next one, of this table or of the one that has most. Tables lose nothing below
    /// their floor, but to themselves.
    pub(super) fn next(
        &mut self,
        shared: &Shared,
        owner: Option<u32>,
        wanted_by: u32,
    ) -> Option<Walk> {
        let another = owner.is_some_and(|owner| owner != self.owner);
        if self.left == 0 || another || !self.may_lose(1, wanted_by) {
            self.looks += 1;
            let looks = self.looks;
            *self = Self { looks, ..Self::look(shared, owner, wanted_by)? };
        }
        let plan = Plan::of(self.fresh.bytes, self.kept.bytes, shared.pool.segment_bytes() as u64);
        let queue = match plan.part() {
            Part::Fresh => &mut self.fresh,
            Part::Kept => &mut self.kept,
        };
        while let Some((sealed_as, segment)) = queue.segments.pop() {
            // Another one may have taken its place.
            let table = self.table.upgrade()?;
            let is_alone = shared.pool.is_alone(segment);
            let (coldest, for_quota) = (self.coldest, owner.is_some());
            let thinning = Thinning { plan, coldest, is_alone, for_quota };
            let walk = Walk::pin(shared, segment, Some(thinning), |sealed| {
                let bytes = sealed.blocks * shared.pool.block_bytes();
                let is_it = sealed.sealed_as == sealed_as && sealed.owner == self.owner;
                is_it && table.may_lose(bytes, wanted_by)
            });
            if let Some(walk) = walk {
                queue.bytes = queue.bytes.saturating_sub(walk.used_bytes as u64);
                self.left -= 1;
                return Some(walk);
            }
        }
        self.left = 0;
        None
    }

    fn look(shared: &Shared, owner: Option<u32>, wanted_by: u32) -> Option<Self> {
        let mut tables: BTreeMap<u32, Self> = BTreeMap::new();
        for (addr, sealed) in shared.pool.sealed() {
            if owner.is_some_and(|owner| owner != sealed.owner) {
                continue;
            }
            let new = || Self {
                owner: sealed.owner,
                table: shared.cleaner.table(sealed.owner),
                ..Self::default()
            };
            let oldest = tables.entry(sealed.owner).or_insert_with(new);
            let queue = match sealed.part {
                Part::Fresh => &mut oldest.fresh,
                Part::Kept => &mut oldest.kept,
            };
            queue.segments.push((sealed.sealed_as, addr));
            queue.bytes += sealed.used_bytes as u64;
        }
        let may_lose = |oldest: &Self| oldest.may_lose(1, wanted_by);
        let mut most = tables.into_values().filter(may_lose).max_by_key(Self::bytes)?;
        for queue in [&mut most.fresh, &mut most.kept] {
            queue.segments.sort_unstable_by(|a, b| b.cmp(a));
        }
        let table = most.table.upgrade()?;
        table.tend_heat();
        most.coldest = Coldest::of(&table.sample_heat(shared.pool.sealed_so_far()));
        let segments = most.fresh.segments.len() + most.kept.segments.len();
        most.left = segments.div_ceil(LOOK_PART);
        Some(most)
    }

    fn may_lose(&self, bytes: usize, wanted_by: u32) -> bool {
        self.table.upgrade().is_some_and(|table| table.may_lose(bytes, wanted_by))
    }

    fn bytes(&self) -> u64 {
        self.fresh.bytes + self.kept.bytes
    }
}

impl Table {
    pub(super) fn keeps(
        &self,
        Thinning { plan, coldest, .. }: Thinning,
        hash: KeyHash,
        addr: LogAddr,
    ) -> bool {
        // Spread, since entries of one length stand at multiples of it; and another one each time,
        // since long ones are copied to and fro between the same places.
        let time = self.shared.pool.sealed_so_far() << 48;
        let lot = ((addr.get() ^ time).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32;
        coldest.keeps(plan, self.heat.of(hash), lot)
    }

    /// How many entries of a sample have each heat.
    fn sample_heat(&self, seed: u64) -> [u32; HEAT_MAX as usize + 1] {
        let mut random = SmallRng::seed_from_u64(seed);
        let (pool, mut key) = (&self.shared.pool, Vec::new());
        let mut heats = [0; HEAT_MAX as usize + 1];
        let mut entries = 0;
        for n in 0..SAMPLED_BUCKETS_MAX {
            if n >= SAMPLED_BUCKETS && entries >= SAMPLED_ENTRIES_MIN {
                break;
            }
            let segment = random.random_range(0..self.index.segment_count());
            let segment = self.index.segment(segment as u32);
            // While it is held the entries stay.
            let _state = segment.state.lock();
            let bucket = pool.at(segment.addr).plus(random.random_range(0..BUCKETS) * BUCKET_BYTES);
            let mut words = [0; BUCKET_WORDS];
            bucket.read_words(&mut words);
            let slots = words.chunks(LINE_WORDS).flat_map(|line| &line[1..]);
            for addr in slots.filter_map(|&word| Slot(word).addr()) {
                let (at, header) = (pool.at(addr), header_at(pool.at(addr)));
                key.resize(usize::from(header.key_len), 0);
                at.plus(header.key_offset()).read(&mut key);
                let heat = self.heat.of(KeyHash::of(self.index.hash_seed, &key));
                heats[usize::from(heat)] += 1;
                entries += 1;
            }
        }
        heats
    }
}
