//! A parameter server in the style of asynchronous training: many workers add what they have learnt
//! to shared weights, each by a fetch-and-add of its own, and read them when they like. Nobody
//! locks anything, and nothing that was added is lost. Weights are fixed-point numbers.
//!
//! The workers learn the line that their points lie on, a part of them each.
//!
//!     cargo run --release --example parameter_server -- onesided://127.0.0.1:7411 4

use onesided::Error;
use onesided::blocking::{Client, Counter, Table};

/// Fixed-point: a weight of 1 is so many.
const ONE: f64 = (1_u64 << 32) as f64;
/// The line: slope and height at 0.
pub(crate) const LINE: [f64; 2] = [1.5, -0.25];
const STEPS: usize = 4_000;
const RATE: f64 = 0.05;

/// The weights, shared by all who name them.
struct Weights(Vec<Counter>);

impl Weights {
    fn of(table: &Table, name: &str, count: usize) -> Self {
        Self((0..count).map(|n| table.counter(format!("example/{name}/{n}"))).collect())
    }

    fn read(&self) -> Result<Vec<f64>, Error> {
        self.0.iter().map(|weight| Ok(weight.get()? as f64 / ONE)).collect()
    }

    fn add(&self, n: usize, by: f64) -> Result<(), Error> {
        self.0[n].fetch_add((by * ONE) as i64).map(|_| ())
    }

    fn reset(&self) -> Result<(), Error> {
        self.0.iter().try_for_each(|weight| weight.set(0))
    }
}

/// Learns from the points of one worker.
fn work(weights: &Weights, worker: usize, workers: usize) -> Result<(), Error> {
    for step in (worker..STEPS).step_by(workers) {
        let x = (step * 7_919 % 1_000) as f64 / 500.0 - 1.0;
        let y = LINE[0] * x + LINE[1];
        let now = weights.read()?;
        let error = y - (now[0] * x + now[1]);
        weights.add(0, RATE * error * x)?;
        weights.add(1, RATE * error)?;
    }
    Ok(())
}

/// Lets `workers` threads learn; gives the weights that they have found together.
pub(crate) fn learn(url: &str, workers: usize) -> Result<Vec<f64>, Error> {
    let client = Client::connect(url)?;
    let table = client.table("counters")?;
    let weights = Weights::of(&table, "line", LINE.len());
    weights.reset()?;
    let weights = &weights;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..workers).map(|n| scope.spawn(move || work(weights, n, workers))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    })?;
    weights.read()
}

#[allow(dead_code, reason = "a test learns by itself")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "onesided://127.0.0.1:7411".to_owned());
    let workers = args.next().map_or(Ok(4), |text| text.parse())?;
    println!("{:.4?} of {LINE:?}, by {workers} workers", learn(&url, workers)?);
    Ok(())
}
