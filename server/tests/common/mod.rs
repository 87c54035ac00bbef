//! A small blocking client on the protocol's types: it does what it is told, well or badly.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses a part of it")]

pub mod shm;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use onesided_protocol::control::{
    Hello, PREAMBLE_MAGIC, PURPOSE_CONTROL, PURPOSE_DATA, ToClient, ToServer, Welcome,
};
use onesided_protocol::limits::{LAYOUT_VERSION, TICKET_BYTES, WIRE_VERSION_MAX, WIRE_VERSION_MIN};
use onesided_protocol::rpc::{
    Answer, ErrorCode, Expect, Op, Payload, Reply, Request, RpcError, Ttl,
};
use onesided_server::{Server, ServerConfig};

/// Longer than anything here takes; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Defaults, on a port of the system's choice and with little memory.
pub fn config() -> ServerConfig {
    ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 256 << 20,
        ..ServerConfig::default()
    }
}

pub fn start(config: ServerConfig) -> Server {
    Server::start(config).expect("the server starts")
}

pub fn hello() -> Hello {
    Hello {
        wire_min: WIRE_VERSION_MIN,
        wire_max: WIRE_VERSION_MAX,
        layout: LAYOUT_VERSION,
        token: String::new(),
        resume: (0, 0),
    }
}

pub fn dial(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&addr, PATIENCE).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
    stream.set_nodelay(true).expect("nodelay");
    stream
}

pub fn preamble(purpose: u8) -> Vec<u8> {
    let mut bytes = PREAMBLE_MAGIC.to_vec();
    bytes.push(purpose);
    bytes
}

pub fn write_frame(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(bytes);
    stream.write_all(&frame)
}

pub fn read_frame(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

pub fn exchange(stream: &mut TcpStream, message: &ToServer) -> std::io::Result<ToClient> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    write_frame(stream, &bytes)?;
    Ok(ToClient::decode(&read_frame(stream)?).expect("decodes"))
}

/// A control connection.
pub struct Control {
    pub stream: TcpStream,
    pub welcome: Welcome,
}

impl Control {
    pub fn open(addr: SocketAddr) -> Self {
        Self::with(addr, hello()).expect("welcome")
    }

    pub fn with(addr: SocketAddr, hello: Hello) -> Result<Self, RpcError> {
        let mut stream = dial(addr);
        stream.write_all(&preamble(PURPOSE_CONTROL)).expect("preamble");
        match exchange(&mut stream, &ToServer::Hello(hello)).expect("an answer to the hello") {
            ToClient::Welcome(welcome) => Ok(Self { stream, welcome: *welcome }),
            ToClient::Failed(error) => Err(error),
            other => panic!("a hello was answered with {other:?}"),
        }
    }

    pub fn resume(addr: SocketAddr, earlier: &Welcome) -> Self {
        let resume = (earlier.session, earlier.resume_key);
        Self::with(addr, Hello { resume, ..hello() }).expect("welcome")
    }

    pub fn ask(&mut self, message: &ToServer) -> ToClient {
        exchange(&mut self.stream, message).expect("an answer")
    }

    pub fn ticket(&mut self) -> [u8; TICKET_BYTES] {
        match self.ask(&ToServer::Ticket) {
            ToClient::Ticket(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    pub fn table(&mut self, name: &str) -> u32 {
        match self.ask(&ToServer::OpenTable { name: name.to_owned() }) {
            ToClient::Table(info) => info.id,
            other => panic!("{other:?}"),
        }
    }

    pub fn stat(&mut self, name: &str) -> u64 {
        match self.ask(&ToServer::Stats) {
            ToClient::Stats(list) => {
                list.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no {name}")).1
            }
            other => panic!("{other:?}"),
        }
    }

    /// What the server says of its own accord before it closes the connection.
    pub fn last_word(&mut self) -> ErrorCode {
        let bytes = read_frame(&mut self.stream).expect("a last frame");
        match ToClient::decode(&bytes).expect("decodes") {
            ToClient::Failed(error) => error.code,
            other => panic!("{other:?}"),
        }
    }
}

/// A data connection over tcp.
pub struct Data {
    pub stream: TcpStream,
    pub table: u32,
    pub next_id: u64,
}

impl Data {
    pub fn open(addr: SocketAddr, ticket: &[u8; TICKET_BYTES], table: u32) -> Self {
        let mut stream = dial(addr);
        let mut first = preamble(PURPOSE_DATA);
        first.extend_from_slice(ticket);
        stream.write_all(&first).expect("preamble");
        Self { stream, table, next_id: 1 }
    }

    pub fn send(&mut self, sequence: u64, op: Op<'_>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let mut bytes = Vec::new();
        Request { id, sequence, table: self.table, op }.encode(&mut bytes);
        write_frame(&mut self.stream, &bytes).expect("send");
        id
    }

    /// Sends, waits, and gives the answer's bytes.
    pub fn call_bytes(&mut self, sequence: u64, op: Op<'_>) -> Vec<u8> {
        let id = self.send(sequence, op);
        let bytes = read_frame(&mut self.stream).expect("an answer");
        assert_eq!(Answer::decode(&bytes).expect("decodes").id, id);
        bytes
    }

    /// Sends, waits, and gives the reply, which must not hold a value.
    pub fn call(&mut self, sequence: u64, op: Op<'_>) -> Result<Reply<'static>, RpcError> {
        reply(&self.call_bytes(sequence, op))
    }

    pub fn ping(&mut self) {
        assert_eq!(self.call(0, Op::Ping), Ok(Reply::Pong));
    }

    pub fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let bytes = self.call_bytes(0, Op::Get { key, landing: None });
        match Answer::decode(&bytes).expect("decodes").result.expect("a get succeeds") {
            Reply::Found(found) => match found.value {
                Payload::Inline(value) => Some(value.to_vec()),
                other => panic!("{other:?}"),
            },
            Reply::Absent => None,
            other => panic!("{other:?}"),
        }
    }

    /// Whether the server closes it.
    pub fn is_closed(&mut self) -> bool {
        read_frame(&mut self.stream).is_err_and(|error| {
            !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
        })
    }
}

/// A reply that holds no value.
pub fn reply(answer: &[u8]) -> Result<Reply<'static>, RpcError> {
    match Answer::decode(answer).expect("decodes").result? {
        Reply::Pong => Ok(Reply::Pong),
        Reply::Absent => Ok(Reply::Absent),
        Reply::Deleted => Ok(Reply::Deleted),
        Reply::Done { version } => Ok(Reply::Done { version }),
        Reply::Number { value, version } => Ok(Reply::Number { value, version }),
        other => panic!("{other:?}"),
    }
}

pub fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Op<'a> {
    put_payload(key, Payload::Inline(value))
}

pub fn put_payload<'a>(key: &'a [u8], value: Payload<'a>) -> Op<'a> {
    Op::Put { key, value, expect: Expect::Any, ttl: Ttl::TableDefault, user_flags: 0 }
}

/// A client with both connections, on the table `default`.
pub fn connect(addr: SocketAddr) -> (Control, Data) {
    let mut control = Control::open(addr);
    let table = control.table("default");
    let ticket = control.welcome.ticket;
    (control, Data::open(addr, &ticket, table))
}

/// Waits until `done`, bounded.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The code of a failure.
pub fn code<T: std::fmt::Debug>(result: Result<T, RpcError>) -> ErrorCode {
    result.expect_err("must fail").code
}

/// Resident memory of this process in bytes.
pub fn rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
    kib * 1024
}

/// Open descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// What the server says before it closes; `None` if it closes without a word.
pub fn last_words(mut stream: TcpStream) -> Option<ErrorCode> {
    let mut all = Vec::new();
    // A reset instead of an end is as good.
    let _reset = stream.read_to_end(&mut all);
    match ToClient::decode(all.get(4..)?) {
        Ok(ToClient::Failed(error)) => Some(error.code),
        other => panic!("{other:?}"),
    }
}
