//! A key-value store that is read without asking: the client library.
//!
//! ```no_run
//! # async fn example() -> Result<(), onesided::Error> {
//! let client = onesided::Client::connect("onesided://127.0.0.1:7411").await?;
//! let table = client.table("default").await?;
//! table.put("greeting", "hello").await?;
//! let value = table.get("greeting").await?;
//! assert_eq!(value.as_deref(), Some(&b"hello"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! Without a runtime the same calls are in [`blocking`].
//!
//! | module | what |
//! |---|---|
//! | [`core`] | one connection: RPC, READs, completions; no threads |
//! | `link`, `control`, `reactor` | connections come and go; the client's two threads |
//! | `connect`, `frames`, `url` | set-up |
//! | `retire` | memory that the server wants back |
//! | `rpc` | operations that outlive a connection and are applied once |
//! | `read` | GET without asking |
//! | `counter` | numbers that many clients change |
//! | [`Client`], [`Table`], [`blocking`] | the API |

#![forbid(unsafe_code)]

mod accesses;
mod batch;
pub mod blocking;
mod choose;
mod client;
#[cfg(feature = "prometheus")]
mod collector;
mod connect;
mod control;
pub mod core;
mod counter;
mod error;
mod frames;
mod link;
mod options;
mod range;
mod reactor;
mod read;
mod registered;
mod retire;
mod room;
mod rpc;
mod said;
mod stats;
mod table;
mod update;
mod upkeep;
mod url;
mod value;

pub use batch::{BatchOp, BatchReply};
pub use client::Client;
#[cfg(feature = "prometheus")]
pub use collector::StatsCollector;
pub use counter::Counter;
pub use error::Error;
pub use onesided_fabric::verbs::{Options as RdmaDevice, PathMtu};
pub use onesided_fabric::{FabricKind, Rdma};
pub use onesided_protocol::control::{TableInfo, TableOptions, TableStatus, UpdateMode};
pub use onesided_protocol::rpc::{Expect, Ttl};
pub use options::{ClientBuilder, FabricChoice, Options, PutOptions};
pub use range::KeyRange;
pub use registered::RegisteredBuffer;
pub use retire::Retirement;
pub use stats::{ClientStats, Counter as Count, Shard, Stats};
pub use table::Table;
pub use value::{Meta, Value, Version};
