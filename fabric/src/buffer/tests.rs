use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::class::CHUNK_BYTES;
use super::*;

const MIB: usize = 1 << 20;

#[test]
fn a_buffer_has_its_length_and_the_capacity_of_its_class() {
    let pool = BufferPool::new();
    let largest = 64 * MIB;
    for (len_bytes, capacity) in [
        (0, 64),
        (1, 64),
        (64, 64),
        (65, 128),
        (4096, 4096),
        (4097, 8192),
        (MIB - 1, MIB),
        (MIB + 1, 2 * MIB),
        (largest, largest),
        (largest + 1, largest + 64),
    ] {
        let mut buffer = pool.get(len_bytes);
        assert_eq!((buffer.len(), buffer.capacity_bytes()), (len_bytes, capacity));
        assert_eq!(buffer.words().len(), len_bytes.div_ceil(8));
        assert!(buffer.addr().is_multiple_of(64));
        buffer.set_len(capacity);
        assert_eq!(buffer.len(), capacity);
        let chunk = buffer.chunk().expect("it has one");
        let offset = buffer.addr() - chunk.addr;
        assert!(offset as usize + capacity <= chunk.len_bytes, "inside its chunk");
    }
    let nothing = Buffer::default();
    assert_eq!((nothing.len(), nothing.capacity_bytes(), nothing.chunk()), (0, 0, None));
    assert_eq!(nothing.registered(1, |_| Err::<(), _>("never called")), Ok(None));
}

#[test]
#[should_panic(expected = "a buffer does not grow")]
fn a_buffer_does_not_grow() {
    BufferPool::new().get(64).set_len(65);
}

/// Buffers in use by their addresses: none may begin before another one ends.
fn assert_apart(in_use: &[(Buffer, u64)]) {
    let by_addr: BTreeMap<u64, usize> =
        in_use.iter().map(|(buffer, _)| (buffer.addr(), buffer.capacity_bytes())).collect();
    assert_eq!(by_addr.len(), in_use.len(), "two buffers at one place");
    for ((addr, capacity), (next, _)) in by_addr.iter().zip(by_addr.iter().skip(1)) {
        assert!(addr + *capacity as u64 <= *next, "buffers overlap");
    }
}

#[test]
fn no_two_buffers_share_a_byte() {
    for seed in 0..4 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let pool = BufferPool::new();
        let mut in_use: Vec<(Buffer, u64)> = Vec::new();
        for step in 0..6_000_u64 {
            let grows = step % 2_000 < 1_200;
            if rng.random_bool(if grows { 0.7 } else { 0.3 }) {
                let len_bytes = 1_usize << rng.random_range(0..17);
                let mut buffer = pool.get(rng.random_range(1..=len_bytes));
                buffer.words_mut().fill(step);
                in_use.push((buffer, step));
            } else if !in_use.is_empty() {
                let (buffer, wrote) = in_use.swap_remove(rng.random_range(0..in_use.len()));
                assert!(buffer.words().iter().all(|&word| word == wrote), "seed {seed}");
            }
        }
        assert_apart(&in_use);
        for (buffer, wrote) in &in_use {
            assert!(buffer.words().iter().all(|word| word == wrote), "seed {seed}");
        }
    }
}

/// As many buffers as make 64 MiB, dropped in an order.
fn burst(pool: &BufferPool, block_bytes: usize, order: impl Fn(&mut Vec<Buffer>)) {
    let count = (64 * MIB / block_bytes).max(2);
    let mut buffers: Vec<Buffer> = (0..count).map(|_| pool.get(block_bytes)).collect();
    let (in_use, mapped) = (count * block_bytes, pool.usage().mapped_bytes);
    assert!(mapped <= in_use + 9 * MIB.max(block_bytes), "{mapped} bytes for {in_use}");
    order(&mut buffers);
}

#[test]
fn what_is_kept_is_bounded() {
    for class in 4..CLASSES {
        let block_bytes = SMALLEST_BYTES << class;
        let ready_bytes = block_bytes.max(MIB.min(256 * block_bytes));
        for order in [|_: &mut Vec<Buffer>| (), |buffers: &mut Vec<Buffer>| buffers.reverse()] {
            let pool = BufferPool::new();
            burst(&pool, block_bytes, order);
            let mapped = pool.usage().mapped_bytes;
            let bound = 8 * MIB + ready_bytes + 2 * CHUNK_BYTES;
            assert!(mapped <= bound, "{mapped} bytes kept of {block_bytes}-byte buffers");
        }
    }
}

#[test]
fn bursts_do_not_add_up() {
    for block_bytes in [1024, 64 << 10, MIB] {
        let pool = BufferPool::new();
        for _ in 0..4 {
            // Every second one first: each chunk has some in use until the end.
            let parity = |buffer: &Buffer| buffer.addr() / block_bytes as u64 % 2;
            burst(&pool, block_bytes, |buffers| buffers.sort_by_key(parity));
        }
    }
}

#[test]
fn steady_use_maps_nothing() {
    let pool = BufferPool::new();
    for len_bytes in [100, 20_000, 3 * MIB] {
        drop(pool.get(len_bytes));
        let before = pool.usage();
        for _ in 0..1000 {
            drop(pool.get(len_bytes));
        }
        assert_eq!(pool.usage(), PoolUsage { taken: before.taken + 1000, ..before });
    }
    assert_eq!(pool.usage().hits_per_mille(), 999, "three of 3,003 needed a chunk");
}

/// Counts itself, and says whether its chunk was still mapped when it was dropped.
struct Registration {
    live: Arc<AtomicUsize>,
    span: Span,
}

impl Drop for Registration {
    fn drop(&mut self) {
        assert!(mapping_flags(self.span).is_some(), "a registration outlived its memory");
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The kernel's flags of the mapping that has the range, if one has.
fn mapping_flags(span: Span) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let has_range = |line: &&str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        range
            .and_then(|(from, to)| Some((number(from)?, number(to)?)))
            .is_some_and(|(from, to)| from <= span.addr && span.addr + span.len_bytes as u64 <= to)
    };
    let mut lines = maps.lines();
    lines.find(has_range)?;
    lines.find_map(|line| line.strip_prefix("VmFlags:")).map(str::to_owned)
}

#[test]
fn chunks_are_registered_once_and_unregistered_before_they_go() {
    let pool = BufferPool::new();
    let live = Arc::new(AtomicUsize::new(0));
    let mut made = 0;
    let mut register = |buffer: &Buffer, domain| {
        let make = |span: Span| {
            made += 1;
            live.fetch_add(1, Ordering::Relaxed);
            Ok::<_, ()>(Registration { live: Arc::clone(&live), span })
        };
        let found = buffer.registered(domain, make).expect("made").expect("a chunk");
        assert_eq!(Some(found.span), buffer.chunk());
    };
    let buffers: Vec<Buffer> = (0..4096).map(|_| pool.get(1024)).collect();
    for buffer in buffers.iter().chain(&buffers) {
        register(buffer, 1);
    }
    register(&buffers[0], 2);
    assert_eq!(live.load(Ordering::Relaxed), 5, "four chunks, and one of them twice");
    drop(buffers);
    let large: Vec<Buffer> = (0..20).map(|_| pool.get(MIB)).collect();
    large.iter().for_each(|buffer| register(buffer, 1));
    drop(large);
    assert_eq!(live.load(Ordering::Relaxed), 5 + 9, "1 MiB ready and 8 MiB behind it");
    drop(pool);
    assert_eq!(live.load(Ordering::Relaxed), 0);
    assert_eq!(made, 5 + 20);
}

#[test]
fn threads_share_a_pool() {
    let pool = BufferPool::new();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(thread);
                let mut mine = Vec::new();
                for step in 0..3_000 {
                    let mut buffer = pool.get(rng.random_range(1..200_000));
                    let mark = thread << 32 | step;
                    buffer.words_mut()[0] = mark;
                    mine.push((buffer, mark));
                    if mine.len() > 20 {
                        let (buffer, mark) = mine.swap_remove(rng.random_range(0..mine.len()));
                        assert_eq!(buffer.words()[0], mark);
                    }
                }
            });
        }
    });
}

#[test]
fn registered_memory_is_kept_from_forked_children() {
    let pool = BufferPool::new();
    let buffer = pool.get(2 * MIB);
    let is_kept = || {
        let flags = mapping_flags(buffer.chunk().expect("a chunk")).expect("a mapping");
        // "dc": do not copy on fork.
        flags.split(' ').any(|flag| flag == "dc")
    };
    assert!(!is_kept());
    buffer.registered(1, |_| Ok::<_, ()>(())).expect("made");
    assert!(is_kept());
}
