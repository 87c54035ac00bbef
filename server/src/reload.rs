//! What of the configuration can change while a server runs, and what needs a restart.

use std::sync::Arc;

use crate::config::ServerConfig;
use crate::server::Server;

impl Server {
    /// Takes over what can change at run time: tokens, whether tenants may manage tables, and
    /// `slow_request_ms`. Sessions that are open go on, also those of a token that is no more.
    /// Returns the keys that differ and need a restart.
    ///
    /// # Errors
    /// What cannot be is named, and nothing is changed.
    pub fn reload(&self, new: &ServerConfig) -> Result<Vec<&'static str>, String> {
        new.check()?;
        let core = self.core();
        let is_open = self.admin_addr().is_some_and(|addr| !addr.ip().is_loopback());
        if is_open && new.admin_token.is_none() {
            return Err("admin_token_file: other hosts can reach the admin port".to_owned());
        }
        core.admin_token.store(new.admin_token.clone().map(Arc::new));
        core.timing.set_slow(new.slow_request_ms);
        core.tenants.reload(new);
        Ok(needs_restart(&core.config, new))
    }
}

/// The keys that differ and cannot change at run time.
fn needs_restart(old: &ServerConfig, new: &ServerConfig) -> Vec<&'static str> {
    // No `..`: a new key does not compile until somebody has said whether it can change.
    let ServerConfig {
        listen,
        memory_bytes,
        value_max_bytes,
        tables,
        fabrics,
        rdma,
        rdma_device,
        rdma_mtu,
        cas_over,
        admin,
        admin_token: _,
        own_process: _,
        slow_request_ms: _,
        token: _,
        tenants: _,
        max_connections,
        max_handshakes,
        max_sessions,
        handshake_timeout_ms,
        session_lease_ms,
        ticket_lease_ms,
        acknowledge_ms,
        credits,
        spin_us,
        rendezvous_bytes,
        staging_loads: _,
        huge_pages,
        cleaning,
        shrink_after_s,
        region_bytes: _,
        segment_bytes: _,
        split_load_percent: _,
        registration_max_bytes: _,
        seed: _,
    } = new;
    let limits = |config: &ServerConfig| {
        let all = config.all_tenants();
        all.into_iter().map(|tenant| (tenant.name, tenant.memory_bytes)).collect::<Vec<_>>()
    };
    let differ = [
        ("listen", *listen != old.listen),
        ("memory", *memory_bytes != old.memory_bytes),
        ("value_max", *value_max_bytes != old.value_max_bytes),
        ("tables", *tables != old.tables),
        ("fabrics", *fabrics != old.fabrics),
        ("rdma", *rdma != old.rdma),
        ("rdma_device", *rdma_device != old.rdma_device),
        ("rdma_mtu", *rdma_mtu != old.rdma_mtu),
        ("cas_over", *cas_over != old.cas_over),
        ("admin", *admin != old.admin),
        ("tenant", limits(new) != limits(old)),
        ("max_connections", *max_connections != old.max_connections),
        ("max_handshakes", *max_handshakes != old.max_handshakes),
        ("max_sessions", *max_sessions != old.max_sessions),
        ("handshake_timeout_ms", *handshake_timeout_ms != old.handshake_timeout_ms),
        ("session_lease_ms", *session_lease_ms != old.session_lease_ms),
        ("ticket_lease_ms", *ticket_lease_ms != old.ticket_lease_ms),
        ("acknowledge_ms", *acknowledge_ms != old.acknowledge_ms),
        ("credits", *credits != old.credits),
        ("spin_us", *spin_us != old.spin_us),
        ("rendezvous", *rendezvous_bytes != old.rendezvous_bytes),
        ("huge_pages", *huge_pages != old.huge_pages),
        ("cleaning", *cleaning != old.cleaning),
        ("shrink_after_s", *shrink_after_s != old.shrink_after_s),
    ];
    differ.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{TenantSpec, Token};

    #[test]
    fn only_what_cannot_change_needs_a_restart() {
        let old = ServerConfig::default();
        let token = Some(Token::new("x").expect("a token"));
        let changed = ServerConfig {
            token: token.clone(),
            admin_token: token,
            slow_request_ms: 7,
            ..old.clone()
        };
        assert!(needs_restart(&old, &changed).is_empty());
        let changed = ServerConfig {
            memory_bytes: 1 << 33,
            tenants: vec![TenantSpec::new("blue")],
            ..old.clone()
        };
        assert_eq!(needs_restart(&old, &changed), ["memory", "tenant"]);
    }
}
