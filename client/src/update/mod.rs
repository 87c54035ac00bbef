//! PUT without asking (design.md 6): in a table of mode `cas`, the entry of a key that is there is
//! replaced by WRITE and compare-and-swap.
//!
//! | module | what |
//! |---|---|
//! | this | which PUTs go this way, and what they need from the server |
//! | `now` | where WRITE and compare-and-swap are a store each |
//! | `posted` | where they are work requests: both behind one doorbell |
//! | `extents` | room that the server has leased |
//! | `entry` | the bytes of an entry |
//! | `tend` | asking for leases in time, and giving them back |
//! | `known` | where entries of keys are that were updated lately |
//!
//! The new entry is WRITTEN pending, and the compare-and-swap that forwards the old one to it is
//! the moment of the update: that is waited for, once. Afterwards the new one is committed, by
//! compare-and-swap again, since somebody else may have done so and replaced it. Whoever loses
//! the first one follows what it brought to the newest entry, and tries again in the same place.
//! All else, and whatever this cannot decide in some tries, is done by RPC: the server follows too.

mod entry;
mod extents;
mod known;
mod now;
mod posted;
mod tend;

use std::sync::Arc;

use onesided_fabric::FabricKind;
use onesided_protocol::control::{FabricName, TableInfo, UpdateMode};
use onesided_protocol::rpc::{Expect, Op, Ttl};

use crate::core::{Connection, Outgoing, is_driver};
use crate::error::Error;
use crate::options::PutOptions;
use crate::read::{self, Current};
use crate::stats::Counter;
use crate::table::{OpenTable, TableHandle};
use crate::value::Version;

pub(crate) use extents::Extents;
use known::{Known, Remembered};
use posted::InDoubt;
use tend::tend;

/// How often a PUT tries before it asks the server.
const TRIES: usize = 8;
/// After so many updates of a key by this client its slot is repaired: who reads it follows two
/// forwards at most.
const REPAIR_EVERY: u32 = 64;

/// What a client has of a table that it updates, on one connection.
pub(crate) struct Updates {
    known: Known,
    pub(crate) extents: Arc<Extents>,
    /// The connection's turn there.
    turn: u64,
}

impl Updates {
    /// `None`: all updates of this table go by RPC.
    pub(crate) fn of(
        connection: &Connection,
        info: &TableInfo,
        before: Option<Arc<Extents>>,
    ) -> Option<Self> {
        let may = may_update(connection, info) && info.options.update == UpdateMode::Cas;
        may.then(|| {
            let extents = before.unwrap_or_default();
            let turn = extents.go_on(connection.session().id);
            Self { known: Known::new(info.hash_seed), extents, turn }
        })
    }
}

/// Whether the session may change words of the table over the connection's fabric: those of
/// entries, and of counters. The simulation is whichever fabric the server names.
#[inline]
pub(crate) fn may_update(connection: &Connection, info: &TableInfo) -> bool {
    matches!(
        (info.updates_over, connection.caps().kind),
        (Some(FabricName::Shm), FabricKind::Shm)
            | (Some(FabricName::Verbs), FabricKind::Verbs)
            | (Some(_), FabricKind::Sim)
    )
}

/// A PUT that may go one-sidedly.
#[derive(Clone, Copy)]
struct Put<'a> {
    key: &'a [u8],
    value: &'a [u8],
    options: PutOptions,
    /// Seconds on the server's clock, 0 = never.
    expiry_s: u32,
}

impl<'a> Put<'a> {
    /// `None`: the server has to do it.
    fn of(open: &OpenTable, key: &'a [u8], value: &'a [u8], options: PutOptions) -> Option<Self> {
        let seconds = match options.ttl {
            Ttl::Never => None,
            Ttl::Seconds(seconds) => Some(seconds),
            Ttl::TableDefault => match open.default_ttl_s() {
                0 => None,
                seconds => Some(seconds),
            },
        };
        let now_s = || u32::try_from(open.connection.server_now().0 / 1_000_000_000);
        let expiry_s = match seconds {
            None => 0,
            Some(seconds) => now_s().ok()?.saturating_add(seconds).max(1),
        };
        let fits = entry::fits(key, value) && options.expect != Expect::Absent;
        fits.then_some(Self { key, value, options, expiry_s })
    }

    /// Whether this entry may be replaced without a look at the server's clock: one that has
    /// expired, or may have by the time that it is replaced, is none to a condition.
    fn may_replace(&self, open: &OpenTable, current: &Current) -> bool {
        let expect = self.options.expect;
        let is_met = match expect {
            Expect::Version(version) => version == current.version,
            Expect::Any | Expect::Present => true,
            Expect::Absent => false,
        };
        let lives = current.expiry_s == 0 || expect == Expect::Any && open.is_alive(current);
        is_met && lives
    }
}

/// What came of a try.
enum Tried {
    /// The update has taken effect.
    Done(Done),
    /// There is no room for the entry.
    NoRoom,
    /// Where the key's entry is takes more than a look.
    LookUp,
    /// The server has to do it.
    AskServer,
}

/// An update that has taken effect, and what is to be done about it some time.
#[derive(Clone, Copy)]
struct Done {
    version: Version,
    /// Ask for the next lease, and give back what is full.
    tend: bool,
    /// The slot of its key lags far behind.
    repair: bool,
}

/// Stores a value one-sidedly; `None` if the server has to do it.
pub(crate) async fn put(
    table: &Arc<TableHandle>,
    key: &[u8],
    value: &[u8],
    options: PutOptions,
) -> Result<Option<Version>, Error> {
    // At most a lookup, then a lease.
    for _ in 0..3 {
        let tried = match put_now(table, key, value, options) {
            Some(Ok(tried)) => tried,
            Some(Err(in_doubt)) => Box::pin(posted::in_doubt(table, in_doubt, key)).await?,
            None => Box::pin(posted::put(table, key, value, options)).await?,
        };
        match tried {
            Tried::AskServer => return Ok(None),
            Tried::LookUp => {
                if !Box::pin(look_up(table, key)).await {
                    return Ok(None);
                }
            }
            Tried::NoRoom => {
                if !Box::pin(tend(table, entry::len_bytes(key, value))).await {
                    return Ok(None);
                }
            }
            Tried::Done(done) => {
                table.count(Counter::OneSidedPuts, 1);
                if done.tend || done.repair {
                    Box::pin(after(table, key, done)).await;
                }
                return Ok(Some(done.version));
            }
        }
    }
    Ok(None)
}

/// A try that takes no future: by loads, or by a thread that waits itself. `None`: it takes one,
/// or there is no connection just now; nothing was done.
fn put_now(
    table: &TableHandle,
    key: &[u8],
    value: &[u8],
    options: PutOptions,
) -> Option<Result<Tried, InDoubt>> {
    table.with_now(|open, own| {
        let ask = Some(Ok(Tried::AskServer));
        let Some(updates) = &open.updates else { return ask };
        let Some(put) = Put::of(open, key, value, options) else { return ask };
        match open.connection.loads() {
            Some(loads) => Some(Ok(now::put(open, own, loads, updates, put))),
            None if is_driver() => posted::put_waiting(open, own, updates, put),
            None => None,
        }
    })
}

/// Looks for a key's entry with all detours, and remembers it. Whether it was found.
async fn look_up(table: &TableHandle, key: &[u8]) -> bool {
    let Ok(open) = table.open(table.deadline("put")).await else { return false };
    let Some(updates) = &open.updates else { return false };
    // What it looks at must be usable after this.
    let _begun = table.begin();
    if !open.is_usable() {
        return false;
    }
    let Ok(Some(current)) = read::current(&open, key).await else { return false };
    let tag = updates.known.tag(open.view.hash(key), key);
    updates.known.put(tag, Remembered { current, updates: 0 });
    true
}

/// The server points the slot at the newest entry of whatever key it looks at. Nobody waits for
/// that; if it is not asked now, it is after as many updates again.
fn ask_for_repair(table: &TableHandle, key: &[u8]) {
    let by = table.deadline("repair");
    table.with_now(|open, _| {
        // Before the server meets it: then the next update finds what it expects.
        open.connection.commit_now();
        let op = Op::Get { key, landing: None };
        let outgoing = Outgoing { sequence: 0, table: open.info.id, op: &op };
        Some(open.connection.tell(outgoing, by))
    });
}

/// What an update leaves to be done. Whether it comes through or not, the update has taken effect.
async fn after(table: &Arc<TableHandle>, key: &[u8], done: Done) {
    if done.tend {
        tend(table, 0).await;
    }
    if done.repair {
        ask_for_repair(table, key);
    }
}
