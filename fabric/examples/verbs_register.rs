//! Copy, or register? What a buffer costs that is mapped, registered, and given back, beside one
//! that is taken from where it was parked, and beside copying as many bytes into registered memory.
//! In a guest:
//!
//!     cargo build --release -p onesided-fabric --example verbs_register
//!     tools/guests/run -n 1 -- target/release/examples/verbs_register
//!
//! Without a device mapping takes the place of registering: the least that it can cost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onesided_fabric::verbs::{ConnectOptions, Connected, Limits, Listener, Options, connect};
use onesided_fabric::{Admission, Buffer, Memory, Parking, Refused, RegionId, Rights};

const ROUNDS: usize = 31;
/// Its queue is never polled: nobody attaches or sends anything.
struct Nobody;

impl Admission for Nobody {
    fn admit(&self, _: &[u8; 32]) -> Result<u64, Refused> {
        Ok(1)
    }

    fn region(&self, _: u64, _: RegionId) -> Option<(Arc<Memory>, Rights)> {
        None
    }
}

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Fallible<()> {
    let started = Listener::start(&Options::default(), 0, Limits::default(), Arc::new(Nobody));
    let (_listener, peer) = match started {
        Ok((listener, _queue)) => {
            let blob = listener.blob(512);
            let timeout = Duration::from_secs(10);
            let peer = connect(&blob, &[0; 32], 1, timeout, &ConnectOptions::default())?;
            (Some((listener, _queue)), Some(peer))
        }
        Err(error) => {
            println!("no device, so pages are mapped and touched instead: {error}");
            (None, None)
        }
    };
    println!("| bytes | register anew, us | parked, us | copy, us |");
    println!("|---:|---:|---:|---:|");
    for shift in (12..=24).step_by(1) {
        let len_bytes = 1 << shift;
        let anew = median(|| one(&Parking::new(0, 0), peer.as_ref(), len_bytes))?;
        let parking = Parking::new(usize::MAX, 1);
        let parked = median(|| one(&parking, peer.as_ref(), len_bytes))?;
        let (from, mut to) = (vec![7_u8; len_bytes], parking.take(len_bytes)?);
        let copied = median(|| {
            to.copy_from_slice(std::hint::black_box(&from));
            Ok(())
        })?;
        println!("| {len_bytes} | {anew:.1} | {parked:.1} | {copied:.1} |");
    }
    Ok(())
}

/// Takes a buffer and makes a device know it.
fn one(parking: &Parking, peer: Option<&Connected>, len_bytes: usize) -> Fallible<()> {
    let mut buffer: Buffer = parking.take(len_bytes)?;
    match peer {
        Some(peer) => peer.endpoint.register(&buffer)?,
        None => buffer.iter_mut().step_by(4096).for_each(|byte| *byte = 1),
    }
    Ok(())
}

/// In microseconds.
fn median(mut act: impl FnMut() -> Fallible<()>) -> Fallible<f64> {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        act()?;
        times.push(begin.elapsed());
    }
    times.sort();
    Ok(times[ROUNDS / 2].as_nanos() as f64 / 1e3)
}
