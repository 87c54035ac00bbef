//! What the server retires: nothing new looks at it, and when nothing old can any more, the client
//! says so (design.md 7).

use std::sync::Arc;
use std::time::{Duration, Instant};

use onesided_fabric::RegionId;
use onesided_protocol::control::Retired;
use onesided_protocol::rules::{Rule, holds};

use crate::core::{Connection, UnderWay};
use crate::link::Link;

/// Where the system has no barrier: by then every store of other threads has long been seen.
const STORES_SEEN: Duration = Duration::from_secs(1);

/// Memory that the server wants back. Clients see to it by themselves; only simulations, which have
/// no threads, begin it by [`crate::Table::retire`].
pub struct Retirement {
    link: Arc<Link>,
    connection: Arc<Connection>,
    epoch: u64,
    retired: Vec<Retired>,
    stage: Stage,
}

impl std::fmt::Debug for Retirement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Retirement")
            .field("epoch", &self.epoch)
            .field("retired", &self.retired)
            .finish_non_exhaustive()
    }
}

enum Stage {
    /// Operations that began before may look at it.
    Operations {
        under_way: UnderWay,
        not_before: Option<Instant>,
    },
    /// What they left behind is to be posted before the memory may go.
    Commits,
    /// READs whose operations were given up may be under way, and what commits entries.
    Reads(Vec<u64>),
    Over,
}

impl Retirement {
    /// Nothing that begins from now on looks at what was retired.
    pub(crate) fn begin(
        link: &Arc<Link>,
        connection: &Arc<Connection>,
        epoch: u64,
        retired: Vec<Retired>,
    ) -> Self {
        link.forget(&retired, epoch);
        let (link, connection) = (Arc::clone(link), Arc::clone(connection));
        let stage = Stage::operations(&link);
        Self { link, connection, epoch, retired, stage }
    }

    /// The epoch to acknowledge when it is over.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether nothing can look at what was retired any more.
    #[must_use]
    pub fn is_over(&mut self) -> bool {
        if !holds(Rule::AcknowledgeWaits) {
            return true;
        }
        if let Stage::Operations { under_way, not_before } = &mut self.stage
            && not_before.is_none_or(|at| Instant::now() >= at)
            && under_way.is_over()
        {
            self.stage = Stage::Commits;
        }
        if matches!(self.stage, Stage::Commits) && self.connection.commit_and_read_behind() {
            self.stage = Stage::Reads(self.connection.reads_under_way());
        }
        if let Stage::Reads(reads) = &mut self.stage {
            // Perhaps nobody else waits for completions.
            self.connection.dispatch();
            reads.retain(|&read| self.connection.is_under_way(read));
            if reads.is_empty() {
                // What began before may have learnt of it once more.
                self.stage = match self.link.forget(&self.retired, self.epoch) {
                    true => Stage::operations(&self.link),
                    false => self.let_go(),
                };
            }
        }
        matches!(self.stage, Stage::Over)
    }
}

impl Retirement {
    /// What is attached and nobody looks at goes: its pages may be mapped here.
    fn let_go(&self) -> Stage {
        for retired in &self.retired {
            if let Retired::Region(id) = *retired {
                self.connection.endpoint().detach(RegionId(id));
            }
        }
        Stage::Over
    }
}

impl Stage {
    fn operations(link: &Link) -> Self {
        let shared = link.shared();
        let under_way = shared.operations.under_way(&shared.stats);
        let not_before = (!under_way.fenced).then(|| Instant::now() + STORES_SEEN);
        Self::Operations { under_way, not_before }
    }
}
