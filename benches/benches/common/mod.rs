//! What the benches share. Each bench uses a part of it.
#![allow(dead_code, unreachable_pub)]

pub mod data;
pub mod lmdb;
pub mod measure;
pub mod memcached;
pub mod process;
pub mod redis;
pub mod store;
pub mod zipf;
