//! What a session writes by itself: leases, room in a table's log, and cells of counters.

use onesided_protocol::LogAddr;
use onesided_protocol::rpc::{CounterAction, ErrorCode, Op, Reply, RpcError};

use super::Call;
use crate::engine::Counted;

impl Call<'_> {
    /// What concerns counters.
    pub(super) fn counter(&self, key: &[u8], action: CounterAction) -> Result<Counted, RpcError> {
        if action == CounterAction::Find {
            // Before it can add: who is waited for when the session ends.
            self.peer.session.note_adder(self.peer.endpoint.peer_process());
        }
        self.table()?.counter(key, action)
    }

    /// What concerns leases.
    pub(super) fn lease(&self, op: &Op<'_>) -> Result<Reply<'static>, RpcError> {
        let session = &self.peer.session;
        let engine = &session.tenant.engine;
        match *op {
            Op::Lease { len_bytes } => {
                // Before it can write: who is waited for when the session ends.
                let process = self.peer.endpoint.peer_process().map_err(|error| {
                    let text = format!(
                        "no leases for this client: the server cannot watch its process ({error}), \
                         and would not know when it has ended; its updates go by RPC"
                    );
                    RpcError::new(ErrorCode::BadOption, text)
                })?;
                session.note_writer(process);
                let (addr, len_bytes) = engine.lease(session.id, self.table, len_bytes as usize)?;
                Ok(Reply::Leased { addr: addr.get(), len_bytes: len_bytes as u32 })
            }
            Op::Seal { addr } => {
                let addr = LogAddr::from_bits(addr);
                match addr.is_some_and(|addr| engine.seal(session.id, addr)) {
                    true => Ok(Reply::Sealed),
                    false => Err(unknown()),
                }
            }
            Op::Linked { key, addr } => {
                let addr = LogAddr::from_bits(addr).ok_or_else(unknown)?;
                let linked = engine.linked(session.id, self.table, key, addr)?;
                Ok(Reply::Linked { linked })
            }
            _ => Err(RpcError::new(ErrorCode::Malformed, "it concerns no lease")),
        }
    }
}

fn unknown() -> RpcError {
    RpcError::new(ErrorCode::BadOption, "the session has no lease there")
}
