//! Memory that sessions may still look at comes back when they say that they do not, or end.

mod common;

use std::time::Duration;

use common::{Control, config, eventually, start};
use onesided_protocol::control::{Heartbeat, Retired, ToClient, ToServer};
use onesided_protocol::rpc::ErrorCode;
use onesided_server::ServerConfig;

const WAITING: &str = "memory_quarantined_bytes";

/// Acknowledges `epoch`; gives what the server tells.
fn beat(control: &mut Control, epoch: u64) -> (u64, Vec<Retired>) {
    match control.ask(&ToServer::Heartbeat(Heartbeat { epoch })) {
        ToClient::Alive { epoch, retired, .. } => (epoch, retired),
        other => panic!("{other:?}"),
    }
}

fn drop_default(control: &mut Control) {
    let drop = ToServer::DropTable { name: "default".to_owned() };
    assert_eq!(control.ask(&drop), ToClient::Done);
}

#[test]
fn a_dropped_table_s_index_comes_back_though_sessions_live_on() {
    let server = start(config());
    let [mut first, mut second, mut stranger] = [(); 3].map(|()| Control::open(server.addr()));
    let table = first.table("default");
    assert_eq!(second.table("default"), table);
    assert_eq!(beat(&mut first, 0), (0, Vec::new()));
    drop_default(&mut stranger);
    let waiting = stranger.stat(WAITING);
    assert!(waiting > 64 << 10, "{waiting} bytes");
    for _ in 0..2 {
        let told = (1, vec![Retired::Table(table)]);
        assert_eq!([beat(&mut first, 0), beat(&mut second, 0)], [told.clone(), told]);
    }
    assert_eq!(beat(&mut first, 1), (1, Vec::new()), "what it acknowledged it is not told again");
    assert_eq!(stranger.stat(WAITING), waiting, "the second one may still look");
    assert_eq!(beat(&mut second, 1), (1, Vec::new()));
    assert_eq!(stranger.stat(WAITING), 0);
    assert_eq!(stranger.stat("sessions_fenced"), 0);
}

#[test]
fn what_was_not_retired_yet_cannot_be_acknowledged() {
    let server = start(config());
    let [mut hasty, mut other] = [(); 2].map(|()| Control::open(server.addr()));
    hasty.table("default");
    assert_eq!(beat(&mut hasty, u64::MAX), (0, Vec::new()));
    drop_default(&mut other);
    assert!(other.stat(WAITING) > 0);
    let mut late = Control::open(server.addr());
    assert_eq!(beat(&mut late, 0), (1, Vec::new()), "it began when nothing led there any more");
}

#[test]
fn who_beats_and_does_not_acknowledge_is_fenced_and_others_go_on() {
    let server = start(ServerConfig { acknowledge_ms: 700, session_lease_ms: 4_000, ..config() });
    let [mut deaf, mut good, mut other] = [(); 3].map(|()| Control::open(server.addr()));
    deaf.table("default");
    good.table("default");
    drop_default(&mut other);
    beat(&mut good, 1);
    beat(&mut deaf, 0);
    assert!(other.stat(WAITING) > 0);
    eventually("the session that does not acknowledge ends", || {
        beat(&mut good, 1);
        other.stat("sessions_fenced") == 1
    });
    assert_eq!(deaf.last_word(), ErrorCode::Unauthorized);
    assert_eq!((other.stat(WAITING), other.stat("sessions")), (0, 2));
    beat(&mut good, 1);
}

#[test]
fn who_is_silent_holds_memory_until_its_lease_is_over() {
    let server = start(ServerConfig { session_lease_ms: 1_000, ..config() });
    let [mut silent, mut other] = [(); 2].map(|()| Control::open(server.addr()));
    silent.table("default");
    drop_default(&mut other);
    std::thread::sleep(Duration::from_millis(300));
    assert!(other.stat(WAITING) > 0);
    eventually("it comes back", || other.stat(WAITING) == 0);
    assert_eq!(silent.last_word(), ErrorCode::Unauthorized);
}
