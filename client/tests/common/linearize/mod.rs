//! Linearizability of single-key histories: a store of one key as a sequential object, a search
//! for an order of the operations that explains every answer, and a counterexample that a person
//! can read.
//!
//! The search is Wing and Gong's, with Lowe's memory of configurations seen ("Testing for
//! linearizability", 2017): exponential at worst, linear where few operations overlap.

#![allow(dead_code, unused_imports, reason = "each test binary uses its own part")]
#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod model;
mod report;
mod search;

pub use model::{Content, Expect, Op, Ret, State};
pub use report::{Failure, check};
pub use search::{Verdict, search};

use serde::{Deserialize, Serialize};

/// One operation of a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// Who called; only for the report.
    pub client: u32,
    /// When it was called, on a clock that all clients share.
    pub call: u64,
    /// When it returned, and what. `None`: unknown. It may take effect at any time after the call,
    /// or never.
    pub answer: Option<(u64, Ret)>,
    /// What was asked.
    pub op: Op,
}
