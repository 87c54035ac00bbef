//! Requests and answers on the data path (design.md 5 and 10).
//!
//! A request is a 24-byte header and an operation; an answer is the 8-byte id and a reply. The
//! `id` is the client's own and comes back; `sequence` numbers the session's mutations from 1,
//! so that a retry is applied once (0 = not a mutation).

mod answer;
mod error;
mod request;

pub use answer::{Answer, BatchAnswer, FOUND_HEAD_BYTES, Found, KeyAt, Reply};
pub use error::{ErrorCode, RpcError};
pub use request::{CounterAction, Expect, Landing, Op, Payload, Request, Ttl};
