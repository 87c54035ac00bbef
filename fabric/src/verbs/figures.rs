//! What a listener's side counts, for whoever watches a server.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ffi::pd::registered;
use super::queue::Core;
use crate::buffer::PoolUsage;

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
    /// Regions that a peer asked for and was not given.
    pub(super) regions_refused: AtomicU64,
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

/// All figures of a listener's queues, added up, and of the port that they are reached through:
/// names, units last, and values.
pub(super) fn list(cores: &[&Core], device: &str, port: u8) -> Vec<(&'static str, u64)> {
    let all = |figure: fn(&Core) -> u64| cores.iter().map(|core| figure(core)).sum();
    let counted = |counter: fn(&Counts) -> &AtomicU64| {
        cores.iter().map(|core| counter(&core.counts).load(Ordering::Relaxed)).sum()
    };
    let (registered_bytes, registrations) = registered();
    let made = all(|core| core.pool.usage().chunks_made);
    let taken = all(|core| core.pool.usage().taken);
    let mut list = vec![
        ("queue_pairs", all(|core| core.table.read().len() as u64)),
        ("queue_pairs_limit", all(|core| core.limits.max_endpoints as u64)),
        ("connects_accepted", counted(|counts| &counts.accepted)),
        ("connects_refused", counted(|counts| &counts.refused)),
        ("connects_unconfirmed", counted(|counts| &counts.unconfirmed)),
        ("access_errors", counted(|counts| &counts.access_errors)),
        ("regions_refused", counted(|counts| &counts.regions_refused)),
        ("queue_pair_errors", counted(|counts| &counts.queue_pair_errors)),
        ("receive_buffers", all(|core| core.limits.receive_depth as u64)),
        ("receive_buffers_posted", all(|core| core.srq.posted() as u64)),
        ("receive_limit_events", all(|core| core.flow.limit_events())),
        ("credits_granted", cores.iter().map(|core| core.flow.grant().into()).min().unwrap_or(0)),
        ("sends_in_flight", all(|core| core.in_flight.load(Ordering::Relaxed) as u64)),
        ("sends_limit", all(|core| core.limits.total_sends as u64)),
        ("registered_bytes", registered_bytes),
        ("registrations_made", registrations),
        ("buffer_bytes", all(|core| core.pool.usage().mapped_bytes as u64)),
        ("buffer_mappings_made", made),
        ("buffers_taken", taken),
        (
            "buffer_hits_per_mille",
            PoolUsage { mapped_bytes: 0, chunks_made: made, taken }.hits_per_mille(),
        ),
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
