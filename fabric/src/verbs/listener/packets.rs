//! Path MTUs: asked for on one side or the other, and used by both. They need a device: see
//! `tools/guests/tests/verbs_setup.sh`.

use std::collections::VecDeque;

use super::hostile::{TIMEOUT, has_device, ticket};
use super::*;
use crate::buffer::BufferPool;
use crate::endpoint::Refused;
use crate::mem::Memory;
use crate::verbs::{ConnectError, ConnectOptions, connect};
use crate::work::{Opcode, Outcome, RegionId, RemoteAddr, Rights, WorkRequest};

const REGION_BYTES: usize = 64 << 10;
const REGION: RegionId = RegionId(1);

/// A region whose words tell where they are.
struct Open(Arc<Memory>);

impl Admission for Open {
    fn admit(&self, ticket: &[u8; 32]) -> Result<u64, Refused> {
        Ok(ticket[0].into())
    }

    fn region(&self, _: u64, region: RegionId) -> Option<(Arc<Memory>, Rights)> {
        (region == REGION).then(|| (Arc::clone(&self.0), Rights::ReadOnly))
    }
}

fn limits(mtu: &str) -> Limits {
    Limits { path_mtu: mtu.parse().expect(mtu), ..Limits::default() }
}

fn start(mtu: &str) -> Result<(Listener, Arc<dyn CompletionQueue>), VerbsError> {
    let memory = Memory::private(REGION_BYTES).expect("memory");
    for at in (0..REGION_BYTES).step_by(8) {
        memory.store(at, at as u64).expect("inside");
    }
    Listener::start(&Options::default(), 0, limits(mtu), Arc::new(Open(Arc::new(memory))))
}

/// Connects, READs all, and gives the path MTU that the server's queue pair has.
fn read_all(listener: &Listener, cq: &dyn CompletionQueue, mtu: &str) -> u32 {
    let options = ConnectOptions { limits: limits(mtu), ..ConnectOptions::default() };
    let peer = connect(&listener.blob(512), &ticket(1), 0, TIMEOUT, &options).expect("connects");
    let (mut out, over) = (vec![], AtomicBool::new(false));
    let latest = Instant::now() + TIMEOUT * 2;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            while !over.load(Ordering::Acquire) && Instant::now() < latest {
                cq.wait(Duration::from_millis(20));
                cq.poll(&mut out, 64);
            }
        });
        peer.endpoint.attach(REGION, &[]).expect("offered");
        let into = BufferPool::new().get(REGION_BYTES);
        let remote = RemoteAddr { region: REGION, offset_bytes: 0 };
        let op = Opcode::Read { remote, into };
        let mut chain = VecDeque::from([WorkRequest { id: 1, signaled: true, op }]);
        peer.endpoint.post(&mut chain).expect("posted");
        let (mut done, deadline) = (vec![], Instant::now() + TIMEOUT);
        while done.is_empty() {
            assert!(Instant::now() < deadline, "it completes");
            peer.cq.wait(Duration::from_millis(20));
            peer.cq.poll(&mut done, 1);
        }
        match &done[0].outcome {
            Outcome::Read(bytes) => {
                let words = bytes.words();
                assert!(words.iter().enumerate().all(|(n, &word)| word == n as u64 * 8));
            }
            other => panic!("{mtu}: {other:?}"),
        }
        let queue = listener.watching.queues[0].upgrade().expect("alive");
        let mtus = queue.path_mtus();
        over.store(true, Ordering::Release);
        serving.join().expect("it serves");
        assert_eq!(mtus.len(), 1);
        mtus[0]
    })
}

#[test]
fn the_smaller_path_mtu_of_both_sides_is_used() {
    if !has_device() {
        return;
    }
    let (listener, cq) = start("auto").expect("starts");
    let whole = read_all(&listener, &*cq, "auto");
    assert!(whole >= 1024, "an Ethernet of 1500 bytes");
    for (server, client, used) in
        [("auto", "256", 256), ("512", "auto", 512), ("512", "256", 256), ("256", "1024", 256)]
    {
        let (listener, cq) = start(server).expect("starts");
        assert_eq!(read_all(&listener, &*cq, client), used, "{server} and {client}");
    }
    println!("path MTU: {whole} by itself, 512 and 256 when asked for");
}

#[test]
fn more_than_the_port_has_is_an_error_that_names_both() {
    if !has_device() {
        return;
    }
    let names_both = |error: String| {
        assert!(error.contains("4096 bytes was asked for"), "{error}");
        assert!(error.contains("active MTU of 1024"), "{error}");
    };
    names_both(start("4096").map(|_| ()).expect_err("too long").to_string());
    let (listener, _cq) = start("auto").expect("starts");
    let options = ConnectOptions { limits: limits("4096"), ..ConnectOptions::default() };
    match connect(&listener.blob(512), &ticket(1), 0, TIMEOUT, &options) {
        Err(ConnectError::Unreachable(tried)) => names_both(tried),
        other => panic!("{other:?}"),
    }
    let checked = crate::verbs::check_choice(&Options::default(), limits("4096").path_mtu);
    names_both(checked.expect_err("too long").to_string());
}
