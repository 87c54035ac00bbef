use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Waker};

use onesided_fabric::{
    AccessError, AttachError, BufferPool, Caps, CompletionQueue, Endpoint, FabricKind, Opcode,
    Outcome, PostError, RegionId, Wait, WorkRequest,
};
use onesided_protocol::control::Welcome;
use parking_lot::Mutex;

use super::super::connection::SLOTS;
use super::super::slots::LATE_MAX;
use super::*;
use crate::error::Error;
use crate::options::Options;

const CREDITS: usize = 2;
const AT: RemoteAddr = RemoteAddr { region: RegionId(1), offset_bytes: 0 };
const BROUGHT: [u8; 8] = *b"12345678";

/// READs nothing until it is told to, so that all that is posted takes long.
#[derive(Default)]
struct Device {
    posted: Mutex<VecDeque<(u64, Buffer)>>,
    done: Mutex<VecDeque<Completion>>,
    /// Who waits for completions finds the newest READ done.
    does_newest: Mutex<bool>,
}

impl Device {
    fn do_one(&self, posted: Option<(u64, Buffer)>) {
        let (id, mut into) = posted.expect("a READ that was posted");
        into.copy_from_slice(&BROUGHT);
        self.done.lock().push_back(Completion { context: 0, id, outcome: Outcome::Read(into) });
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Device")
    }
}

impl Endpoint for Device {
    fn caps(&self) -> Caps {
        Caps {
            kind: FabricKind::Sim,
            one_sided: true,
            reads_now: false,
            max_message_bytes: 64 << 10,
            send_depth: 1 << 16,
        }
    }

    fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        for WorkRequest { id, op, .. } in chain.drain(..) {
            let Opcode::Read { into, .. } = op else { panic!("only READs are posted here") };
            self.posted.lock().push_back((id, into));
        }
        Ok(())
    }

    fn polled(&self, id: u64, awaited: Awaited<'_>, _spin: Duration) -> Polled {
        if let Awaited::Read(_, into) = awaited {
            self.posted.lock().push_back((id, std::mem::take(into)));
        }
        Polled::Posted
    }

    fn attach(&self, _: RegionId, _: &[u8]) -> Result<(), AttachError> {
        Ok(())
    }

    fn read_now(&self, _: RemoteAddr, _: &mut [u64]) -> Option<Result<(), AccessError>> {
        None
    }

    fn read_bytes_now(&self, _: RemoteAddr, _: &mut [u8]) -> Option<Result<(), AccessError>> {
        None
    }

    fn close(&self) {}

    fn is_closed(&self) -> bool {
        false
    }
}

struct Queue(Arc<Device>);

impl CompletionQueue for Queue {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        let mut done = self.0.done.lock();
        let count = done.len().min(max);
        out.extend(done.drain(..count));
        count
    }

    fn wait(&self, timeout: Duration) -> Wait {
        if *self.0.does_newest.lock() {
            let newest = self.0.posted.lock().pop_back();
            self.0.do_one(newest);
        } else {
            std::thread::sleep(timeout.min(Duration::from_millis(1)));
        }
        Wait::Ready
    }

    fn wake(&self) {}
}

pub(in crate::core) fn welcome() -> Welcome {
    Welcome {
        wire: 1,
        session: 1,
        resume_key: 1,
        resumed: false,
        applied_sequence: 0,
        incarnation: 1,
        clock_ns: 1,
        catalog_epoch: 1,
        lease_ms: 10_000,
        heartbeat_ms: 1_000,
        credits: CREDITS as u32,
        value_max_bytes: 1 << 20,
        ticket: [0; 32],
        fabrics: Vec::new(),
    }
}

type Reading<'a> = Pin<Box<dyn Future<Output = Result<Buffer, Error>> + 'a>>;

/// A connection of which nothing is known to be wrong, and nothing comes.
fn connection(operation_timeout: Duration) -> (Arc<Device>, Arc<Connection>, BufferPool) {
    let device = Arc::new(Device::default());
    let queue = Arc::new(Queue(Arc::clone(&device)));
    let options = Options { operation_timeout, spin: Duration::ZERO, ..Options::default() };
    let endpoint = Arc::clone(&device) as Arc<dyn Endpoint>;
    let connection = Connection::from_parts(endpoint, queue, welcome(), None, options);
    (device, connection, BufferPool::new())
}

/// READs that have all slots, posted.
fn all_slots<'a>(connection: &'a Connection, pool: &BufferPool) -> Vec<Reading<'a>> {
    let read = |_| {
        let mut reading: Reading<'_> = Box::pin(connection.read_into(AT, pool.get(8)));
        // It is posted, if its time is over by then or not.
        let _first = reading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        reading
    };
    (0..SLOTS + CREDITS).map(read).collect()
}

#[test]
fn a_late_read_waits_when_all_slots_are_taken_and_the_connection_goes_on() {
    let (device, connection, pool) = connection(Duration::from_secs(600));
    let others = all_slots(&connection, &pool);
    *device.does_newest.lock() = true;
    for _ in 0..3 * LATE_MAX {
        let mut into = pool.get(8);
        assert!(connection.read_blocking(AT, &mut into, &mut None));
        assert_eq!(*into, BROUGHT);
    }
    assert!(connection.is_alive());
    assert_eq!(device.posted.lock().len(), others.len(), "the others still wait");
}

#[test]
fn more_late_reads_than_places_are_not_posted_and_end_in_time() {
    let (device, connection, pool) = connection(Duration::from_millis(2));
    let others = all_slots(&connection, &pool);
    for late in 0..LATE_MAX + 3 {
        assert!(!connection.read_blocking(AT, &mut pool.get(8), &mut None), "{late}: nothing came");
        let posted = others.len() + LATE_MAX.min(late + 1);
        assert_eq!(device.posted.lock().len(), posted, "{late}");
    }
    assert!(connection.is_alive());
    drop(others);
    while let Some(posted) = { device.posted.lock().pop_front() } {
        device.do_one(Some(posted));
    }
    while connection.dispatch() > 0 {}
    assert!(!connection.is_in_use(), "all places are free again");
    assert!(connection.slots.may_be_late());
}

#[test]
fn the_next_read_of_an_operation_has_no_time_of_its_own() {
    let timeout = Duration::from_millis(500);
    let (_device, connection, pool) = connection(timeout);
    let (start, mut by) = (std::time::Instant::now(), None);
    assert!(!connection.read_blocking(AT, &mut pool.get(8), &mut by), "nothing came");
    let first = start.elapsed();
    assert!(!connection.read_blocking(AT, &mut pool.get(8), &mut by), "nothing came");
    let both = start.elapsed();
    assert!(first >= timeout && both < timeout * 3 / 2, "{first:?}, {both:?}");
}

#[test]
fn a_late_read_finds_its_slot_once_and_others_are_left_alone() {
    let mut reads = PolledIds::default();
    let (first, second) = (reads.next(), reads.next());
    assert!(first != second && first < 1 << 32 && second < 1 << 32);
    let slot = 7 << 32 | 3;
    reads.late.push((second, slot));
    assert_eq!(reads.slot_of(first), None, "nobody waits for it");
    assert_eq!(reads.slot_of(second), Some(slot));
    assert_eq!(reads.slot_of(second), None, "once");
    for of_a_slot_or_of_no_request in [slot, 0, u64::MAX] {
        assert_eq!(reads.slot_of(of_a_slot_or_of_no_request), Some(of_a_slot_or_of_no_request));
    }
    reads.last = u32::MAX;
    assert_eq!(reads.next(), 1, "0 is no id");
}
