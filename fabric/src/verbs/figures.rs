//! What a listener's side counts, for whoever watches a server.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ffi::pd::registered;
use super::queue::Core;

/// Counted where it happens.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Peers that were let in.
    pub(super) accepted: AtomicU64,
    /// Peers that were not, for want of a ticket, of room, or of sense.
    pub(super) refused: AtomicU64,
    /// Peers that were let in and did not confirm in time.
    pub(super) unconfirmed: AtomicU64,
    /// Queue pairs that the device put into error since their peer has reached for memory that is
    /// not its own. Not every device says so: soft-RoCE does not.
    pub(super) access_errors: AtomicU64,
    /// Queue pairs that the device put into error for any other reason.
    pub(super) queue_pair_errors: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What devices count of a whole port, by the names that drivers have for it.
const OF_PORT: [(&str, &[&str]); 4] = [
    ("port_receiver_not_ready_sent", &["send_rnr_err", "out_of_buffer"]),
    ("port_receiver_not_ready_received", &["rcvd_rnr_err", "rnr_nak_retry_err"]),
    ("port_access_errors", &["resp_remote_access_errors"]),
    ("port_retries_exceeded", &["retry_exceeded_err", "local_ack_timeout_err"]),
];

/// All figures of a queue and the port that it is reached through: names, units last, and values.
pub(super) fn list(core: &Core, device: &str, port: u8) -> Vec<(&'static str, u64)> {
    let counts = &core.counts;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (registered_bytes, registrations) = registered();
    let buffers = core.pool.usage();
    let mut list = vec![
        ("queue_pairs", core.table.read().len() as u64),
        ("queue_pairs_limit", core.limits.max_endpoints as u64),
        ("connects_accepted", get(&counts.accepted)),
        ("connects_refused", get(&counts.refused)),
        ("connects_unconfirmed", get(&counts.unconfirmed)),
        ("access_errors", get(&counts.access_errors)),
        ("queue_pair_errors", get(&counts.queue_pair_errors)),
        ("receive_buffers", core.limits.receive_depth as u64),
        ("receive_buffers_posted", core.srq.posted() as u64),
        ("receive_limit_events", core.flow.limit_events()),
        ("credits_granted", core.flow.grant().into()),
        ("sends_in_flight", core.in_flight.load(Ordering::Relaxed) as u64),
        ("sends_limit", core.limits.total_sends as u64),
        ("registered_bytes", registered_bytes),
        ("registrations_made", registrations),
        ("buffer_bytes", buffers.mapped_bytes as u64),
        ("buffer_mappings_made", buffers.chunks_made),
    ];
    let folder = format!("/sys/class/infiniband/{device}/ports/{port}/hw_counters");
    list.extend(of_port(Path::new(&folder)));
    list
}

/// What the device counts; nothing where it counts nothing of the kind.
fn of_port(folder: &Path) -> Vec<(&'static str, u64)> {
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok();
    let find = |names: &[&str]| names.iter().find_map(|name| read(name));
    OF_PORT.iter().filter_map(|(name, files)| Some((*name, find(files)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_one_name_whatever_the_driver() {
        let folder = tempfile::tempdir().unwrap();
        assert!(of_port(folder.path()).is_empty());
        std::fs::write(folder.path().join("out_of_buffer"), "17\n").unwrap();
        std::fs::write(folder.path().join("retry_exceeded_err"), "no number").unwrap();
        assert_eq!(of_port(folder.path()), [("port_receiver_not_ready_sent", 17)]);
    }
}
