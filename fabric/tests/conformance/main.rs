//! One suite of cases over every backend: what design.md 8 promises, and what the contract of
//! `onesided_fabric` says about completions, limits and ends.

mod backends;
mod far;
mod messages;
mod one_sided;
mod rig;
mod two_sided;

use onesided_fabric::sim;

use backends::{Shm, Sim, Tcp, Verbs};
use far::{FAR, Far};
use rig::Rig;

/// Seeds that each case of a simulated world is run with.
const SEEDS: u64 = 12;

fn tcp(case: fn(&mut Rig)) {
    case(&mut Rig::new(Box::new(Tcp::new())));
}

fn shm(case: fn(&mut Rig)) {
    case(&mut Rig::new(Box::new(Shm::new())));
}

/// Set where there is an RDMA device: in a guest (`tools/guests/test verbs_conformance`).
const VERBS: &str = "ONESIDED_VERBS";

fn verbs(case: fn(&mut Rig)) {
    if std::env::var_os(VERBS).is_some() {
        case(&mut Rig::new(Box::new(Verbs::new(None))));
    } else {
        eprintln!("DID NOT RUN: needs an RDMA device and {VERBS}=1, as tools/guests/test");
    }
}

/// Over RDMA with all clients on another host (`tools/guests/test verbs_conformance_two`).
fn verbs_far(case: fn(&mut Rig)) {
    match Far::of_environment() {
        Some(far) => case(&mut Rig::new(Box::new(Verbs::new(Some(far))))),
        None => eprintln!("DID NOT RUN: needs two hosts with RDMA devices and {FAR}"),
    }
}

fn sim(case: fn(&mut Rig)) {
    for seed in 0..SEEDS {
        case(&mut Rig::new(Box::new(Sim::new(seed, sim::Options::default()))));
    }
}

fn sim_reads_now(case: fn(&mut Rig)) {
    let options = sim::Options { reads_now: true, ..sim::Options::default() };
    case(&mut Rig::new(Box::new(Sim::new(99, options))));
}

macro_rules! tests {
    ($backend:ident: $cases:ident: $($case:ident)*) => {
        $(#[test] fn $case() { super::super::$backend(crate::$cases::$case); })*
    };
}

/// The cases that every backend passes.
macro_rules! suite {
    ($backend:ident) => {
        tests! { $backend: messages:
            messages_arrive_whole_and_in_order
            a_too_long_message_is_refused_and_nothing_else
            only_signaled_sends_complete
            a_full_queue_recovers_and_loses_nothing
            many_peers_share_one_queue
            either_side_may_close
            dropping_what_a_client_holds_closes
            what_is_outstanding_fails_before_the_end
            messages_sent_before_a_close_may_arrive_but_never_half
            wake_ends_a_wait_also_a_later_one
            a_wait_times_out
            a_message_ends_a_wait
            one_thread_waits_at_a_time
            poll_gives_no_more_than_asked
        }
    };
}

/// The cases of backends with one-sided operations.
macro_rules! one_sided_suite {
    ($backend:ident) => {
        tests! { $backend: one_sided:
            a_read_returns_what_was_written
            large_transfers_are_whole
            accesses_outside_a_region_fail
            regions_must_be_offered_and_attached
            read_only_means_read_only
            atomics_return_what_was_there
            atomics_of_many_clients_lose_nothing
            misaligned_atomics_fail
            a_write_is_there_before_the_send_after_it
            a_write_is_there_before_the_cas_after_it
            words_are_whole_while_others_write
            unsignaled_successes_are_quiet_and_failures_are_not
            a_chain_completes_in_posting_order
            many_outstanding_reads_are_all_answered
            what_is_behind_a_failure_is_flushed
            reads_now_are_reads
        }
    };
}

mod on {
    mod tcp {
        suite!(tcp);
        tests! { tcp: two_sided:
            one_sided_operations_are_refused_with_their_reason
        }
    }

    mod shm {
        suite!(shm);
        one_sided_suite!(shm);
    }

    mod verbs {
        suite!(verbs);
        one_sided_suite!(verbs);
    }

    mod verbs_far {
        suite!(verbs_far);
        one_sided_suite!(verbs_far);
    }

    mod sim {
        suite!(sim);
        one_sided_suite!(sim);
    }

    mod sim_reads_now {
        one_sided_suite!(sim_reads_now);
    }
}
