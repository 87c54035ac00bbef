//! The operations.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use onesided::RegisteredBuffer;
use onesided::blocking::Table;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::args::Args;

/// Pairs of one batch while filling, at most; and bytes.
const FILL_BATCH: u64 = 256;
const FILL_BATCH_BYTES: u64 = 256 << 10;
/// Longest time that a histogram tells apart: a minute, in nanoseconds.
const LONGEST_NS: u64 = 60_000_000_000;

/// What was measured.
pub(crate) struct Measured {
    /// Times of GETs in nanoseconds.
    pub(crate) gets: Histogram<u64>,
    /// Times of PUTs in nanoseconds.
    pub(crate) puts: Histogram<u64>,
    /// GETs that found nothing.
    pub(crate) absent: u64,
    /// From the first operation to the last.
    pub(crate) elapsed: Duration,
}

impl Measured {
    fn new() -> Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, LONGEST_NS, 3);
        let (gets, puts) = (histogram()?, histogram()?);
        Ok(Self { gets, puts, absent: 0, elapsed: Duration::ZERO })
    }
}

/// The key of a number.
fn key(index: u64) -> [u8; 16] {
    let mut key = *b"bench-0000000000";
    let mut rest = index;
    for digit in key[6..].iter_mut().rev() {
        // 36^10 keys are more than fit anywhere.
        *digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[(rest % 36) as usize];
        rest /= 36;
    }
    key
}

/// Stores every key.
pub(crate) fn fill(table: &Table, args: &Args) -> Result<()> {
    let value_bytes = u64::from(args.value_bytes);
    let batch = (FILL_BATCH_BYTES / (value_bytes + 16)).clamp(1, FILL_BATCH);
    let mut random = SmallRng::seed_from_u64(args.seed);
    let mut value = vec![0; args.value_bytes as usize];
    let mut from = 0;
    while from < args.keys {
        random.fill_bytes(&mut value);
        let to = args.keys.min(from + batch);
        let keys: Vec<_> = (from..to).map(key).collect();
        let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &value[..])).collect();
        for result in table.put_many(&pairs) {
            result?;
        }
        from = to;
    }
    Ok(())
}

/// Gets and puts from all threads until the time is over.
pub(crate) fn run(table: &Table, args: &Args) -> Result<Measured> {
    // What is done once is done before: opening the table, registering memory.
    Reader::new(table, args).read()?;
    let start = Instant::now();
    let end = start + Duration::from_secs(args.seconds);
    let threads: Vec<Result<Measured>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads)
            .map(|number| scope.spawn(move || one_thread(table, args, number, end)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    let mut all = Measured::new()?;
    for measured in threads {
        let measured = measured?;
        all.gets.add(&measured.gets)?;
        all.puts.add(&measured.puts)?;
        all.absent += measured.absent;
    }
    all.elapsed = start.elapsed();
    Ok(all)
}

fn one_thread(table: &Table, args: &Args, number: u32, end: Instant) -> Result<Measured> {
    let mut measured = Measured::new()?;
    let mut random = SmallRng::seed_from_u64(args.seed.wrapping_add(1 + u64::from(number)));
    let mut value = vec![0; args.value_bytes as usize];
    random.fill_bytes(&mut value);
    let mut reader = Reader::new(table, args);
    loop {
        let get = random.random_range(0..100) < args.get_percent;
        reader.keys.fill_with(|| key(random.random_range(0..args.keys)));
        // From the call to its return: choosing a key and counting are no part of it.
        let start = Instant::now();
        if start >= end {
            return Ok(measured);
        }
        if get {
            measured.absent += reader.read()?;
        } else {
            reader.write(&value)?;
        }
        let ns = start.elapsed().as_nanos() as u64;
        match get {
            // Each of a batch took as long as all of it.
            true => measured.gets.saturating_record_n(ns, reader.keys.len() as u64),
            false => measured.puts.saturating_record(ns),
        }
    }
}

/// How one thread GETs.
struct Reader<'a> {
    table: &'a Table,
    /// Of the next operation; more than one only if it is a batch of GETs.
    keys: Vec<[u8; 16]>,
    /// Comes back from each GET.
    lent: Option<RegisteredBuffer>,
}

impl<'a> Reader<'a> {
    fn new(table: &'a Table, args: &Args) -> Self {
        let lent = args.registered.then(|| table.buffer(args.value_bytes as usize));
        Self { table, keys: vec![key(0); args.batch as usize], lent }
    }

    /// PUTs the first of the keys.
    fn write(&mut self, value: &[u8]) -> Result<()> {
        let Some(mut lent) = self.lent.take() else {
            self.table.put(self.keys[0], value).context("put")?;
            return Ok(());
        };
        // What it holds is of no interest; filling it is the program's work, not the store's.
        lent.set_len(value.len());
        let (lent, stored) = self.table.put_from(self.keys[0], lent);
        self.lent = Some(lent);
        stored.context("put_from")?;
        Ok(())
    }

    /// GETs as many as there are keys; returns how many of them found nothing.
    fn read(&mut self) -> Result<u64> {
        if let Some(lent) = self.lent.take() {
            let (lent, found) = self.table.get_into_registered(self.keys[0], lent);
            self.lent = Some(lent);
            return Ok(u64::from(found.context("get_into_registered")?.is_none()));
        }
        if let [key] = self.keys[..] {
            return Ok(u64::from(self.table.get(key).context("get")?.is_none()));
        }
        let values = self.table.get_many(&self.keys).context("get_many")?;
        Ok(values.iter().filter(|value| value.is_none()).count() as u64)
    }
}
