//! Where the entries are of keys that were updated lately: a bounded cache. What it says may be
//! old; the compare-and-swap tells.

use std::sync::OnceLock;

use onesided_protocol::hash::KeyHash;
use parking_lot::Mutex;

use crate::read::Current;

/// Keys that are remembered: 4 MiB. Two that meet in a place push each other out.
const PLACES: usize = 1 << 16;

/// What is known of one key.
#[derive(Clone, Copy)]
pub(super) struct Remembered {
    pub(super) current: Current,
    /// How often this client has updated it since its slot was repaired.
    pub(super) updates: u32,
}

struct Place {
    tag: [u64; 2],
    remembered: Remembered,
}

/// The cache.
pub(super) struct Known {
    seed: u64,
    /// Made at the first update.
    places: OnceLock<Box<[Mutex<Option<Place>>]>>,
}

/// Which key: two hashes, so that none is taken for another one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag([u64; 2]);

impl Known {
    pub(super) fn new(hash_seed: u64) -> Self {
        Self { seed: hash_seed, places: OnceLock::new() }
    }

    pub(super) fn tag(&self, hash: KeyHash, key: &[u8]) -> Tag {
        Tag([hash.0, KeyHash::of(!self.seed, key).0])
    }

    fn place(&self, tag: Tag) -> Option<&Mutex<Option<Place>>> {
        let new = || (0..PLACES).map(|_| Mutex::new(None)).collect();
        self.places.get_or_init(new).get(tag.0[1] as usize % PLACES)
    }

    pub(super) fn get(&self, tag: Tag) -> Option<Remembered> {
        let place = self.place(tag)?.lock();
        place.as_ref().filter(|place| place.tag == tag.0).map(|place| place.remembered)
    }

    pub(super) fn put(&self, tag: Tag, remembered: Remembered) {
        if let Some(place) = self.place(tag) {
            *place.lock() = Some(Place { tag: tag.0, remembered });
        }
    }

    pub(super) fn forget(&self, tag: Tag) {
        if let Some(place) = self.place(tag) {
            place.lock().take_if(|place| place.tag == tag.0);
        }
    }
}
