//! Decoding allocates no more than a small multiple of what was received, whatever counts and
//! lengths the bytes claim. Alone in its binary: the allocator counts for the whole process.

use std::alloc::System;

use onesided_protocol::control::{ToClient, ToServer};
use onesided_protocol::rpc::{Answer, Request};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// In memory an operation of one byte takes one `Op`, and a vector that grows has been copied
/// twice over in all.
const FACTOR: usize = 400;

/// Bytes that were allocated in all, growth counted, while `decode` ran.
fn allocated(decode: impl FnOnce()) -> usize {
    let region = Region::new(ALLOCATOR);
    decode();
    let change = region.change();
    change.bytes_allocated
}

fn claims() -> Vec<Vec<u8>> {
    let mut all = vec![];
    for claimed in [1_u32, 64, 1_024, 1_025, 65_535, 1 << 31, u32::MAX] {
        for prefix_len in [1, 2, 9, 17, 25, 26, 30, 33] {
            for kind in 0..=10 {
                for rest in [0, 1, 64] {
                    let mut bytes = vec![0; prefix_len];
                    bytes[0] = kind;
                    bytes[prefix_len - 1] = kind;
                    bytes.extend(claimed.to_le_bytes());
                    bytes.resize(bytes.len() + rest, 0);
                    all.push(bytes);
                }
            }
        }
    }
    all
}

#[test]
fn a_claim_allocates_nothing() {
    // The measure itself must see an allocation, or the rest proves nothing.
    let seen = allocated(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(10_000))));
    assert!(seen >= 10_000, "{seen} bytes seen");

    for bytes in claims() {
        let used = [
            allocated(|| drop(Request::decode(&bytes))),
            allocated(|| drop(Answer::decode(&bytes))),
            allocated(|| drop(ToServer::decode(&bytes))),
            allocated(|| drop(ToClient::decode(&bytes))),
        ];
        let most = used.into_iter().max().unwrap_or(0);
        assert!(most <= FACTOR * bytes.len(), "{most} bytes for {bytes:?}");
    }

    // The cheapest message that makes the most: a full batch of pings.
    let mut batch = vec![0; 24];
    batch.extend([7, 0, 4, 0, 0]);
    batch.resize(batch.len() + 1_024, 0);
    let mut count = 0;
    let most = allocated(|| {
        let request = Request::decode(&batch).expect("a batch");
        let onesided_protocol::rpc::Op::Batch(ops) = request.op else { return };
        count = ops.len();
    });
    assert_eq!(count, 1_024);
    assert!(most <= FACTOR * batch.len(), "{most} bytes for {}", batch.len());
}
