//! GET: by RPC, as long as nothing else is known to be possible.

use std::sync::Arc;

use onesided_protocol::control::TableInfo;

use crate::core::Connection;
use crate::error::Error;
use crate::rpc;
use crate::stats::Counter;
use crate::table::TableHandle;
use crate::value::Value;

/// What the read path knows of a table on one connection.
pub(crate) struct TableView;

impl TableView {
    pub(crate) fn new(_connection: &Arc<Connection>, _info: &TableInfo) -> Self {
        Self
    }
}

pub(crate) async fn get(table: &TableHandle, key: &[u8]) -> Result<Option<Value>, Error> {
    table.count(Counter::Gets, 1);
    rpc::get(table, key).await
}

pub(crate) async fn get_many<K: AsRef<[u8]>>(
    table: &TableHandle,
    keys: &[K],
) -> Result<Vec<Option<Value>>, Error> {
    table.count(Counter::Gets, keys.len());
    rpc::get_many(table, keys).await
}
