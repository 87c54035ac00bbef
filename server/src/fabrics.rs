//! The fabrics of a server: which of those that the configuration names can be had.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use onesided_fabric::verbs::{self, VerbsError};
use onesided_fabric::{CompletionQueue, FabricKind, Rdma, shm, tcp};
use onesided_protocol::control::{FabricName, FabricOffer};
use onesided_protocol::limits::{
    INLINE_MAX_BYTES, KEY_MAX_BYTES, MESSAGE_OVERHEAD_BYTES, STAGING_SPARE_BYTES,
    inline_message_max_bytes,
};

use crate::config::{ServerConfig, fabric_name};
use crate::rdma::{Started, is_wanted};
use crate::server::StartError;
use crate::session::{FabricGate, Gate};

/// A message must hold the longest key; longer values travel through staging memory.
const ONE_SIDED_MESSAGE_BYTES: usize = KEY_MAX_BYTES + INLINE_MAX_BYTES + MESSAGE_OVERHEAD_BYTES;
/// Unfinished messages of all tcp connections together, beyond one of full length.
const TCP_RECEIVE_BYTES: usize = 256 << 20;
/// Threads that serve tcp connections, at most.
const TCP_POLLERS_MAX: usize = 4;

/// Length of a session's staging memory where it has some.
pub(crate) fn staging_bytes(config: &ServerConfig) -> usize {
    config.value_max_bytes + STAGING_SPARE_BYTES
}

/// The fabrics that were started.
#[derive(Default)]
pub(crate) struct Fabrics {
    pub(crate) tcp: Option<tcp::Acceptor>,
    pub(crate) shm: Option<shm::Listener>,
    /// What came of it, if it was to be started.
    pub(crate) verbs: Option<io::Result<Started>>,
    pub(crate) queues: Vec<(FabricKind, Arc<dyn CompletionQueue>)>,
    /// All but verbs, which comes and goes.
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
        for &kind in &config.fabrics {
            let is_there = fabrics.offers.iter().any(|offer| offer.kind == kind);
            if is_there || kind == FabricName::Verbs {
                continue;
            }
            let started = match kind {
                FabricName::Shm => fabrics.start_shm(config, gate, addr),
                FabricName::Tcp => fabrics.start_tcp(config),
                FabricName::Verbs => continue,
            };
            match started {
                Ok(blob) => fabrics.offers.push(FabricOffer { kind, blob }),
                Err(source) => return Err(fabric_error(kind, source)),
            }
        }
        if is_wanted(config) {
            let started = start_verbs(config, gate, addr);
            match &started {
                Ok(_) => {}
                Err(reason) if may_go_without_verbs(config) && !fabrics.offers.is_empty() => {
                    note_no_verbs(config, reason);
                }
                Err(_) => {
                    return started
                        .map(|_| fabrics)
                        .map_err(|source| fabric_error(FabricName::Verbs, source));
                }
            }
            fabrics.verbs = Some(started);
        }
        Ok(fabrics)
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
        let admission = of_fabric(config, gate, FabricName::Shm);
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
        let (acceptor, queues) = tcp::Acceptor::new(limits, tcp_pollers())?;
        self.tcp = Some(acceptor);
        self.queues.extend(queues.into_iter().map(|queue| (FabricKind::Tcp, queue)));
        Ok(Vec::new())
    }
}

/// As many as processors: one thread alone has work all the time where clients are many, while
/// other processors idle.
fn tcp_pollers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(TCP_POLLERS_MAX)
}

/// What a fabric asks before it shows memory to a peer.
fn of_fabric(config: &ServerConfig, gate: &Arc<Gate>, fabric: FabricName) -> Arc<FabricGate> {
    let updates = config.updates_over() == Some(fabric);
    Arc::new(FabricGate { gate: Arc::clone(gate), updates })
}

/// Listens for RDMA connections, at the number that TCP has in its own space of ports, with a
/// protection domain for each tenant.
pub(crate) fn start_verbs(
    config: &ServerConfig,
    gate: &Arc<Gate>,
    addr: SocketAddr,
) -> io::Result<Started> {
    let limits = verbs::Limits {
        max_endpoints: config.max_sessions,
        credits: config.credits as usize,
        max_message_bytes: ONE_SIDED_MESSAGE_BYTES,
        pending_handshakes: config.max_handshakes,
        handshake_timeout_ms: config.handshake_timeout_ms,
        path_mtu: config.rdma_mtu,
        registration_max_bytes: config.registration_max_bytes,
        ..verbs::Limits::default()
    };
    let admission = of_fabric(config, gate, FabricName::Verbs);
    let (device, tenants) = (&config.rdma_device, config.all_tenants().len());
    Ok(verbs::Listener::start_domains(device, addr.port(), limits, admission, tenants)?)
}

/// How long regions are: as configured, or what the device takes as one piece, if verbs is wanted
/// and there is a device.
pub(crate) fn region_bytes(config: &ServerConfig) -> usize {
    let asked = match is_wanted(config) {
        true => verbs::registration_max_bytes(&config.rdma_device).ok(),
        false => None,
    };
    asked.map_or(config.region_bytes, |max_bytes| region_bytes_within(config, max_bytes))
}

/// In whole segments, at least one.
fn region_bytes_within(config: &ServerConfig, max_bytes: u64) -> usize {
    let max_bytes = max_bytes.min(config.registration_max_bytes);
    let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    let whole = max_bytes / config.segment_bytes * config.segment_bytes;
    config.region_bytes.min(whole.max(config.segment_bytes))
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

/// Whether trying again cannot help: libraries do not come while a process runs.
pub(crate) fn is_final(error: &io::Error) -> bool {
    let verbs = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(verbs, Some(VerbsError::Library { .. }))
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
    fn no_region_is_longer_than_what_the_device_takes() {
        let config = ServerConfig { segment_bytes: 1 << 20, ..ServerConfig::default() };
        let within = |max_bytes| region_bytes_within(&config, max_bytes);
        let (mib, most) = (1 << 20, config.region_bytes);
        assert_eq!([u64::MAX, most as u64, most as u64 - 1].map(within), [most, most, most - mib]);
        assert_eq!([7 << 19, 2 << 20, 1 << 20].map(within), [3 * mib, 2 * mib, mib]);
        assert_eq!(within(1 << 19), mib, "no shorter than a segment: the device will refuse it");
        let short = ServerConfig { registration_max_bytes: 4 << 20, ..config };
        assert_eq!(region_bytes_within(&short, u64::MAX), 4 * mib);
    }

    #[test]
    fn a_machine_without_rdma_is_told_from_one_on_which_it_fails() {
        assert!(is_absent(&VerbsError::NoDevice.into()));
        assert!(is_absent(&io::Error::new(io::ErrorKind::Unsupported, "not built")));
        assert!(!is_absent(&VerbsError::Choice("no GID".to_owned()).into()));
        assert!(!is_absent(&io::Error::other("out of memory")));
    }
}
