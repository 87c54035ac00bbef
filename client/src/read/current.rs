//! Where a key's newest entry is: for who replaces it.

use std::cell::RefCell;

use onesided_fabric::{Loads, RegionId, RemoteAddr};
use onesided_protocol::LogAddr;
use onesided_protocol::checksum::ChecksumKey;
use onesided_protocol::layout::entry::{Verdict, judge};
use onesided_protocol::layout::line::BUCKET_BYTES;
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::layout::state::State;

use super::bucket::matching;
use super::fast::{bucket_place, slot_now};
use super::io::{Io, clamp};
use super::lookup::{self, Expired, Outcome};
use super::target::Target;
use super::view::TableView;
use crate::core::Swap;
use crate::error::Error;
use crate::table::OpenTable;

/// Forwards that are followed where a READ is a load: who replaces an entry is not content with an
/// old one.
const LOADED_HOPS_MAX: usize = 128;

/// A committed entry, as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Current {
    pub(crate) addr: LogAddr,
    /// Its state word: that of no other entry.
    pub(crate) word: u64,
    pub(crate) version: u64,
    pub(crate) expiry_s: u32,
}

/// What the image of an entry says to who wants to replace it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// It may be.
    Current(Current),
    /// As soon as it is committed. That is the business of who wrote it, and of the server: only
    /// from the slot on it is sure that what leads to an entry does.
    Pending,
    /// It was.
    Forwarded(u8, LogAddr),
    /// Not one-sidedly: gone, large, a counter, or none of this key.
    Other,
}

/// What these bytes, READ at `addr`, say.
pub(crate) fn examine(sums: &ChecksumKey, addr: LogAddr, bytes: &[u8], key: &[u8]) -> Seen {
    let Some(word) = bytes.first_chunk::<8>() else { return Seen::Other };
    let word = u64::from_le_bytes(*word);
    match judge(sums, addr, bytes, key) {
        Verdict::Hit(header) if header.flags == 0 => {
            let (version, expiry_s) = (header.version, header.expiry_s);
            Seen::Current(Current { addr, word, version, expiry_s })
        }
        Verdict::Forwarded(class, next) => Seen::Forwarded(class, next),
        Verdict::Unproven if matches!(State::decode(word), State::Pending(1..)) => Seen::Pending,
        _ => Seen::Other,
    }
}

thread_local! {
    static IMAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What a look for a key's newest entry found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    Found(Current),
    /// No slot is the key's: most often it is absent.
    NoSlot,
    /// A part of the index or the log is not known to this client yet, or it takes more than a
    /// look.
    Unknown,
}

/// The key's newest entry, where a READ is a load.
pub(crate) fn current_now(io: &Io<'_>, view: &TableView, key: &[u8]) -> Look {
    let hash = view.hash(key);
    let place = io.connection.loads().and_then(|l| Some((l, bucket_place(l, view, hash)?)));
    let Some((loads, place)) = place else { return Look::Unknown };
    let Some(slot) = slot_now(place, hash) else { return Look::NoSlot };
    let at = slot.addr().map(|addr| (slot.class(), addr));
    at.and_then(|at| newest(loads, view, at, key)).map_or(Look::Unknown, Look::Found)
}

/// As [`current_now`], from an entry on that another one was forwarded to.
pub(crate) fn newest_now(
    io: &Io<'_>,
    view: &TableView,
    at: (u8, LogAddr),
    key: &[u8],
) -> Option<Current> {
    newest(io.connection.loads()?, view, at, key)
}

fn newest(
    loads: &Loads,
    view: &TableView,
    (mut class, mut addr): (u8, LogAddr),
    key: &[u8],
) -> Option<Current> {
    IMAGE.with_borrow_mut(|image| {
        for _ in 0..LOADED_HOPS_MAX {
            let memory = loads.region(RegionId(addr.region()))?;
            let region_bytes = memory.len_bytes() as u64;
            let (_, len_bytes) = clamp(addr, size_class::bytes(class), region_bytes)?;
            image.resize(len_bytes, 0);
            memory.read_bytes(addr.offset_bytes(), image).ok()?;
            match examine(&view.sums, addr, image, key) {
                Seen::Current(current) => return Some(current),
                Seen::Forwarded(of, to) => (class, addr) = (of, to),
                // Its writer commits it within some stores, unless it was stopped between them.
                Seen::Pending => std::hint::spin_loop(),
                Seen::Other => return None,
            }
        }
        None
    })
}

/// As [`current_now`], by READs. `None`: ask the server.
pub(crate) async fn current(open: &OpenTable, key: &[u8]) -> Result<Option<Current>, Error> {
    let mut place = None;
    let mut target = Target::Place(&mut place);
    let outcome = lookup::lookup(&open.io(), &open.view, key, &mut target).await?;
    Ok(place.filter(|_| matches!(outcome, Outcome::Hit(_))))
}

impl OpenTable {
    /// Whether an entry lives for certain, by the server's clock.
    pub(crate) fn is_alive(&self, current: &Current) -> bool {
        self.io().expired(current.expiry_s) == Expired::No
    }
}

/// What clients must not do ([`onesided_protocol::rules::Rule::IndexReadOnly`]), first half: where
/// a slot is that may be the key's, and what it is.
pub(crate) async fn seen_slot(open: &OpenTable, key: &[u8]) -> Option<(RemoteAddr, Slot)> {
    let hash = open.view.hash(key);
    let place = open.view.map()?.place(hash)?;
    let words = open.io().read(place.addr, BUCKET_BYTES).await.ok()??;
    let slot = matching(&words, hash).next()?;
    let number = words.iter().position(|word| *word == slot.0)?;
    let offset_bytes = (place.addr.offset_bytes() + number * 8) as u64;
    Some((RemoteAddr { region: RegionId(place.addr.region()), offset_bytes }, slot))
}

/// Second half: points it at an entry, unless it has been changed, by its looks.
pub(crate) fn point_slot(
    open: &OpenTable,
    key: &[u8],
    seen: Option<(RemoteAddr, Slot)>,
    forward: u64,
) {
    let (Some((at, slot)), State::Forwarded(class, Some(addr))) = (seen, State::decode(forward))
    else {
        return;
    };
    let new = Slot::new(open.view.hash(key).fingerprint(), class, addr).0;
    open.connection.swap_unheard(Swap { at, expected: slot.0, new });
}
