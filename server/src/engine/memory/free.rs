//! Which blocks are free, by what clients may do to the regions that they are in.

use std::collections::BTreeSet;
use std::ops::Range;
use std::thread::Thread;

use onesided_fabric::Rights;

/// All that changes when blocks are taken and given back, or regions come and go.
#[derive(Default)]
pub(super) struct FreeBlocks {
    read_only: Side,
    writable: Side,
    /// Of the free blocks, nobody takes any of these: a row is being made.
    pub(super) held: Range<u32>,
    /// Neither of these, and they do not count: the region is to go.
    pub(super) leaving: Range<u32>,
    /// Regions made so far, the catalog and those that were given back included.
    pub(super) made: u32,
    /// Those that were retired, and of them the bytes that sessions may still look at.
    pub(super) retired: u32,
    pub(super) retired_bytes: usize,
    /// Who registers regions with a device; unparked when there is a new one.
    pub(super) registrar: Option<Thread>,
}

/// Regions of one right.
#[derive(Default)]
pub(super) struct Side {
    /// Numbers of the free blocks.
    pub(super) numbers: BTreeSet<u32>,
    /// Bytes of the regions that there are.
    pub(super) made_bytes: usize,
}

impl FreeBlocks {
    /// With so many regions made beforehand.
    pub(super) fn new(made: u32) -> Self {
        Self { made, ..Self::default() }
    }

    pub(super) fn of(&self, rights: Rights) -> &Side {
        match rights {
            Rights::ReadOnly => &self.read_only,
            Rights::ReadWrite => &self.writable,
        }
    }

    pub(super) fn of_mut(&mut self, rights: Rights) -> &mut Side {
        match rights {
            Rights::ReadOnly => &mut self.read_only,
            Rights::ReadWrite => &mut self.writable,
        }
    }

    /// Whether a block is free.
    pub(super) fn has(&self, number: u32) -> bool {
        self.read_only.numbers.contains(&number) || self.writable.numbers.contains(&number)
    }

    /// Whether nobody takes this block now.
    pub(super) fn is_held(&self, number: u32) -> bool {
        self.held.contains(&number) || self.leaving.contains(&number)
    }

    /// Free blocks of one right, without those of the region that is to go.
    pub(super) fn count_of(&self, rights: Rights) -> usize {
        let numbers = &self.of(rights).numbers;
        match self.leaving.is_empty() {
            true => numbers.len(),
            false => numbers.len() - numbers.range(self.leaving.clone()).count(),
        }
    }

    /// Bytes of all regions that there are.
    pub(super) fn made_bytes(&self) -> usize {
        self.read_only.made_bytes + self.writable.made_bytes
    }

    /// All free blocks.
    pub(super) fn count(&self) -> usize {
        self.read_only.numbers.len() + self.writable.numbers.len()
    }
}
