//! What a server has seen go wrong with its RDMA connections, as `doctor` tells it.

use onesided_fabric::verbs::doctor::{Finding, Status};

/// A finding of a server's counters; nothing where the server has no RDMA device.
pub(crate) fn finding(stats: &[(String, u64)]) -> Option<Finding> {
    let counted = |name: &str| stats.iter().find(|(other, _)| other == name).map(|(_, n)| *n);
    let of_queue_pairs = counted("verbs_access_errors")?;
    // Not every device counts, or says which queue pair it was.
    let of_port = counted("verbs_port_access_errors").unwrap_or(0);
    let access = of_queue_pairs.max(of_port);
    let all = [
        ("queue pairs in error for other reasons", "verbs_queue_pair_errors"),
        ("regions refused", "verbs_regions_refused"),
        ("receivers not ready, sent again by the device", "verbs_port_receiver_not_ready_sent"),
        ("retries exceeded", "verbs_port_retries_exceeded"),
    ];
    let told = all.iter().filter_map(|(title, name)| Some(format!(", {title} {}", counted(name)?)));
    let found = format!("access errors {access}{}", told.collect::<String>());
    let (status, advice) = match access {
        0 => (Status::Ok, None),
        _ => {
            let advice = "clients have reached for memory that is not theirs, and lost their \
                          connections: the server's log has the queue pairs; look for programs \
                          that are none of yours";
            (Status::Warning, Some(advice.to_owned()))
        }
    };
    Some(Finding { subject: "server's RDMA errors".to_owned(), status, found, advice })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(stats: &[(&str, u64)]) -> Option<Finding> {
        let stats: Vec<_> = stats.iter().map(|&(name, n)| (name.to_owned(), n)).collect();
        finding(&stats)
    }

    #[test]
    fn a_server_without_a_device_has_no_such_errors() {
        assert!(of(&[("sessions", 3)]).is_none());
    }

    #[test]
    fn access_errors_are_a_warning_whoever_counts_them() {
        let fine = of(&[("verbs_access_errors", 0), ("verbs_queue_pair_errors", 7)]);
        let fine = fine.expect("a finding");
        assert_eq!((fine.status, fine.advice), (Status::Ok, None));
        assert_eq!(fine.found, "access errors 0, queue pairs in error for other reasons 7");
        for stats in [
            &[("verbs_access_errors", 2)][..],
            &[("verbs_access_errors", 0), ("verbs_port_access_errors", 2)],
        ] {
            let found = of(stats).expect("a finding");
            assert_eq!((found.status, found.found.as_str()), (Status::Warning, "access errors 2"));
            assert!(found.advice.is_some());
        }
    }
}
