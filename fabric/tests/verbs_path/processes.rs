//! Processes that are killed in the middle.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use onesided_fabric::verbs::Limits;
use onesided_fabric::{BufferPool, Opcode, Outcome, WorkError, WorkRequest};

use crate::rig::{Server, TIMEOUT, attach, has_device, join, messages, read, talks};

/// This program again, doing `what` with the listener of `blob`; it says a line when it is ready.
fn spawn(what: &str, blob: &[u8]) -> (Child, BufReader<std::process::ChildStdout>) {
    let hex: String = blob.iter().map(|b| format!("{b:02x}")).collect();
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "processes::the_other_process", "--nocapture"])
        .env("OTHER_PROCESS", what)
        .env("BLOB", hex)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    (child, out)
}

/// The rest of the line that begins with `SAYS`.
fn hears(out: &mut impl BufRead) -> String {
    loop {
        let mut line = String::new();
        assert!(out.read_line(&mut line).expect("read") > 0, "the other process has ended");
        if let Some((_, said)) = line.split_once("SAYS ") {
            return said.trim().to_owned();
        }
    }
}

fn says(what: &str) {
    println!("SAYS {what}");
    std::io::stdout().flush().expect("flushed");
}

/// Not a test of its own: what [`spawn`] runs.
#[test]
fn the_other_process() {
    let Ok(what) = std::env::var("OTHER_PROCESS") else { return };
    let hex = std::env::var("BLOB").expect("set");
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    let blob: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    match what.as_str() {
        "serve" => {
            let server = Server::start(Limits::default());
            let blob: String = server
                .listener
                .blob(512)
                .iter()
                .fold(String::new(), |hex, b| hex + &format!("{b:02x}"));
            says(&blob);
            std::thread::sleep(TIMEOUT * 3);
        }
        "send" => {
            let peer = join(&blob, 1, Limits::default());
            says("ready");
            let pool = BufferPool::new();
            // Of several packets and several pieces each: killed in the middle of one.
            let long = vec![7; 60_000];
            let mut out = Vec::new();
            loop {
                let op = Opcode::Send { message: pool.copy_of(&long) };
                let mut chain = VecDeque::from([WorkRequest { id: 0, signaled: false, op }]);
                let _full = peer.endpoint.post(&mut chain);
                peer.cq.poll(&mut out, 16);
                out.clear();
            }
        }
        other => panic!("{other}"),
    }
}

/// The server's process is killed while READs are outstanding: they end, and so does everything
/// that the client had for them.
#[test]
fn a_server_killed_in_mid_read_ends_every_request() {
    if !has_device() {
        return;
    }
    for round in 0..5u64 {
        let (mut child, mut out) = spawn("serve", &[]);
        let hex = hears(&mut out);
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
        let blob: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let peer = join(&blob, 1, Limits::default());
        attach(&peer, 1);
        let pool = BufferPool::new();
        let (mut posted, mut seen) = (0, 0);
        let (mut chain, mut all) = (VecDeque::new(), Vec::new());
        let mut killed = None;
        let ended = 'run: loop {
            while posted - seen < 16 && chain.is_empty() {
                chain.push_back(read(posted, &pool, 1, posted % 1000 * 8, 65_536));
                if peer.endpoint.post(&mut chain).is_err() {
                    break;
                }
                posted += 1;
            }
            if seen > 20 + round * 7 && killed.is_none() {
                child.kill().expect("killed");
                killed = Some(Instant::now());
            }
            assert!(killed.is_none_or(|at: Instant| at.elapsed() < TIMEOUT), "no end");
            if peer.cq.poll(&mut all, 16) == 0 {
                peer.cq.wait(Duration::from_millis(10));
            }
            for completion in all.drain(..) {
                match completion.outcome {
                    Outcome::Disconnected(reason) => break 'run reason,
                    Outcome::Read(bytes) => {
                        assert_eq!(bytes.words()[8191], (completion.id % 1000 + 8191) * 3);
                    }
                    Outcome::Failed(..) => assert!(killed.is_some(), "{completion:?}"),
                    other => panic!("{other:?}"),
                }
                assert_eq!(completion.id, seen, "each exactly once, in order");
                seen += 1;
            }
        };
        let after = killed.map(|at| at.elapsed());
        eprintln!("round {round}: {seen} READs, then after {after:?}: {ended}");
        assert_eq!(seen, posted, "all that was posted has ended");
        assert!(peer.endpoint.is_closed());
        child.wait().expect("waited for");
    }
}

/// Clients are killed while they send long messages: the server goes on, with all its receive
/// buffers.
#[test]
fn clients_killed_in_mid_send_take_no_receive_buffer_with_them() {
    if !has_device() {
        return;
    }
    const ROUNDS: u64 = 24;
    // Fewer buffers than rounds: were one lost each time, none would be left.
    let server = Server::start(Limits { receive_depth: 16, ..Limits::default() });
    for round in 0..ROUNDS {
        let (mut child, mut out) = spawn("send", &server.listener.blob(512));
        hears(&mut out);
        std::thread::sleep(Duration::from_millis(30 + round * 3));
        child.kill().expect("killed");
        child.wait().expect("waited for");
        server.awaits("its end", |seen| seen.ends.lock().len() as u64 == round + 1);
    }
    let peer = server.connect(1, Limits::default());
    talks(&peer, &messages(3, 100, 60_000), 8);
}

/// Two hosts: the second serves and loses its power while the first READs from it. Nobody says
/// goodbye: the device's retries notice.
#[test]
fn a_host_that_loses_its_power_is_noticed() {
    let host = std::env::var("HOST_ID").ok().filter(|_| std::env::var("POWER_LOSS").is_ok());
    let Some(host) = host.filter(|_| has_device()) else {
        eprintln!("runs in two guests only: tools/guests/test verbs_power");
        return;
    };
    let shared = std::env::var("SHARED").expect("set");
    let blob_at = format!("{shared}/blob");
    if host == "2" {
        let server = Server::start(Limits::default());
        std::fs::write(format!("{blob_at}.new"), server.listener.blob(512)).expect("written");
        std::fs::rename(format!("{blob_at}.new"), blob_at).expect("renamed");
        std::thread::sleep(TIMEOUT * 3);
        return;
    }
    let deadline = Instant::now() + TIMEOUT;
    while !std::fs::exists(&blob_at).unwrap_or(false) {
        assert!(Instant::now() < deadline, "no server");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The device is to notice, not the deadline of requests.
    let limits = Limits { work_timeout_ms: 35_000, ..Limits::default() };
    let peer = join(&std::fs::read(&blob_at).expect("read"), 1, limits);
    attach(&peer, 1);
    let pool = BufferPool::new();
    let mut chain = VecDeque::new();
    let (mut all, mut posted, mut seen) = (Vec::new(), 0, 0);
    let mut off: Option<Instant> = None;
    let mut first_failure = None;
    let reason = 'run: loop {
        while posted - seen < 8 && chain.is_empty() {
            chain.push_back(read(posted, &pool, 1, posted % 1000 * 8, 4096));
            if peer.endpoint.post(&mut chain).is_err() {
                break;
            }
            posted += 1;
        }
        if seen > 200 && off.is_none() {
            std::fs::write("/run/guests/power.2", "off\n").expect("written");
            off = Some(Instant::now());
        }
        assert!(off.is_none_or(|at| at.elapsed() < TIMEOUT), "no end");
        if peer.cq.poll(&mut all, 16) == 0 {
            peer.cq.wait(Duration::from_millis(10));
        }
        for completion in all.drain(..) {
            match completion.outcome {
                Outcome::Disconnected(reason) => break 'run reason,
                Outcome::Read(_) => assert!(first_failure.is_none(), "a READ after a failure"),
                Outcome::Failed(error, Some(_)) => {
                    first_failure.get_or_insert(error);
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(completion.id, seen, "each exactly once, in order");
            seen += 1;
        }
    };
    eprintln!("{seen} READs, then after {:?}: {reason}", off.map(|at| at.elapsed()));
    assert_eq!((seen, first_failure), (posted, Some(WorkError::PeerGone)));
    assert!(reason.contains("no acknowledgement"), "{reason}");
}
