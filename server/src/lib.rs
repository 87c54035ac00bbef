//! The server: storage engine, sessions, RPC.

#![forbid(unsafe_code)]

pub mod engine;
