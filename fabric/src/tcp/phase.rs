//! Where in a page bytes are to be read to, so that the kernel copies them fast.
//!
//! The kernel copies by `rep movsb`. On some processors (an AMD EPYC was measured) that is 30 times
//! slower than usual (4.6 us for 16 KiB) where the destination lies 1 to 15 bytes behind the
//! source, both taken modulo a page, and 2 to 3 times slower up to 63. Where the source lies is the
//! sender's kernel's to say, but not arbitrary: it fills pages with what is sent, one frame behind
//! the other, and begins with a page as soon as all before was received. So of frames of one length
//! the first few lie at multiples of that length.

const PAGE_BYTES: usize = 4096;
/// Copies to as many bytes behind the source, and fewer, are slow.
const SLOW_BYTES: usize = 63;
/// Frames that are likely to lie in one piece of memory of the sender's, 32 KiB on Linux.
const FRAMES: usize = 4;
/// Candidates are so far apart: a cache line.
const STEP_BYTES: usize = 64;
/// Room that a buffer of any address needs beyond what is to be read: to begin with a page, and
/// then as much later as [`start`] says.
pub(super) const ROOM_BYTES: usize = 2 * PAGE_BYTES;

/// The phase of a frame of which as many bytes lie before a page.
pub(super) const fn before_page(bytes: usize) -> usize {
    PAGE_BYTES - bytes
}

/// Whether a frame like the one before it, of `frame_bytes` with its header, is likely copied fast
/// to this place in a page.
pub(super) fn is_fast(phase: usize, frame_bytes: usize) -> bool {
    (0..FRAMES).all(|before| {
        let source = before * frame_bytes % PAGE_BYTES;
        let behind = (phase + PAGE_BYTES - source) % PAGE_BYTES;
        !(1..=SLOW_BYTES).contains(&behind)
    })
}

/// From where on to read into `buffer`, which is at least [`ROOM_BYTES`] long, what is likely a
/// frame like the one before it; 0: its length is not known.
pub(super) fn start(buffer: &[u8], frame_bytes: usize) -> usize {
    let to_page = buffer.as_ptr().addr().wrapping_neg() % PAGE_BYTES;
    let mut phases = (0..PAGE_BYTES).step_by(STEP_BYTES);
    // Four windows of at most two steps each exclude far fewer than there are.
    to_page + phases.find(|&phase| is_fast(phase, frame_bytes)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least distance of `phase` behind a place where a frame of this length may lie.
    fn least_behind(phase: usize, frame_bytes: usize) -> usize {
        let behind = |n: usize| {
            (phase as isize - (n * frame_bytes) as isize).rem_euclid(PAGE_BYTES as isize) as usize
        };
        (0..FRAMES).map(behind).filter(|&behind| behind > 0).min().unwrap_or(PAGE_BYTES)
    }

    #[test]
    fn frames_of_every_length_have_a_fast_place() {
        let buffer = vec![0; 1 << 18];
        for frame_bytes in 0..3 * PAGE_BYTES {
            let start = start(&buffer, frame_bytes);
            assert!(start < ROOM_BYTES, "{frame_bytes}");
            let phase = (buffer.as_ptr().addr() + start) % PAGE_BYTES;
            let behind = least_behind(phase, frame_bytes);
            assert!(behind > SLOW_BYTES, "{frame_bytes}: {phase}, {behind} behind a frame");
        }
    }

    #[test]
    fn a_little_less_than_pages_is_slow_at_a_page() {
        // The second frame begins 15 bytes before a page.
        assert!(!is_fast(0, 4 * PAGE_BYTES - 15));
        assert!(!is_fast(before_page(4), 4 * PAGE_BYTES - 15));
        assert!(is_fast(64, 4 * PAGE_BYTES - 15));
        // The first one is where it is read to, the others are far.
        assert!(is_fast(0, 1000));
        assert!(is_fast(before_page(4), 16_144));
    }
}
