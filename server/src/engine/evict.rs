//! What goes when memory is full, in tables that may lose entries.
//!
//! A table's log has two parts: *fresh*, what was written, and *kept*, what was worth a copy. Fresh
//! entries are on probation: of the oldest fresh segment only what is warmer than the coldest of
//! the table goes on to the kept part, so that what is written once and never read does not push
//! out what is read all the time. When the kept part is more than its share, its oldest segment is
//! thinned: the coldest go. (S3-FIFO's two queues, with TinyLFU's sketch for what was used, in a
//! log that is cleaned by copying: see docs/ARCHITECTURE.md.)

use super::heat::HEAT_MAX;

/// Part of a table's memory for fresh entries, one of so many.
const FRESH_PART: u64 = 20;
/// The coldest are one of so many entries. The fewer go at a time, the better the choice, and the
/// more copies.
const COLDEST_PART: u32 = 8;

/// Part of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Part {
    /// Where what is written goes.
    #[default]
    Fresh,
    /// Where the cleaner copies to.
    Kept,
}

/// What the oldest segment of a part is emptied for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    /// Of the fresh ones the coldest go, as long as few are kept.
    Fill,
    /// Of the fresh ones the warm ones are kept.
    Admit,
    /// Of the kept ones the coldest go.
    Thin,
}

/// How a segment is emptied for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Thinning {
    pub(super) plan: Plan,
    pub(super) coldest: Coldest,
    /// It is one long entry: if that stays, it is kept without a copy, which would make no room.
    pub(super) is_alone: bool,
    /// It is the table's quota that is full.
    pub(super) for_quota: bool,
}

impl Plan {
    /// For a table whose sealed segments have so many bytes in each part.
    pub(super) fn of(fresh_bytes: u64, kept_bytes: u64, segment_bytes: u64) -> Self {
        let share = (fresh_bytes + kept_bytes) / FRESH_PART;
        match fresh_bytes {
            fresh if fresh > share + 2 * segment_bytes => Self::Fill,
            fresh if fresh > share || kept_bytes == 0 => Self::Admit,
            _ => Self::Thin,
        }
    }

    /// Which part's oldest segment.
    pub(super) fn part(self) -> Part {
        if self == Self::Thin { Part::Kept } else { Part::Fresh }
    }
}

/// How warm the coldest entries of a table are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Coldest {
    /// All that are colder are among them,
    heat: u8,
    /// and of those as warm so many of a thousand.
    by_lot: u32,
}

impl Coldest {
    /// All are among them.
    pub(super) const ALL: Self = Self { heat: HEAT_MAX, by_lot: 1_000 };

    /// Of a table in which so many entries of a sample have each heat.
    pub(super) fn of(heats: &[u32; HEAT_MAX as usize + 1]) -> Self {
        // In thousandths: of few entries a part must go too, or there is never any room.
        let mut left = heats.iter().sum::<u32>() * 1_000 / COLDEST_PART;
        for (heat, &entries) in (0..).zip(heats) {
            if entries * 1_000 > left {
                return Self { heat, by_lot: left / entries };
            }
            left -= entries * 1_000;
        }
        // None was met.
        Self { heat: HEAT_MAX, by_lot: 1_000 / COLDEST_PART }
    }

    /// Whether a live entry stays. `lot` is any number, another one for each entry.
    pub(super) fn keeps(self, plan: Plan, heat: u8, lot: u32) -> bool {
        match plan {
            Plan::Admit => heat > self.heat,
            Plan::Fill | Plan::Thin => {
                heat > self.heat || heat == self.heat && lot % 1_000 >= self.by_lot
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1 << 16;

    #[test]
    fn plans_bring_the_parts_to_their_shares() {
        assert_eq!(Plan::of(100 * SEGMENT, 0, SEGMENT), Plan::Fill);
        assert_eq!(Plan::of(8 * SEGMENT, 92 * SEGMENT, SEGMENT), Plan::Fill);
        assert_eq!(Plan::of(6 * SEGMENT, 94 * SEGMENT, SEGMENT), Plan::Admit);
        assert_eq!(Plan::of(5 * SEGMENT, 95 * SEGMENT, SEGMENT), Plan::Thin);
        assert_eq!(Plan::of(SEGMENT, 0, SEGMENT), Plan::Admit, "nothing to thin");
        assert_eq!([Plan::Fill, Plan::Admit].map(Plan::part), [Part::Fresh; 2]);
    }

    /// Of entries that are as warm as this, how many of a thousand stay.
    fn staying(coldest: Coldest, heat: u8) -> usize {
        (0..1_000).filter(|&lot| coldest.keeps(Plan::Thin, heat, lot)).count()
    }

    #[test]
    fn the_coldest_eighth_goes_and_lots_decide_among_equals() {
        let mut heats = [0; 16];
        (heats[1], heats[2], heats[9]) = (100, 200, 700);
        let coldest = Coldest::of(&heats);
        assert_eq!([0, 1, 2, 3, 15].map(|heat| staying(coldest, heat)), [0, 0, 875, 1_000, 1_000]);
        heats = [0; 16];
        heats[15] = 800;
        assert_eq!(staying(Coldest::of(&heats), 15), 875, "all as warm: there must be room");
        heats[15] = 3;
        assert_eq!(staying(Coldest::of(&heats), 15), 875, "of few, too");
        assert_eq!(staying(Coldest::of(&[0; 16]), 15), 875, "none was met, and there are some");
    }

    #[test]
    fn fresh_ones_stay_if_they_are_warmer_than_the_coldest() {
        let mut heats = [0; 16];
        heats[1] = 1_000;
        let keeps = |coldest: Coldest, heat| coldest.keeps(Plan::Admit, heat, 999);
        let coldest = Coldest::of(&heats);
        assert_eq!([1, 2].map(|heat| keeps(coldest, heat)), [false, true]);
        (heats[1], heats[3]) = (0, 1_000);
        let coldest = Coldest::of(&heats);
        assert_eq!([3, 4].map(|heat| keeps(coldest, heat)), [false, true]);
        assert!((0..=15).all(|heat| staying(Coldest::ALL, heat) == 0), "when nothing else helps");
        // What nobody used for long gives way to what was written of late.
        heats[0] = 1_000;
        assert!(keeps(Coldest::of(&heats), 1));
    }
}
