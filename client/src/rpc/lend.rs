//! PUTs whose value the server fetches from the caller's buffer.

use std::sync::Arc;

use onesided_protocol::rpc::{Op, Payload};

use super::{Progress, go_on, version};
use crate::error::Error;
use crate::options::PutOptions;
use crate::registered::RegisteredBuffer;
use crate::stats::Counter;
use crate::table::TableHandle;
use crate::value::Version;

/// Stores what `value` holds, and gives it back; another one of its length, if the server may
/// still READ it.
pub(crate) async fn put_from(
    table: &TableHandle,
    key: &[u8],
    value: RegisteredBuffer,
    options: PutOptions,
) -> (RegisteredBuffer, Result<Version, Error>) {
    table.count(Counter::RpcPuts, 1);
    let shared = table.link().shared();
    let value = Arc::new(value.buffer);
    let lends = value.is_lendable() && value.len() >= shared.options.zero_copy_bytes;
    let progress = Progress { lent: lends.then(|| Arc::clone(&value)), ..Progress::default() };
    let PutOptions { ttl, user_flags, expect } = options;
    let op = Op::Put { key, value: Payload::Inline(&value), expect, ttl, user_flags };
    let stored = go_on(table, table.deadline("put_from"), &op, progress, &version).await;
    let buffer = Arc::try_unwrap(value);
    let buffer = buffer.unwrap_or_else(|kept| shared.lendable(kept.capacity_bytes()));
    (RegisteredBuffer { buffer }, stored)
}
