//! The load generator `onesided-bench` as a library: YCSB's workloads, run against onesided and
//! against what one would use instead, in one run and by one loop.

// Opening LMDB is unsafe (target/lmdb.rs); nothing else here may be.
#![deny(unsafe_code)]

pub mod cli;
pub mod report;
pub mod run;
pub mod target;
pub mod workload;
