//! Memory that comes and goes: values that are put and deleted again, so that regions are made,
//! emptied and given back to the system while a test does something else.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onesided::blocking;

use crate::children::{stat, until};

const VALUES: usize = 400;
const VALUE_BYTES: usize = 60_000;

fn key(n: usize) -> String {
    format!("tide-{n}")
}

/// Regions that went back to the system so far.
pub(crate) fn given_back(client: &blocking::Client) -> u64 {
    stat(client, "memory_given_back_regions")
}

/// One flood and one ebb, at the end of which regions have gone.
pub(crate) fn one(client: &blocking::Client, table: &blocking::Table) {
    let before = given_back(client);
    let value = vec![7; VALUE_BYTES];
    (0..VALUES).for_each(|n| _ = table.put(key(n), &value).expect("there is memory"));
    (0..VALUES).for_each(|n| assert!(table.delete(key(n)).expect("a delete")));
    until("a region goes", || match given_back(client) {
        now if now > before => Ok(()),
        now => Err((now, before)),
    });
}

/// Does something, and tides meanwhile, at least one.
pub(crate) fn while_regions_go<T>(
    client: &blocking::Client,
    table: &blocking::Table,
    body: impl FnOnce() -> T,
) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let tides = scope.spawn(|| {
            for n in 0.. {
                if n > 0 && over.load(Ordering::Relaxed) {
                    return;
                }
                one(client, table);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let result = body();
        over.store(true, Ordering::Relaxed);
        tides.join().expect("tides");
        println!("{} regions were given back", given_back(client));
        result
    })
}
