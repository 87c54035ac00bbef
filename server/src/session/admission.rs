//! What the fabrics ask before they let a peer in or show it memory.

use std::sync::Arc;

use onesided_fabric::{Admission, Memory, Refused, RegionId, Rights};

use super::Sessions;
use crate::stats::Stats;

/// Tickets from the sessions, regions from the engine of the session's tenant.
pub(crate) struct Gate {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) stats: Arc<Stats>,
}

impl Admission for Gate {
    fn admit(&self, ticket: &[u8; 32]) -> Result<u64, Refused> {
        self.sessions.admit(ticket).inspect_err(|_| self.stats.refused_tickets.add(1))
    }

    fn domain(&self, context: u64) -> Option<u32> {
        self.sessions.tenant_of(context).map(|tenant| tenant.number)
    }

    fn region(&self, context: u64, region: RegionId) -> Option<(Arc<Memory>, Rights)> {
        let tenant = self.sessions.tenant_of(context)?;
        // Clients of rpc tables only ever read.
        Some((tenant.engine.region(region.0)?, Rights::ReadOnly))
    }
}
