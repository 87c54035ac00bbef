//! What is asked of a store: YCSB's core workload, from its property files to a stream of
//! operations for each thread.

pub mod distribution;
pub mod keys;
pub mod operations;
pub mod properties;
pub mod record;
pub mod spec;
pub mod standard;
pub mod trace;
