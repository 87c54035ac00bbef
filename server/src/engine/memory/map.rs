//! What regions are full of, for whoever looks at it.

use onesided_fabric::Rights;
use onesided_protocol::LogAddr;

use super::{Block, Pool, Region, Use};
use crate::engine::Engine;

/// Parts that a region is shown in, at most.
const CELLS_MAX: usize = 64;

/// A region, part by part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionMap {
    /// Its number, the catalog's being 0, which is not among them.
    pub id: u32,
    /// Its length.
    pub len_bytes: u64,
    /// What clients may do to it.
    pub rights: Rights,
    /// Length of a part; the last one may be shorter.
    pub cell_bytes: u64,
    /// The parts, in order.
    pub cells: Vec<CellUse>,
}

/// Bytes of a part of a region by use; the rest is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CellUse {
    /// Live entries: of a log segment that reaches over several parts, each has its share.
    pub live_bytes: u64,
    /// Log segments, the live bytes included.
    pub log_bytes: u64,
    /// Blocks for index segments, directories and counters' cells.
    pub meta_bytes: u64,
}

impl Region {
    fn map(&self, id: u32, block_bytes: usize) -> RegionMap {
        let cell_blocks = self.blocks.len().div_ceil(CELLS_MAX).max(1);
        let mut cells = vec![CellUse::default(); self.blocks.len().div_ceil(cell_blocks)];
        for (n, block) in self.blocks.iter().enumerate() {
            let cell = &mut cells[n / cell_blocks];
            match block.used_for() {
                Use::Free => {}
                Use::Meta | Use::Held | Use::Cells => cell.meta_bytes += block_bytes as u64,
                Use::Log | Use::RunTail => {
                    cell.log_bytes += block_bytes as u64;
                    cell.live_bytes += self.live_of(n, block).min(block_bytes as u64);
                }
            }
        }
        let len_bytes = (self.blocks.len() * block_bytes) as u64;
        let cell_bytes = (cell_blocks * block_bytes) as u64;
        RegionMap { id, len_bytes, rights: self.rights, cell_bytes, cells }
    }

    /// Its share of what is live in its run. Others change it meanwhile.
    fn live_of(&self, n: usize, block: &Block) -> u64 {
        let first = n.checked_sub(block.back()).and_then(|first| self.blocks.get(first));
        first.map_or(0, |first| first.live_bytes() / first.run().max(1) as u64)
    }
}

impl Pool {
    /// The regions that there are, from number `from` on, at most `limit`; each block as it was
    /// at some moment.
    fn map(&self, from: usize, limit: usize) -> Vec<RegionMap> {
        let page = self.live_regions().skip(from).take(limit);
        page.map(|(id, region)| region.map(id, self.block_bytes)).collect()
    }

    /// Whether anything counts as live in the segment at `addr`.
    pub(in crate::engine) fn has_live(&self, addr: LogAddr) -> bool {
        self.block_of(addr).has_live()
    }

    /// In the segment at `addr` entries count by so many bytes more than they take than before.
    pub(in crate::engine) fn note_over(&self, addr: LogAddr, bytes: i32) {
        self.block_of(addr).note_over(bytes);
    }

    fn made_count(&self) -> usize {
        self.live_regions().count()
    }
}

impl Engine {
    /// What its regions are full of, from the one that is `from`th on, at most `limit`.
    #[must_use]
    pub fn map(&self, from: usize, limit: usize) -> Vec<RegionMap> {
        self.shared.pool.map(from, limit)
    }

    /// How many there are.
    #[must_use]
    pub fn region_count(&self) -> usize {
        self.shared.pool.made_count()
    }
}
