//! kill -9 of the server in the middle of READs: its clients say so in time, go on with the next
//! server on the same port, and never give bytes that were not written, or not in this life.

#[path = "common/children.rs"]
mod children;
#[path = "common/linearize/mod.rs"]
mod linearize;

#[path = "common/journal.rs"]
mod journal;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use children::*;
use journal::{piece, pieces};
use onesided::{Error, FabricChoice, blocking};
use serde::{Deserialize, Serialize};

const LIVES: u64 = 3;
const KEYS: u64 = 8;
const OPERATION_MS: u64 = 5_000;
/// Beyond the configured time, for a machine under load.
const SLACK: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
enum Role {
    Server(ServerRole),
    Read { addr: SocketAddr, is_tcp: bool },
    Write { addr: SocketAddr, life: u64 },
}

/// Entry of the children: nothing to do in the parent.
#[test]
fn child() {
    match role() {
        None => {}
        Some(Role::Server(role)) => serve(role),
        Some(Role::Read { addr, is_tcp }) => read(addr, is_tcp),
        Some(Role::Write { addr, life }) => write(addr, life),
    }
}

fn connect(addr: SocketAddr, is_tcp: bool) -> blocking::Client {
    let fabric = if is_tcp { FabricChoice::Tcp } else { one_sided() };
    let builder = builder(addr).operation_timeout_ms(OPERATION_MS).fabric(fabric);
    builder.connect_blocking().expect("connects")
}

fn is_loss(error: &Error) -> bool {
    matches!(error, Error::ConnectionLost(_) | Error::TimedOut { .. })
}

/// Overwrites until the server is gone. A value says its life, key and turn.
fn write(addr: SocketAddr, life: u64) {
    let client = connect(addr, false);
    let table = client.table("default").expect("the table");
    for turn in 0u64.. {
        let n = turn % KEYS;
        let len = [10, 300, 20_000, 100_000][(turn / KEYS % 4) as usize];
        match table.put(format!("key-{n}"), piece(life << 48 | n << 40 | turn, len)) {
            Ok(_) => {}
            Err(error) if is_loss(&error) || error.may_have_been_applied() => return,
            Err(error) => panic!("{error}"),
        }
        if turn == KEYS * 4 {
            tell("writing", "");
        }
    }
}

/// Reads through all lives.
fn read(addr: SocketAddr, is_tcp: bool) {
    let client = connect(addr, is_tcp);
    let table = client.table("default").expect("the table");
    for life in 1..=LIVES {
        let (mut turns, mut values, mut is_back) = ([0; KEYS as usize], 0, life == 1);
        for at in 0u64.. {
            let n = at % KEYS;
            let start = Instant::now();
            let got = table.get(format!("key-{n}"));
            let took = start.elapsed();
            assert!(took < Duration::from_millis(OPERATION_MS) + SLACK, "{took:?}");
            match got {
                Ok(Some(value)) => {
                    let [id] = pieces(&value)[..] else { panic!("one put, one piece") };
                    assert_eq!((id >> 48, id >> 40 & 0xff), (life, n), "of another life or key");
                    let turn = id & 0xff_ffff_ffff;
                    assert!(turn >= turns[n as usize], "a value came back");
                    turns[n as usize] = turn;
                    (values, is_back) = (values + 1, true);
                }
                Ok(None) => {
                    assert_eq!(turns[n as usize], 0, "a value was lost");
                    is_back = true;
                }
                Err(error) => {
                    assert!(is_loss(&error), "{error}");
                    if is_back {
                        assert!(values > 0);
                        tell("lost", &format!("after {values} values: {error}"));
                        break;
                    }
                }
            }
            if values == 1000 {
                let fds = std::fs::read_dir("/proc/self/fd").expect("/proc").count();
                tell("reading", &fds.to_string());
                values += 1;
            }
        }
    }
}

#[test]
fn clients_outlive_servers_that_are_killed() {
    let mut role = ServerRole::default();
    let mut daemon = Daemon::start(role.clone(), Role::Server);
    role.listen = daemon.addr;
    let addr = daemon.addr;
    let mut readers: Vec<_> =
        [false, true].map(|is_tcp| Process::spawn(&Role::Read { addr, is_tcp })).into();
    let mut at_first = Vec::new();
    for life in 1..=LIVES {
        if life > 1 {
            daemon = Daemon::start(role.clone(), Role::Server);
        }
        let mut writer = Process::spawn(&Role::Write { addr, life });
        writer.hear("writing");
        let fds: Vec<usize> = readers
            .iter_mut()
            .map(|reader| reader.hear("reading").parse().expect("a number"))
            .collect();
        println!("life {life}: descriptors of the readers {fds:?}");
        if life == 1 {
            at_first = fds;
        } else {
            // A leak of one each time is two in the last life.
            let kept = fds.iter().zip(&at_first).all(|(now, first)| *now <= first + 1);
            assert!(kept, "descriptors leak: {at_first:?} became {fds:?}");
        }
        daemon.kill();
        for reader in &mut readers {
            println!("life {life}: lost {}", reader.hear("lost"));
        }
        writer.join();
    }
    readers.into_iter().for_each(Process::join);
}
