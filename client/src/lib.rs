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
//! # Loss and cancellation
//!
//! A connection that is lost comes back by itself, and calls go on over the next one until their
//! time is over ([`ClientBuilder::operation_timeout_ms`]); a mutation is applied once however
//! often it was sent. Where an error leaves open whether one was applied, it says so
//! ([`Error::may_have_been_applied`]).
//!
//! To drop the future of a call ends the waiting, not the call: a mutation that was sent may be
//! applied. Buffers that were lent come back when it is safe.
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
pub use onesided_fabric::{AccessError, AttachError, FabricKind, Rdma};
pub use onesided_protocol::DecodeError;
pub use onesided_protocol::control::{
    FabricName, FabricOffer, TableInfo, TableOptions, TableStatus, UpdateMode,
};
pub use onesided_protocol::rpc::{ErrorCode, Expect, RpcError, Ttl};
pub use options::{ClientBuilder, FabricChoice, Options, PutOptions};
pub use range::KeyRange;
pub use registered::RegisteredBuffer;
pub use retire::Retirement;
pub use stats::{ClientStats, Counter as Count, Shard, Stats};
pub use table::Table;
pub use value::{Meta, Value, Version};
