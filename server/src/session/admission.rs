//! What the fabrics ask before they let a peer in or show it memory.

use std::sync::Arc;

use onesided_fabric::{Admission, Memory, Refused, RegionId, Rights};

use super::{NotAdmitted, Sessions};
use crate::stats::Stats;

/// Tickets from the sessions, regions from the engine of the session's tenant.
pub(crate) struct Gate {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) stats: Arc<Stats>,
}

impl Gate {
    /// As [`Admission::admit`], with the reason. Who comes too late is not counted among the
    /// refused.
    pub(crate) fn redeem(&self, ticket: &[u8; 32]) -> Result<u64, NotAdmitted> {
        self.sessions.admit(ticket).inspect_err(|refused| {
            if *refused != NotAdmitted::SessionOver {
                self.stats.refused_tickets.add(1);
            }
        })
    }
}

impl Admission for Gate {
    fn admit(&self, ticket: &[u8; 32]) -> Result<u64, Refused> {
        self.redeem(ticket).map_err(|refused| Refused(refused.to_string()))
    }

    fn domain(&self, context: u64) -> Option<u32> {
        self.sessions.tenant_of(context).map(|tenant| tenant.number)
    }

    fn region(&self, context: u64, region: RegionId) -> Option<(Arc<Memory>, Rights)> {
        let tenant = self.sessions.tenant_of(context)?;
        // Its own tenant's: within it, whoever may read a table may write it.
        tenant.engine.region_with_rights(region.0)
    }
}

/// The gate, as one fabric asks at it.
pub(crate) struct FabricGate {
    pub(crate) gate: Arc<Gate>,
    /// Clients over this fabric change words themselves.
    pub(crate) updates: bool,
}

impl Admission for FabricGate {
    fn admit(&self, ticket: &[u8; 32]) -> Result<u64, Refused> {
        self.gate.admit(ticket)
    }

    fn domain(&self, context: u64) -> Option<u32> {
        self.gate.domain(context)
    }

    fn region(&self, context: u64, region: RegionId) -> Option<(Arc<Memory>, Rights)> {
        let (memory, rights) = self.gate.region(context, region)?;
        Some((memory, if self.updates { rights } else { Rights::ReadOnly }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ServerConfig;
    use crate::clock::ServerClock;
    use crate::config::{TenantSpec, Token};
    use crate::session::Limits;
    use crate::tenant::Tenants;

    #[test]
    fn a_ticket_leads_to_its_own_tenant_s_domain_and_regions_only() {
        let tenant =
            |name: &str| TenantSpec { token: Token::new(name).ok(), ..TenantSpec::new(name) };
        let config = ServerConfig {
            tenants: vec![tenant("blue"), tenant("red")],
            tables: ["t", "t:tenant=blue"].map(|text| text.parse().expect(text)).to_vec(),
            ..ServerConfig::default()
        };
        let tenants = Tenants::start(&config, &Arc::new(ServerClock::default())).expect("starts");
        let lease = Duration::from_secs(60);
        let limits = Limits {
            max_sessions: 9,
            session_lease: lease,
            ticket_lease: lease,
            acknowledge: lease,
        };
        let stats = Arc::<Stats>::default();
        let sessions = Arc::new(Sessions::new(limits, Arc::clone(&stats)));
        let gate = Gate { sessions: Arc::clone(&sessions), stats };
        let enter = |token: &str| {
            let tenant = tenants.of_token(token).expect(token);
            let opened = sessions.open(tenant, (0, 0)).expect("a session");
            (gate.admit(&opened.ticket).expect("admitted"), opened.session)
        };
        for (number, token) in [(0, ""), (1, "blue"), (2, "red")] {
            let (context, session) = enter(token);
            assert_eq!(gate.domain(context), Some(number));
            for id in 0..2 {
                let offered = gate.region(context, RegionId(id)).map(|(memory, _)| memory);
                let own = session.tenant.engine.region(id);
                assert_eq!(offered.is_some(), own.is_some());
                assert!(offered.zip(own).is_none_or(|(offered, own)| Arc::ptr_eq(&offered, &own)));
            }
            sessions.end(&session, crate::stats::Ended::Goodbye);
            assert_eq!(gate.domain(context), None, "no endpoint of a session that is over");
            assert!(gate.region(context, RegionId(0)).is_none());
        }
        let catalogs: Vec<_> = tenants.engines().filter_map(|engine| engine.region(0)).collect();
        assert!(!Arc::ptr_eq(&catalogs[0], &catalogs[1]));
    }
}
