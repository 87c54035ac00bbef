//! Bucket images: which slots match, and what proves that none does.

use onesided_fabric::high_halves_match;
use onesided_protocol::LogAddr;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::addr::UNIT_BYTES;
use onesided_protocol::layout::line::{
    BUCKET_BYTES, BUCKET_WORDS, LINE_BYTES, LINE_WORDS, LineHeader, TAIL_LINES, tail_offset_bytes,
};
use onesided_protocol::layout::slot::{FINGERPRINT_SHIFT, Slot};

use super::io::Io;
use super::view::{IndexMap, Place};
use crate::error::Error;

/// All lines of a bucket, in chain order, READ or from the cache.
pub(crate) struct Bucket {
    /// Its lines: the two of the bucket, then chained ones.
    lines: Vec<u64>,
    /// Whether this call READ it: a cached one never proves a miss.
    pub(crate) fresh: bool,
}

impl Bucket {
    /// The cached image; chained lines are not cached.
    pub(crate) fn cached(map: &IndexMap, place: Place) -> Option<Self> {
        let image = map.cache.get(place.directory_index, place.bucket, place.addr)?;
        Some(Self { lines: image.to_vec(), fresh: false })
    }

    /// READs the bucket and the lines chained to it, and keeps the bucket in the cache. `None`:
    /// the address is stale.
    pub(crate) async fn read(
        io: &Io<'_>,
        map: &IndexMap,
        place: Place,
    ) -> Result<Option<Self>, Error> {
        let Some(mut lines) = io.read(place.addr, BUCKET_BYTES).await? else { return Ok(None) };
        let Some(image) = lines.first_chunk::<BUCKET_WORDS>() else { return Ok(None) };
        map.cache.put(place.directory_index, place.bucket, place.addr, image);
        let mut next = LineHeader(lines[0]).overflow();
        // A chain cannot be longer than the tail, however torn what was READ is.
        for _ in 0..TAIL_LINES {
            let Some(addr) = tail_line(place.segment, next) else { break };
            let Some(line) = io.read(addr, LINE_BYTES).await? else { return Ok(None) };
            let Some(line) = line.first_chunk::<LINE_WORDS>() else { return Ok(None) };
            lines.extend_from_slice(line);
            next = LineHeader(line[0]).overflow();
        }
        Ok(Some(Self { lines, fresh: true }))
    }

    fn headers(&self) -> impl Iterator<Item = LineHeader> + '_ {
        self.lines.chunks_exact(LINE_WORDS).map(|line| LineHeader(line[0]))
    }

    /// Whether its segment serves keys of this hash. (In a cached image only the first header is
    /// one.)
    pub(crate) fn covers(&self, hash: KeyHash) -> bool {
        let headers = if self.fresh { self.lines.len() / LINE_WORDS } else { 1 };
        self.headers().take(headers).all(|header| header.covers(hash.prefix()))
    }

    /// Slots whose fingerprint is the hash's, without repeats.
    pub(crate) fn candidates(&self, hash: KeyHash) -> Vec<Slot> {
        let mut found: Vec<Slot> = Vec::new();
        for line in self.lines.chunks_exact(LINE_WORDS) {
            for slot in matching(&line[1..], hash) {
                if !found.contains(&slot) {
                    found.push(slot);
                }
            }
        }
        found
    }

    /// READs the headers of all its lines once more: whether they are the same, even, and serve
    /// this hash, so that a key that no slot matches was absent at some moment of this call.
    pub(crate) async fn proves_a_miss(
        &self,
        io: &Io<'_>,
        place: Place,
        hash: KeyHash,
    ) -> Result<bool, Error> {
        if !self.fresh {
            return Ok(false);
        }
        let Some(again) = io.read(place.addr, BUCKET_BYTES).await? else { return Ok(false) };
        let mut headers = vec![again[0], again[LINE_WORDS]];
        // Chained lines by the numbers of the first look: a different chain differs in a header.
        let mut next = LineHeader(self.lines[0]).overflow();
        for line in self.lines[BUCKET_WORDS..].chunks_exact(LINE_WORDS) {
            let Some(addr) = tail_line(place.segment, next) else { return Ok(false) };
            let Some(again) = io.read(addr, LINE_BYTES).await? else { return Ok(false) };
            headers.push(again[0]);
            next = LineHeader(line[0]).overflow();
        }
        let same = self.headers().eq(headers.iter().map(|&word| LineHeader(word)));
        Ok(same && self.headers().all(|h| !h.in_progress()) && self.covers(hash))
    }
}

/// Address of a tail line of a segment; `None` for no or no possible line.
fn tail_line(segment: LogAddr, line: u8) -> Option<LogAddr> {
    let units = tail_offset_bytes(line)? / UNIT_BYTES;
    LogAddr::from_bits(segment.get() + units as u64)
}

/// The first slot of a bucket whose fingerprint is the hash's, if there is one.
///
/// Without a branch for each slot: a wrong guess would wait for the cache miss, and nothing after
/// it could begin before. (An empty slot matches fingerprint 0, and hides others then: one key in
/// 16,384 is left to the lookup.)
#[inline(always)]
pub(crate) fn any_match(bucket: &[u64; BUCKET_WORDS], hash: KeyHash) -> Option<Slot> {
    let found = high_halves_match::<HIGH_SHIFT>(bucket, u32::from(hash.fingerprint()));
    let found = found & u32::from(SLOTS);
    (found != 0).then(|| Slot(bucket[found.trailing_zeros() as usize % BUCKET_WORDS]))
}

/// By how much the high half of a slot is shifted right to be its fingerprint.
pub(super) const HIGH_SHIFT: u32 = FINGERPRINT_SHIFT - u32::BITS;
/// Bits of the words of a bucket that are slots, not headers.
pub(super) const SLOTS: u16 = !(1 | 1 << LINE_WORDS);
const _: () = assert!(BUCKET_WORDS == 16 && LINE_WORDS == 8);

/// The slots among `words` that point and whose fingerprint is the hash's.
#[inline]
pub(crate) fn matching(words: &[u64], hash: KeyHash) -> impl Iterator<Item = Slot> + '_ {
    let wanted = u64::from(hash.fingerprint());
    words
        .iter()
        .filter(move |&&word| word >> FINGERPRINT_SHIFT == wanted)
        .map(|&word| Slot(word))
        .filter(|slot| !slot.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each place, alone and beside others; headers that look like slots; no match at all.
    #[test]
    fn the_first_match_is_found_wherever_it_is() {
        for fingerprint in [1, 2, 0x1FFF, 0x2000, 0x3FFF] {
            let hash = KeyHash(0xFFFF_FFFF_FFFF_C000 | fingerprint);
            let wanted = |n: u64| fingerprint << FINGERPRINT_SHIFT | 5 << 42 | (n + 1);
            let other = |n: u64| (fingerprint ^ 1 << (n % 14)) << FINGERPRINT_SHIFT | 7 << 42 | n;
            for places in 0..1_u32 << BUCKET_WORDS {
                let bucket: [u64; BUCKET_WORDS] = std::array::from_fn(|i| match places >> i & 1 {
                    0 => other(i as u64),
                    _ => wanted(i as u64),
                });
                let slots = bucket.iter().enumerate().filter(|(i, _)| i % LINE_WORDS != 0);
                let expected = slots
                    .map(|(_, &word)| word)
                    .find(|&word| word >> FINGERPRINT_SHIFT == fingerprint)
                    .map(Slot);
                assert_eq!(any_match(&bucket, hash), expected, "{places:016b}");
            }
        }
    }
}
