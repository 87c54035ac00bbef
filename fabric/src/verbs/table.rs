//! The endpoints of a queue: by their tag, which is in each work request, and by the number of
//! their queue pair, which is in each receive.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::endpoint::Link;

/// Who is at which place.
#[derive(Default)]
pub(super) struct Table {
    /// Endpoint, and how often the place was used.
    places: Vec<(Option<Arc<Link>>, u16)>,
    free: Vec<u32>,
    by_qp: HashMap<u32, u32, BuildHasherDefault<QpHasher>>,
}

/// Numbers of queue pairs come from the device: nobody chooses them to collide.
#[derive(Default)]
struct QpHasher(u64);

impl Hasher for QpHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        // Fibonacci hashing: the table looks at upper and lower bits.
        let mixed = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

const GENERATION_BITS: u32 = 15;

impl Table {
    pub(super) fn get(&self, tag: u32) -> Option<&Arc<Link>> {
        let (link, _) = self.places.get((tag >> GENERATION_BITS) as usize)?;
        link.as_ref().filter(|link| link.tag == tag)
    }

    pub(super) fn by_qp(&self, number: u32) -> Option<&Arc<Link>> {
        let place = *self.by_qp.get(&number)?;
        self.places.get(place as usize)?.0.as_ref()
    }

    /// Finds a place for an endpoint, which is made with the tag of it.
    pub(super) fn add(&mut self, make: impl FnOnce(u32) -> Arc<Link>) -> Arc<Link> {
        let place = self.free.pop().unwrap_or(self.places.len() as u32);
        if place as usize == self.places.len() {
            self.places.push((None, 0));
        }
        let (entry, used) = &mut self.places[place as usize];
        *used = used.wrapping_add(1) & ((1 << GENERATION_BITS) - 1);
        let link = make(place << GENERATION_BITS | u32::from(*used));
        *entry = Some(Arc::clone(&link));
        self.by_qp.insert(link.qp_num, place);
        link
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.places.iter().filter_map(|(link, _)| link.as_ref())
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn remove(&mut self, tag: u32) {
        let place = tag >> GENERATION_BITS;
        if let Some((link, _)) = self.places.get_mut(place as usize)
            && let Some(link) = link.take_if(|link| link.tag == tag)
        {
            // Its queue pair may be destroyed by now, and another have its number.
            if self.by_qp.get(&link.qp_num) == Some(&place) {
                self.by_qp.remove(&link.qp_num);
            }
            self.free.push(place);
        }
    }
}
