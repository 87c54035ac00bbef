//! What a stranger may do to a TCP endpoint: garbage, lies about lengths, halves, dribbles, floods.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onesided_fabric::tcp::{self, Acceptor, Limits};
use onesided_fabric::{
    BufferPool, Completion, CompletionQueue, Endpoint, Opcode, Outcome, PostError, Wait, WorkError,
    WorkRequest,
};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

const LIMITS: Limits = Limits {
    max_message_bytes: 100_000,
    send_buffer_bytes: 1 << 20,
    max_endpoints: 256,
    total_receive_bytes: 1 << 20,
    stalled_max: Duration::from_millis(500),
};
const PATIENCE: Duration = Duration::from_secs(30);

struct Server {
    listener: TcpListener,
    addr: SocketAddr,
    acceptor: Acceptor,
    cq: Arc<dyn CompletionQueue>,
    endpoints: BTreeMap<u64, Arc<dyn Endpoint>>,
    received: BTreeMap<u64, Vec<Vec<u8>>>,
    ended: BTreeMap<u64, String>,
    next: u64,
}

impl Server {
    fn new(limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (acceptor, mut queues) = Acceptor::new(limits, 1).unwrap();
        let cq = queues.remove(0);
        let (endpoints, received, ended) = Default::default();
        Self { listener, addr, acceptor, cq, endpoints, received, ended, next: 1 }
    }

    /// A raw socket whose other end was adopted, and its context.
    fn stranger(&mut self) -> (TcpStream, u64) {
        let stream = TcpStream::connect(self.addr).unwrap();
        let (accepted, _) = self.listener.accept().unwrap();
        let context = self.next;
        self.next += 1;
        self.acceptor.adopt(accepted, context).unwrap();
        (stream, context)
    }

    fn take(&mut self, completion: Completion) {
        let context = completion.context;
        assert!(!self.ended.contains_key(&context), "something after the end of {context}");
        match completion.outcome {
            Outcome::Connected(endpoint) => {
                self.endpoints.insert(context, endpoint);
            }
            Outcome::Received(message) => {
                assert!(self.endpoints.contains_key(&context), "a message before Connected");
                self.received.entry(context).or_default().push(message.to_vec());
            }
            Outcome::Disconnected(reason) => {
                self.endpoints.remove(&context);
                self.ended.insert(context, reason);
            }
            Outcome::Failed(WorkError::Flushed, _) => {}
            other => panic!("unexpected: {other:?}"),
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut out = Vec::new();
        while !done(self) {
            assert!(Instant::now() < deadline, "never: {what}");
            if self.cq.poll(&mut out, 64) == 0 {
                self.cq.wait(Duration::from_millis(20));
            }
            for completion in std::mem::take(&mut out) {
                self.take(completion);
            }
        }
    }

    /// Sends until nothing has gone for half a second, or all has; gives how much.
    fn takes(&mut self, stream: &mut TcpStream, bytes: &[u8]) -> usize {
        stream.set_nonblocking(true).unwrap();
        let (mut sent, mut last) = (0, Instant::now());
        while sent < bytes.len() && last.elapsed() < Duration::from_millis(500) {
            match stream.write(&bytes[sent..]) {
                Ok(n) => (sent, last) = (sent + n, Instant::now()),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
            let mut out = Vec::new();
            self.cq.poll(&mut out, 64);
            out.into_iter().for_each(|completion| self.take(completion));
        }
        stream.set_nonblocking(false).unwrap();
        sent
    }

    fn echo_works(&mut self) {
        let (mut stream, context) = self.stranger();
        stream.write_all(&frame(b"still there?")).unwrap();
        self.until("a message", |s| s.received.contains_key(&context));
        assert_eq!(self.received[&context], [b"still there?".to_vec()]);
        drop(stream);
        self.until("the end", |s| s.ended.contains_key(&context));
    }
}

fn frame(message: &[u8]) -> Vec<u8> {
    let mut bytes = (message.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(message);
    bytes
}

fn send(pool: &BufferPool, id: u64, signaled: bool, message: &[u8]) -> WorkRequest {
    WorkRequest { id, signaled, op: Opcode::Send { message: pool.copy_of(message) } }
}

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn lengths_that_lie_close_the_connection() {
    let mut server = Server::new(LIMITS);
    for len in [100_001u32, 1 << 31, u32::MAX] {
        let (mut stream, context) = server.stranger();
        stream.write_all(&frame(b"first")).unwrap();
        stream.write_all(&len.to_le_bytes()).unwrap();
        server.until("the end", |s| s.ended.contains_key(&context));
        assert_eq!(server.received[&context], [b"first".to_vec()]);
        let reason = &server.ended[&context];
        assert!(reason.contains(&len.to_string()), "{reason}");
        // The stranger is told by the end of the stream, not left hanging.
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let end = stream.read(&mut [0; 8]);
        assert!(matches!(end, Ok(0)) || end.is_err_and(|e| e.raw_os_error() == Some(104)));
    }
    server.echo_works();
}

#[test]
fn random_bytes_never_hurt_others() {
    let seed: u64 = 0x7c9;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut server = Server::new(LIMITS);
    for round in 0..100 {
        let (mut stream, context) = server.stranger();
        let mut bytes = vec![0; rng.random_range(4..4000)];
        rng.fill_bytes(&mut bytes);
        if round % 2 == 0 {
            // Plausible lengths get deeper into the parser.
            bytes[2..4].fill(0);
        }
        // The server may have closed it already.
        let _may_fail = stream.write_all(&bytes);
        drop(stream);
        server.until("the end", |s| s.ended.contains_key(&context));
    }
    server.echo_works();
}

#[test]
fn half_frames_are_not_messages() {
    let mut server = Server::new(LIMITS);
    let whole = frame(&[7; 300]);
    for cut in [1, 3, 4, 5, 150, 303] {
        let (mut stream, context) = server.stranger();
        stream.write_all(&whole).unwrap();
        stream.write_all(&whole[..cut]).unwrap();
        drop(stream);
        server.until("the end", |s| s.ended.contains_key(&context));
        assert_eq!(server.received[&context].len(), 1, "cut {cut}");
    }
}

#[test]
fn dribbled_bytes_become_the_same_messages() {
    let mut server = Server::new(LIMITS);
    let (mut stream, context) = server.stranger();
    stream.set_nodelay(true).unwrap();
    let messages = [vec![1; 10], vec![], vec![2; 37]];
    let bytes: Vec<u8> = messages.iter().flat_map(|m| frame(m)).collect();
    for byte in bytes {
        stream.write_all(&[byte]).unwrap();
        let mut out = Vec::new();
        server.cq.poll(&mut out, 8);
        out.into_iter().for_each(|c| server.take(c));
    }
    server.until("all", |s| s.received.get(&context).is_some_and(|r| r.len() == 3));
    assert_eq!(server.received[&context], messages);
}

#[test]
fn unfinished_messages_wait_for_room_and_all_come() {
    let limits = Limits { stalled_max: Duration::from_secs(3600), ..LIMITS };
    let mut server = Server::new(limits);
    let whole = frame(&[1; 100_000]);
    // 40 of them do not fit in 1 MiB.
    let mut hoarders: Vec<(TcpStream, u64)> = (0..40).map(|_| server.stranger()).collect();
    for (stream, _) in &mut hoarders {
        stream.write_all(&whole[..80_000]).unwrap();
    }
    server.echo_works();
    for (stream, _) in hoarders.iter_mut().rev() {
        stream.write_all(&whole[80_000..]).unwrap();
        stream.write_all(&frame(b"behind it")).unwrap();
    }
    for (_, context) in &hoarders {
        server.until("both", |s| s.received.get(context).is_some_and(|r| r.len() == 2));
        assert!(server.received[context][0] == [1; 100_000]);
        assert_eq!(server.received[context][1], b"behind it");
        assert!(!server.ended.contains_key(context));
    }
}

/// It stays with its sender, but for what the sockets hold.
#[test]
fn what_has_no_room_is_not_read() {
    const LONG: usize = 32 << 20;
    let limits = Limits {
        max_message_bytes: LONG,
        total_receive_bytes: LONG + (1 << 20),
        stalled_max: Duration::from_secs(3600),
        ..LIMITS
    };
    let mut server = Server::new(limits);
    let whole = frame(&vec![3; LONG]);
    let [(mut first, one), (mut second, two)] = [(); 2].map(|()| server.stranger());
    let most = LONG - 1;
    assert_eq!(server.takes(&mut first, &whole[..most]), most, "it has room");
    let taken = server.takes(&mut second, &whole);
    assert!(taken < LONG / 2, "{taken} bytes were taken");
    assert_eq!(server.takes(&mut first, &whole[most..]), whole.len() - most);
    assert_eq!(server.takes(&mut second, &whole[taken..]), whole.len() - taken);
    for context in [one, two] {
        server.until("the message", |s| s.received.contains_key(&context));
        assert!(server.received[&context] == [vec![3; LONG]]);
    }
}

#[test]
fn who_holds_room_and_sends_nothing_is_closed_when_others_wait() {
    let mut server = Server::new(LIMITS);
    let whole = frame(&[1; 100_000]);
    let mut hoarders: Vec<(TcpStream, u64)> = (0..10).map(|_| server.stranger()).collect();
    for (stream, _) in &mut hoarders {
        stream.write_all(&whole[..whole.len() - 1]).unwrap();
    }
    let begun = Instant::now();
    while begun.elapsed() < 4 * LIMITS.stalled_max {
        server.echo_works();
    }
    assert!(hoarders.iter().all(|(_, hoarder)| !server.ended.contains_key(hoarder)), "no waiter");
    let before = server.ended.len();
    let (mut stream, context) = server.stranger();
    stream.write_all(&whole[..90_000]).unwrap();
    server.until("all that hold it up", |s| s.ended.len() == before + 10);
    for (_, hoarder) in &hoarders {
        assert!(server.ended[hoarder].contains("hardly grown"));
    }
    stream.write_all(&whole[90_000..]).unwrap();
    server.until("the one that waits", |s| s.received.contains_key(&context));
    assert!(server.received[&context] == [vec![1; 100_000]]);
}

#[test]
fn who_waits_for_room_may_go_away() {
    let limits = Limits { stalled_max: Duration::from_secs(3600), ..LIMITS };
    let mut server = Server::new(limits);
    let whole = frame(&[1; 100_000]);
    let mut hoarders: Vec<(TcpStream, u64)> = (0..30).map(|_| server.stranger()).collect();
    for (stream, _) in &mut hoarders {
        stream.write_all(&whole[..80_000]).unwrap();
    }
    server.echo_works();
    let before = server.ended.len();
    drop(hoarders);
    server.until("all to end", |s| s.ended.len() == before + 30);
    let (mut stream, context) = server.stranger();
    stream.write_all(&whole).unwrap();
    server.until("one of another", |s| s.received.contains_key(&context));
}

#[test]
fn endpoints_are_bounded() {
    let limits = Limits { max_endpoints: 3, ..LIMITS };
    let mut server = Server::new(limits);
    let strangers: Vec<_> = (0..3).map(|_| server.stranger()).collect();
    let more = TcpStream::connect(server.addr).unwrap();
    let (accepted, _) = server.listener.accept().unwrap();
    let refused = server.acceptor.adopt(accepted, 99).unwrap_err().to_string();
    assert!(refused.contains("max_endpoints"), "{refused}");
    drop((strangers, more));
    server.until("room", |s| s.ended.len() == 3);
    server.stranger();
}

#[test]
fn queues_share_endpoints_and_their_bound() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let limits = Limits { max_endpoints: 4, ..LIMITS };
    let (acceptor, queues) = Acceptor::new(limits, 2).unwrap();
    let connect = |context| {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        acceptor.adopt(accepted, context).map(|()| stream)
    };
    let connected = |queue: usize| {
        let mut out = Vec::new();
        queues[queue].poll(&mut out, 64);
        let endpoint = |completion: Completion| match completion.outcome {
            Outcome::Connected(endpoint) => Some((completion.context, endpoint)),
            _ => None,
        };
        out.into_iter().filter_map(endpoint).collect::<BTreeMap<_, _>>()
    };
    let _first: Vec<_> = (0..4).map(|context| connect(context).unwrap()).collect();
    let [left, right] = [0, 1].map(connected);
    assert_eq!((left.len(), right.len()), (2, 2));
    let refused = connect(4).unwrap_err().to_string();
    assert!(refused.contains("max_endpoints"), "{refused}");
    // Two go; those that come in their place go to where they were.
    drop(left);
    let _second = [5, 6].map(|context| connect(context).unwrap());
    let left = connected(0);
    assert_eq!(left.keys().copied().collect::<Vec<_>>(), [5, 6]);
    assert!(connected(1).is_empty() && connect(7).is_err());
}

#[test]
fn five_thousand_connections_leak_nothing() {
    let mut server = Server::new(LIMITS);
    let fds = open_fds();
    let mut open = VecDeque::new();
    for i in 0..5000u64 {
        let (mut stream, _) = server.stranger();
        match i % 4 {
            0 => {}
            1 => stream.write_all(&frame(b"hello")).unwrap(),
            2 => stream.write_all(&[9, 0]).unwrap(),
            _ => stream.write_all(&[0xff; 64]).unwrap(),
        }
        open.push_back(stream);
        if open.len() > 50 {
            open.pop_front();
        }
        if i % 20 == 0 {
            server.until("connected", |s| (s.endpoints.len() + s.ended.len()) as u64 > i);
        }
    }
    drop(open);
    server.until("all to end", |s| s.ended.len() == 5000);
    // Other tests of this process open descriptors too; a leak would be thousands.
    assert!(open_fds() < fds + 400, "{fds} before, {} after", open_fds());
    server.echo_works();
}

#[test]
fn a_dropped_queue_closes_everything() {
    let mut server = Server::new(LIMITS);
    let (mut stream, _) = server.stranger();
    let (mut unpolled, _) = server.stranger();
    server.until("connected", |s| s.endpoints.len() == 2);
    let Server { listener, addr, acceptor, cq, endpoints, .. } = server;
    drop(cq);
    for stream in [&mut stream, &mut unpolled] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    }
    assert!(endpoints.values().all(|e| e.is_closed()));
    let late = TcpStream::connect(addr).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    assert!(acceptor.adopt(accepted, 5).is_err());
    drop(late);
}

#[test]
fn a_reader_that_does_not_read_makes_posts_full_and_loses_nothing() {
    let mut server = Server::new(LIMITS);
    let (mut stream, context) = server.stranger();
    server.until("connected", |s| s.endpoints.contains_key(&context));
    let endpoint = Arc::clone(&server.endpoints[&context]);
    let pool = BufferPool::new();
    let body = |i: u64| {
        let mut body = vec![(i % 251) as u8; 50_000];
        body[..8].copy_from_slice(&i.to_le_bytes());
        body
    };
    let mut posted = 0u64;
    let full = loop {
        let mut chain = VecDeque::from([send(&pool, posted, false, &body(posted))]);
        match endpoint.post(&mut chain) {
            Ok(()) => posted += 1,
            Err(e) => break e,
        }
        assert!(posted < 10_000, "never full");
        let mut out = Vec::new();
        server.cq.poll(&mut out, 8);
    };
    assert!(matches!(full, PostError::Full), "{full}");
    let reader = std::thread::spawn(move || {
        for i in 0..posted {
            let mut header = [0; 4];
            stream.read_exact(&mut header).unwrap();
            let mut message = vec![0; u32::from_le_bytes(header) as usize];
            stream.read_exact(&mut message).unwrap();
            assert_eq!(message[..8], i.to_le_bytes());
            assert_eq!(message.len(), 50_000);
        }
    });
    server.until("room", |_| {
        endpoint.post(&mut VecDeque::from([send(&pool, 0, false, b"x")])).is_ok()
    });
    server.until("the reader to finish", |_| reader.is_finished());
    reader.join().unwrap();
}

#[test]
fn posts_of_another_thread_reach_a_peer_while_the_poller_sleeps() {
    let mut server = Server::new(LIMITS);
    let stream = TcpStream::connect(server.addr).unwrap();
    let (accepted, _) = server.listener.accept().unwrap();
    server.acceptor.adopt(accepted, 1).unwrap();
    let (_client, client_cq) = tcp::connect(stream, 7, LIMITS).unwrap();
    server.until("connected", |s| s.endpoints.len() == 1);
    let endpoint = Arc::clone(&server.endpoints[&1]);
    let cq = Arc::clone(&server.cq);
    // It sleeps long: only the post itself can bring the message out in time.
    let sleeper = std::thread::spawn(move || cq.wait(Duration::from_secs(3600)));
    std::thread::sleep(Duration::from_millis(50));
    let pool = BufferPool::new();
    endpoint.post(&mut VecDeque::from([send(&pool, 1, false, b"now")])).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut out = Vec::new();
    while client_cq.poll(&mut out, 4) == 0 {
        assert!(Instant::now() < deadline, "the message stayed behind");
        client_cq.wait(Duration::from_millis(100));
    }
    assert!(matches!(&out[0].outcome, Outcome::Received(m) if m[..] == *b"now"));
    server.cq.wake();
    assert_eq!(sleeper.join().unwrap(), Wait::Ready);
}

/// A client's end and the server's.
fn pair(server: &mut Server) -> (Arc<dyn Endpoint>, Arc<dyn CompletionQueue>, Arc<dyn Endpoint>) {
    let stream = TcpStream::connect(server.addr).unwrap();
    let (accepted, _) = server.listener.accept().unwrap();
    server.acceptor.adopt(accepted, 1).unwrap();
    let (endpoint, cq) = tcp::connect(stream, 7, LIMITS).unwrap();
    server.until("connected", |s| s.endpoints.len() == 1);
    let peer = Arc::clone(&server.endpoints[&1]);
    (endpoint, cq, peer)
}

#[test]
fn messages_of_all_lengths_come_whole_and_in_order_to_who_waits_for_them() {
    let seed: u64 = 0x5eed;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut server = Server::new(LIMITS);
    let (_endpoint, cq, peer) = pair(&mut server);
    assert_eq!(server.cq.receive(&mut Vec::new(), 1), None, "only for one endpoint");
    let pool = BufferPool::new();
    // Alike, so that their lengths can be foreseen, and then others; several at once.
    for round in 0..300_u32 {
        let usual = [0, 700, 5_000, 16_369, 60_000, 90_000][round as usize / 50];
        let lens: Vec<usize> = (0..rng.random_range(1..4))
            .map(|_| if rng.random_bool(0.8) { usual } else { rng.random_range(0..100_000) })
            .collect();
        let body = |len| -> Vec<u8> { (0..len).map(|i| (i * 7 + len) as u8).collect() };
        let mut chain = VecDeque::new();
        for &len in &lens {
            let body = body(len);
            // A SEND of a copy, or of a buffer: neither overtakes the other.
            if !chain.is_empty() || rng.random() || !peer.send_copy(9, &body) {
                chain.push_back(send(&pool, 9, false, &body));
            }
        }
        peer.post(&mut chain).unwrap();
        server.cq.poll(&mut Vec::new(), 1);
        for len in lens {
            let Outcome::Received(message) = receive(&*cq, &server) else {
                panic!("no message in round {round} of seed {seed}")
            };
            assert!(message[..] == body(len)[..], "round {round} of seed {seed}: {len} bytes");
        }
    }
    peer.close();
    assert!(matches!(receive(&*cq, &server), Outcome::Disconnected(_)));
}

/// What comes next. The server writes on what its socket did not take at once.
fn receive(cq: &dyn CompletionQueue, server: &Server) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    let mut out = Vec::new();
    while out.is_empty() {
        assert!(Instant::now() < deadline, "nothing came");
        server.cq.poll(&mut Vec::new(), 1);
        if cq.receive(&mut out, 1).is_none() {
            cq.poll(&mut out, 1);
        }
    }
    out.swap_remove(0).outcome
}

#[test]
fn one_waits_for_messages_and_others_are_told_so() {
    let mut server = Server::new(LIMITS);
    let (_endpoint, cq, peer) = pair(&mut server);
    let waiter = std::thread::spawn({
        let cq = Arc::clone(&cq);
        move || matches!(receive_alone(&*cq), Outcome::Received(m) if m[..] == *b"for you")
    });
    let deadline = Instant::now() + PATIENCE;
    while cq.wait(Duration::ZERO) != Wait::Busy {
        assert!(Instant::now() < deadline, "it does not wait");
    }
    peer.post(&mut VecDeque::from([send(&BufferPool::new(), 1, false, b"for you")])).unwrap();
    server.cq.poll(&mut Vec::new(), 1);
    assert!(waiter.join().unwrap());
}

/// What comes next, while another thread looks whether this one waits.
fn receive_alone(cq: &dyn CompletionQueue) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    let mut out = Vec::new();
    while out.is_empty() {
        assert!(Instant::now() < deadline, "nothing came");
        let _other_was_there = cq.receive(&mut out, 1);
    }
    out.swap_remove(0).outcome
}

#[test]
fn nobody_waits_in_receive_while_something_waits_to_be_written() {
    let mut server = Server::new(LIMITS);
    let (endpoint, cq, _peer) = pair(&mut server);
    let pool = BufferPool::new();
    // Nobody reads: at some point the socket takes no more.
    let mut chain = VecDeque::new();
    for _ in 0..10_000 {
        chain.push_back(send(&pool, 1, false, &[7; 50_000]));
        if endpoint.post(&mut chain).is_err() {
            break;
        }
    }
    assert!(!chain.is_empty(), "never full");
    assert_eq!(cq.receive(&mut Vec::new(), 1), None);
}
