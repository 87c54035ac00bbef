//! Leases: asked for in time, and given back when they are full.
//!
//! The server's answers must be heard: nobody else knows a lease that it granted, and one that it
//! was asked to end may be somebody else's room by now. So when who began this waits no more, the
//! reactor goes on with it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use onesided_protocol::rpc::Op;

use crate::error::Error;
use crate::link::{Link, Rest};
use crate::rpc;
use crate::table::TableHandle;

/// An answer may come as late as so many operations time out.
const PATIENCE: u32 = 12;

/// Gives back full leases, and asks for another one if it is time, or for an entry of so many bytes
/// that found no room. Whether there is room now, as far as is known.
pub(super) async fn tend(table: &Arc<TableHandle>, len_bytes: usize) -> bool {
    let rest: Rest = Box::pin(tend_to_all(Arc::clone(table), len_bytes));
    let link = table.link();
    let all = ToItsEnd { link: Arc::clone(link), rest: Some(rest) };
    link.shared().ticker.timed(table.deadline("lease"), all).await.unwrap_or(false)
}

/// What goes on when it is dropped.
struct ToItsEnd {
    link: Arc<Link>,
    rest: Option<Rest>,
}

impl Future for ToItsEnd {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let Some(rest) = &mut self.rest else { return Poll::Ready(false) };
        let is_room = ready!(rest.as_mut().poll(cx));
        self.rest = None;
        Poll::Ready(is_room)
    }
}

impl Drop for ToItsEnd {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take() {
            self.link.leave(rest);
        }
    }
}

async fn tend_to_all(table: Arc<TableHandle>, len_bytes: usize) -> bool {
    let by = table.deadline("lease").times(PATIENCE);
    let Ok(open) = table.open(by).await else { return false };
    let Some(updates) = &open.updates else { return false };
    let extents = &updates.extents;
    let Some(_alone) = extents.begin_to_tend() else { return len_bytes == 0 };
    let full = extents.to_seal();
    // The last of their entries is committed before they are given back.
    open.connection.commit_now();
    for addr in full {
        let op = Op::Seal { addr: addr.get() };
        // Another session may have leased the same place.
        let session = Some(open.connection.session());
        match rpc::call_until(&table, by, session, &op, rpc::sealed).await {
            // It was not asked, and the next time it is.
            Err(Error::ConnectionLost(_) | Error::TimedOut { .. } | Error::Closed) => return false,
            // If nobody knows whether it was ended, it must not be asked for again.
            _ => extents.sealed(addr),
        }
    }
    let now_ns = open.connection.server_now().0;
    let Some(wanted_bytes) = extents.wanted(len_bytes, now_ns) else { return true };
    let op = Op::Lease { len_bytes: wanted_bytes as u32 };
    match rpc::call_until(&table, by, None, &op, rpc::leased).await {
        Ok(((addr, len_bytes), open)) => {
            let Some(updates) = &open.updates else { return false };
            // Reachable before the first entry is written there.
            let is_known = open.io().place(addr, len_bytes).await.is_ok_and(|at| at.is_some());
            let of = (updates.turn, open.connection.session().id);
            updates.extents.add(of, (addr, len_bytes), now_ns) && is_known
        }
        Err(_) => {
            // No memory, most often: for a while all goes by RPC.
            extents.refused();
            false
        }
    }
}
