//! Wait-free sequence numbers: every thread of every process that runs this gets numbers that
//! nobody else gets, and none is left out. A number is one fetch-and-add: one round trip over RDMA,
//! less than a microsecond in shared memory, whatever the others do.
//!
//!     cargo run --release --example sequence -- onesided://127.0.0.1:7411 4 100000

use std::time::Instant;

use onesided::Error;
use onesided::blocking::Client;

/// Takes `each` numbers on each of `threads` threads; gives all of them.
pub(crate) fn take(url: &str, threads: usize, each: usize) -> Result<Vec<i64>, Error> {
    let client = Client::connect(url)?;
    let table = client.table("counters")?;
    let thread = |_| {
        let numbers = table.counter("example/sequence");
        move || (0..each).map(|_| numbers.fetch_add(1)).collect::<Result<Vec<i64>, Error>>()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|n| scope.spawn(thread(n))).collect();
        let all =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Ok(Vec::new())));
        all.collect::<Result<Vec<_>, _>>().map(|all| all.concat())
    })
}

#[allow(dead_code, reason = "a test takes numbers by itself")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "onesided://127.0.0.1:7411".to_owned());
    let threads = args.next().map_or(Ok(4), |text| text.parse())?;
    let each = args.next().map_or(Ok(100_000), |text| text.parse())?;
    let begin = Instant::now();
    let numbers = take(&url, threads, each)?;
    let ns = begin.elapsed().as_nanos() as usize / each.max(1);
    println!("{} numbers, {ns} ns each on {threads} threads", numbers.len());
    Ok(())
}
