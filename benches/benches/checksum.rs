//! Which checksum? What it costs on the read path: copy an entry of 160 bytes out of a million,
//! and check the 140 bytes that its checksum covers.
//!
//! `dependent`: the next entry is known only when this one was checked, so that a cache miss and
//! the checksum's latency add up. `independent`: the CPU overlaps misses, and every instruction
//! between two of them takes room away from the overlap.

use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use onesided_protocol::checksum::ChecksumKey;
use onesided_protocol::layout::addr::LogAddr;

const ENTRY_BYTES: usize = 160;
const COVERED: std::ops::Range<usize> = 8..148;
/// As many whole blocks of the entry as hold the covered bytes.
const BLOCKS: std::ops::Range<usize> = 0..160;
const ENTRIES: u64 = 1_000_000;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let memory: Vec<u64> = (0..ENTRIES * ENTRY_BYTES as u64 / 8).map(mix).collect();
    for dependent in [true, false] {
        let name = if dependent { "checksum/dependent" } else { "checksum/independent" };
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(1));
        all(&mut group, &memory, dependent);
        group.finish();
    }
    criterion.final_summary();
}

fn all(group: &mut BenchmarkGroup<'_, WallTime>, memory: &[u64], dependent: bool) {
    one(group, "none", memory, dependent, |_, entry| u64::from(entry[100]));
    let addr = LogAddr::from_bits(1);
    let key = ChecksumKey::new(7, onesided_fabric::carryless_fold());
    one(group, "carry-less products (in use)", memory, dependent, |_, entry| {
        addr.map_or(0, |addr| key.checksum(addr, &entry[BLOCKS]))
    });
    let key = ChecksumKey::new(7, None);
    one(group, "the same, without instructions for it", memory, dependent, |_, entry| {
        addr.map_or(0, |addr| key.checksum(addr, &entry[BLOCKS]))
    });
    one(group, "xxh3", memory, dependent, |seed, entry| {
        twox_hash::XxHash3_64::oneshot_with_seed(seed, &entry[COVERED])
    });
    one(group, "crc64-nvme", memory, dependent, |seed, entry| {
        crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &entry[COVERED]) ^ seed
    });
    one(group, "crc32c", memory, dependent, |seed, entry| {
        u64::from(crc32c::crc32c_append(seed as u32, &entry[COVERED]))
    });
    let secrets = rapidhash::v3::RapidSecrets::seed(1);
    one(group, "rapidhash v3", memory, dependent, |seed, entry| {
        rapidhash::v3::rapidhash_v3_seeded(&entry[COVERED], &secrets) ^ seed
    });
}

fn one(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    memory: &[u64],
    dependent: bool,
    checksum: impl Fn(u64, &[u8]) -> u64,
) {
    let mut state = 1_u64;
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            let index = (u128::from(mix(state)) * u128::from(ENTRIES)) >> 64;
            let at = index as usize * ENTRY_BYTES / 8;
            let mut entry = [0_u8; ENTRY_BYTES];
            let words = &memory[at..at + ENTRY_BYTES / 8];
            for (to, word) in entry.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *to = word.to_le_bytes();
            }
            let sum = checksum(7, &std::hint::black_box(entry));
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            if dependent {
                state ^= sum;
            }
            sum
        });
    });
}

/// Spreads a number over 64 bits (the finalizer of splitmix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}
