//! The server of `onesided`: a storage engine whose index and log clients read without asking,
//! and around it the sessions, RPCs and connections of a daemon.
//!
//! | module | what |
//! |---|---|
//! | [`engine`] | tables: index, log, memory |
//! | [`server`] | assembly, start and stop: [`Server`] |
//! | `fabrics`, `rdma` | how it can be reached |
//! | `registrar` | memory that RDMA devices know before clients ask |
//! | [`config`], [`cli`] | what the server is told |
//! | `control` | the control port |
//! | `admin` | the admin port |
//! | `session` | sessions, tickets, the answers that make retries exactly-once |
//! | `poller`, `rpc` | the data path |
//! | `reload` | what can change while it runs |
//! | `tenant` | who shares the server without seeing each other |
//! | `clock`, `stats` | time and counters |
//! | [`metrics`] | what it shows of itself |

#![forbid(unsafe_code)]

mod admin;
pub mod cli;
pub mod clock;
pub mod config;
mod control;
pub mod engine;
mod fabrics;
pub mod metrics;
mod poller;
mod rdma;
mod registrar;
mod reload;
mod rpc;
pub mod server;
mod session;
mod stats;
pub mod supervised;
mod tenant;

pub use config::ServerConfig;
pub use server::{Server, StartError};
