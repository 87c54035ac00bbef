//! Copy, or register? A buffer that is mapped, registered and given back, beside one that is taken
//! from where it was parked, and beside copying as many bytes into registered memory, by length.
//! Needs an RDMA device, and says so where there is none: `tools/guests/test register`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use onesided_fabric::verbs::{
    ConnectOptions, Connected, Limits, Listener, Options, VerbsError, connect,
};
use onesided_fabric::{
    Admission, Buffer, CompletionQueue, Memory, Parking, Refused, RegionId, Rights,
};

/// Nobody attaches or sends anything: the queues are never polled.
struct Nobody;

impl Admission for Nobody {
    fn admit(&self, _: &[u8; 32]) -> Result<u64, Refused> {
        Ok(1)
    }

    fn region(&self, _: u64, _: RegionId) -> Option<(Arc<Memory>, Rights)> {
        None
    }
}

/// A connection of this process with itself: what is registered is registered for it.
struct Device {
    peer: Connected,
    _listener: Listener,
    _queue: Arc<dyn CompletionQueue>,
}

impl Device {
    fn open() -> Result<Self, VerbsError> {
        let limits = Limits::default();
        let (listener, queue) = Listener::start(&Options::default(), 0, limits, Arc::new(Nobody))?;
        let (blob, timeout) = (listener.blob(512), Duration::from_secs(10));
        let peer = connect(&blob, &[0; 32], 1, timeout, &ConnectOptions::default());
        let peer = peer.expect("connected with itself");
        Ok(Self { peer, _listener: listener, _queue: queue })
    }

    /// Takes a buffer, and makes the device know it.
    fn take(&self, parking: &Parking, len_bytes: usize) -> Buffer {
        let buffer = parking.take(len_bytes).expect("memory");
        self.peer.endpoint.register(&buffer).expect("registered");
        buffer
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let device = match Device::open() {
        Ok(device) => device,
        Err(error) => {
            println!("register: nothing is measured without an RDMA device: {error}");
            return;
        }
    };
    let mut group = criterion.benchmark_group("register");
    for shift in [12, 13, 14, 15, 16, 18, 20, 24] {
        let len_bytes = 1_usize << shift;
        group.throughput(Throughput::Bytes(len_bytes as u64));
        group.bench_function(BenchmarkId::new("anew", len_bytes), |bencher| {
            let none_kept = Parking::new(0, 0);
            bencher.iter(|| device.take(&none_kept, len_bytes));
        });
        group.bench_function(BenchmarkId::new("parked", len_bytes), |bencher| {
            let kept = Parking::new(usize::MAX, 1);
            bencher.iter(|| device.take(&kept, len_bytes));
        });
        group.bench_function(BenchmarkId::new("copy", len_bytes), |bencher| {
            let kept = Parking::new(usize::MAX, 1);
            let (from, mut to) = (vec![7_u8; len_bytes], device.take(&kept, len_bytes));
            bencher.iter(|| to.copy_from_slice(black_box(&from)));
        });
    }
    group.finish();
    criterion.final_summary();
}
