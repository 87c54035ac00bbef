//! The fabrics of a server: which of those that the configuration names can be had.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use onesided_fabric::verbs::{self, VerbsError};
use onesided_fabric::{CompletionQueue, FabricKind, Rdma, shm, tcp};
use onesided_protocol::control::{FabricName, FabricOffer};
use onesided_protocol::limits::{
    FABRIC_BLOB_MAX_BYTES, INLINE_MAX_BYTES, KEY_MAX_BYTES, MESSAGE_OVERHEAD_BYTES,
    STAGING_SPARE_BYTES, inline_message_max_bytes,
};

use crate::config::{ServerConfig, fabric_name};
use crate::server::StartError;
use crate::session::Gate;

/// A message must hold the longest key; longer values travel through staging memory.
const ONE_SIDED_MESSAGE_BYTES: usize = KEY_MAX_BYTES + INLINE_MAX_BYTES + MESSAGE_OVERHEAD_BYTES;
/// Unfinished messages of all tcp connections together, beyond one of full length.
const TCP_RECEIVE_BYTES: usize = 256 << 20;

/// Length of a session's staging memory where it has some.
pub(crate) fn staging_bytes(config: &ServerConfig) -> usize {
    config.value_max_bytes + STAGING_SPARE_BYTES
}

/// The fabrics that were started.
#[derive(Default)]
pub(crate) struct Fabrics {
    pub(crate) tcp: Option<tcp::Acceptor>,
    pub(crate) shm: Option<shm::Listener>,
    pub(crate) verbs: Option<Arc<verbs::Listener>>,
    /// One for each fabric; of verbs one for each tenant.
    pub(crate) queues: Vec<(FabricKind, Arc<dyn CompletionQueue>)>,
    pub(crate) offers: Vec<FabricOffer>,
}

impl Fabrics {
    /// Starts them in the order of the configuration. What cannot be had is an error, but for
    /// verbs under `prefer`: the server goes on without, if it has another one and no device was
    /// asked for.
    pub(crate) fn start(
        config: &ServerConfig,
        gate: &Arc<Gate>,
        addr: SocketAddr,
    ) -> Result<Self, StartError> {
        let mut fabrics = Self::default();
        let mut without = None;
        for &kind in &config.fabrics {
            if fabrics.offers.iter().any(|offer| offer.kind == kind) {
                continue;
            }
            let started = match kind {
                FabricName::Shm => fabrics.start_shm(config, gate, addr),
                FabricName::Tcp => fabrics.start_tcp(config),
                FabricName::Verbs if config.rdma == Rdma::Never => continue,
                FabricName::Verbs => fabrics.start_verbs(config, gate, addr),
            };
            match started {
                Ok(blob) => fabrics.offers.push(FabricOffer { kind, blob }),
                Err(source) if kind == FabricName::Verbs && may_go_without_verbs(config) => {
                    without = Some(source);
                }
                Err(source) => return Err(fabric_error(kind, source)),
            }
        }
        match without {
            Some(source) if fabrics.offers.is_empty() => {
                return Err(fabric_error(FabricName::Verbs, source));
            }
            Some(reason) => note_no_verbs(config, &reason),
            None => {}
        }
        Ok(fabrics)
    }

    /// Listens for RDMA connections, at the number that TCP has in its own space of ports, with a
    /// protection domain for each tenant. Gives what clients need to find the listener.
    fn start_verbs(
        &mut self,
        config: &ServerConfig,
        gate: &Arc<Gate>,
        addr: SocketAddr,
    ) -> io::Result<Vec<u8>> {
        let limits = verbs::Limits {
            max_endpoints: config.max_sessions,
            credits: config.credits as usize,
            max_message_bytes: ONE_SIDED_MESSAGE_BYTES,
            pending_handshakes: config.max_handshakes,
            handshake_timeout_ms: config.handshake_timeout_ms,
            path_mtu: config.rdma_mtu,
            ..verbs::Limits::default()
        };
        let admission = Arc::clone(gate);
        let tenants = config.all_tenants().len();
        let port = addr.port();
        let (listener, queues) =
            verbs::Listener::start_domains(&config.rdma_device, port, limits, admission, tenants)?;
        let blob = listener.blob(FABRIC_BLOB_MAX_BYTES);
        self.verbs = Some(Arc::new(listener));
        self.queues.extend(queues.into_iter().map(|queue| (FabricKind::Verbs, queue)));
        Ok(blob)
    }

    fn start_shm(
        &mut self,
        config: &ServerConfig,
        gate: &Arc<Gate>,
        addr: SocketAddr,
    ) -> io::Result<Vec<u8>> {
        let limits = shm::Limits {
            max_endpoints: config.max_sessions,
            credits: config.credits as usize,
            staging_bytes: staging_bytes(config),
            // Slots cost pages only where they are used.
            max_message_bytes: ONE_SIDED_MESSAGE_BYTES,
            pending_handshakes: config.max_handshakes,
            handshake_timeout_ms: config.handshake_timeout_ms,
            loads_allowed: config.staging_loads,
        };
        let name = format!("onesided-{}-{}", std::process::id(), addr.port());
        let admission = Arc::clone(gate);
        let (listener, queue) = shm::Listener::start(&name, limits, admission)?;
        let blob = listener.blob();
        self.shm = Some(listener);
        self.queues.push((FabricKind::Shm, queue));
        Ok(blob)
    }

    fn start_tcp(&mut self, config: &ServerConfig) -> io::Result<Vec<u8>> {
        let max_message_bytes = inline_message_max_bytes(config.value_max_bytes);
        let limits = tcp::Limits {
            max_message_bytes,
            max_endpoints: config.max_connections,
            total_receive_bytes: TCP_RECEIVE_BYTES + max_message_bytes,
            ..tcp::Limits::default()
        };
        let (acceptor, queue) = tcp::Acceptor::new(limits)?;
        self.tcp = Some(acceptor);
        self.queues.push((FabricKind::Tcp, queue));
        Ok(Vec::new())
    }
}

fn fabric_error(kind: FabricName, source: io::Error) -> StartError {
    StartError::Fabric { fabric: fabric_name(kind), source }
}

/// A device or an MTU that was asked for and cannot be had is never passed over.
fn may_go_without_verbs(config: &ServerConfig) -> bool {
    let nothing_asked_for =
        config.rdma_device == verbs::Options::default() && config.rdma_mtu == verbs::PathMtu::AUTO;
    config.rdma == Rdma::Prefer && nothing_asked_for
}

/// One line: a warning if verbs was asked for by name, or is there and does not work.
fn note_no_verbs(config: &ServerConfig, reason: &io::Error) {
    let asked_for = config.fabrics != ServerConfig::default().fabrics;
    if asked_for || !is_absent(reason) {
        tracing::warn!(%reason, "going on without verbs; --rdma require makes this an error");
    } else {
        tracing::info!(%reason, "no verbs here");
    }
}

/// Whether this machine, or this build, simply has no RDMA.
fn is_absent(error: &io::Error) -> bool {
    let verbs = error.get_ref().and_then(|inner| inner.downcast_ref());
    match verbs {
        Some(VerbsError::Library { .. } | VerbsError::Kernel(_) | VerbsError::NoDevice) => true,
        Some(_) => false,
        None => error.kind() == io::ErrorKind::Unsupported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_was_asked_for_is_not_passed_over() {
        let mut config = ServerConfig::default();
        assert!(may_go_without_verbs(&config));
        config.rdma_device = "mlx5_9".parse().expect("a name");
        assert!(!may_go_without_verbs(&config));
    }

    #[test]
    fn a_machine_without_rdma_is_told_from_one_on_which_it_fails() {
        assert!(is_absent(&VerbsError::NoDevice.into()));
        assert!(is_absent(&io::Error::new(io::ErrorKind::Unsupported, "not built")));
        assert!(!is_absent(&VerbsError::Choice("no GID".to_owned()).into()));
        assert!(!is_absent(&io::Error::other("out of memory")));
    }
}
