//! The load generator `onesided-bench` as a library: YCSB's workloads, run against onesided and
//! against what one would use instead, in one run and by one loop.

#![forbid(unsafe_code)]

pub mod target;
