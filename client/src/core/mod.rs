//! One connection and what runs on it: no threads, no runtime, no clock but `Instant`. Who holds
//! a [`Connection`] without threads (a simulation) pumps [`Connection::dispatch`].
//!
//! | module | what |
//! |---|---|
//! | `connection` | one session's life on one server: who polls, who is told, when it is lost |
//! | `pending` | what was asked and not answered yet: a bounded slab |
//! | `slots` | permits for its places |
//! | `call` | RPC: encode, post, wait |
//! | `atomic` | CAS and FAA |
//! | `spin` | when polling for it is of no use |
//! | `reads` | READs behind one doorbell |
//! | `operations` | what is under way, and when it is over |
//! | `swaps` | WRITE and compare-and-swap behind one doorbell |
//! | `commits` | what commits their entries: not waited for |
//! | `polled` | a READ, CAS or FAA by a thread that waits itself |
//! | `session` | sequence numbers of mutations |
//! | `staging` | memory for values that do not fit into a message |
//! | `lends` | buffers of callers' that the server READs |
//! | `clock` | the server's clock, with an error bound |
//! | `time` | deadlines without a runtime's timers |
//! | `driver` | a blocked thread polls the completion queue itself |

mod atomic;
mod call;
mod clock;
mod commits;
mod connection;
mod driver;
#[cfg(test)]
pub(crate) mod fake;
mod lends;
mod operations;
mod pending;
mod polled;
mod reads;
mod session;
mod slots;
mod spin;
mod staging;
mod swaps;
mod time;

pub(crate) use call::{Answered, CallError, Outgoing};
pub use clock::ServerClock;
pub use connection::Connection;
pub(crate) use connection::{Parts, Shared};
pub(crate) use driver::{block_on, is_driver};
pub(crate) use operations::{Begun, UnderWay};
pub(crate) use session::{SequenceTicket, Session};
pub(crate) use staging::{Keep, NoPlace};
pub(crate) use swaps::{NoWord, Posted, Swap};
pub(crate) use time::{Deadline, TICK, TimedOut};
