//! What the two hosts say to each other: numbers of 8 bytes, and bytes behind their length.

use std::io::{Read, Write};
use std::net::TcpStream;

use onesided_fabric::{
    AccessError, AttachError, Buffer, BufferPool, Caps, Completion, FabricKind, Opcode, Outcome,
    PostError, RegionId, RemoteAddr, Wait, WorkError, WorkRequest,
};

#[derive(Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn number(mut self, number: u64) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        let mut message = self.number(bytes.len() as u64);
        message.0.extend_from_slice(bytes);
        message
    }

    pub(super) fn send(&self, stream: &mut TcpStream) {
        let framed = Self::default().bytes(&self.0);
        stream.write_all(&framed.0).expect("the other host listens");
    }

    pub(super) fn request(self, request: &WorkRequest) -> Self {
        let (tag, remote, [a, b], buffer) = match &request.op {
            Opcode::Read { remote, into } => (0, Some(remote), [0, 0], Some(into)),
            Opcode::Write { remote, from } => (1, Some(remote), [0, 0], Some(from)),
            Opcode::CompareSwap { remote, expected, new } => {
                (2, Some(remote), [*expected, *new], None)
            }
            Opcode::FetchAdd { remote, add } => (3, Some(remote), [*add, 0], None),
            Opcode::Send { message } => (4, None, [0, 0], Some(message)),
        };
        let (region, offset) = remote.map_or((0, 0), |at| (at.region.0, at.offset_bytes));
        self.number(tag)
            .number(request.id)
            .number(u64::from(request.signaled))
            .number(u64::from(region))
            .number(offset)
            .number(a)
            .number(b)
            .bytes(buffer.map_or(&[], |buffer| buffer))
    }

    pub(super) fn completion(self, completion: &Completion) -> Self {
        let head = self.number(completion.context).number(completion.id);
        match &completion.outcome {
            Outcome::Read(buffer) => head.number(0).bytes(buffer),
            Outcome::Written(buffer) => head.number(1).bytes(buffer),
            Outcome::Atomic(word) => head.number(2).number(*word),
            Outcome::Sent(buffer) => head.number(3).bytes(buffer),
            Outcome::Received(buffer) => head.number(4).bytes(buffer),
            Outcome::Disconnected(reason) => head.number(5).bytes(reason.as_bytes()),
            Outcome::Failed(error, buffer) => {
                let head = head.number(6).work_error(*error).number(u64::from(buffer.is_some()));
                head.bytes(buffer.as_deref().unwrap_or(&[]))
            }
            Outcome::Connected(_) => unreachable!("of listeners only"),
        }
    }

    fn work_error(self, error: WorkError) -> Self {
        let [tag, a, b, c] = match error {
            WorkError::Flushed => [0; 4],
            WorkError::PeerGone => [1, 0, 0, 0],
            WorkError::Access(AccessError::OutOfBounds {
                offset_bytes,
                len_bytes,
                region_bytes,
            }) => [2, offset_bytes, len_bytes, region_bytes],
            WorkError::Access(AccessError::Misaligned(offset)) => [3, offset, 0, 0],
            WorkError::Access(AccessError::ReadOnly) => [4, 0, 0, 0],
            WorkError::Access(AccessError::NotAttached(region)) => [5, region.into(), 0, 0],
        };
        self.number(tag).number(a).number(b).number(c)
    }

    /// What came of a post, and how many requests it has left.
    pub(super) fn posted(self, outcome: &Result<(), PostError>, left: usize) -> Self {
        let [tag, a, b] = match outcome {
            Ok(()) => [0; 3],
            Err(PostError::Full) => [1, 0, 0],
            Err(PostError::Closed) => [2, 0, 0],
            Err(PostError::TooLong { len_bytes, max_bytes }) => {
                [3, *len_bytes as u64, *max_bytes as u64]
            }
            Err(PostError::NotOneSided) => [4, 0, 0],
        };
        self.number(left as u64).number(tag).number(a).number(b)
    }

    pub(super) fn attached(self, outcome: &Result<(), AttachError>) -> Self {
        match outcome {
            Ok(()) => self.number(0).number(0),
            Err(AttachError::NotOffered(region)) => self.number(1).number(region.0.into()),
            Err(AttachError::Closed) => self.number(2).number(0),
            Err(other) => panic!("{other}"),
        }
    }

    pub(super) fn caps(self, caps: Caps) -> Self {
        self.number(caps.max_message_bytes as u64).number(caps.send_depth as u64)
    }

    pub(super) fn wait(self, wait: Wait) -> Self {
        self.number(match wait {
            Wait::Ready => 0,
            Wait::TimedOut => 1,
            Wait::Busy => 2,
        })
    }
}

/// A message that has arrived, with what is left of it to be taken.
pub(super) struct Arrived {
    bytes: Vec<u8>,
    at: usize,
}

impl Arrived {
    /// The next one; `None` when the other host has no more.
    pub(super) fn receive(stream: &mut TcpStream) -> Option<Self> {
        let mut len = [0; 8];
        stream.read_exact(&mut len).ok()?;
        let mut bytes = vec![0; u64::from_le_bytes(len) as usize];
        stream.read_exact(&mut bytes).ok()?;
        Some(Self { bytes, at: 0 })
    }

    pub(super) fn number(&mut self) -> u64 {
        let word = self.bytes[self.at..].first_chunk().expect("a number");
        self.at += 8;
        u64::from_le_bytes(*word)
    }

    pub(super) fn bytes(&mut self) -> &[u8] {
        let len = self.number() as usize;
        self.at += len;
        &self.bytes[self.at - len..self.at]
    }

    pub(super) fn text(&mut self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    fn buffer(&mut self, pool: &BufferPool) -> Buffer {
        pool.copy_of(self.bytes())
    }

    pub(super) fn request(&mut self, pool: &BufferPool) -> WorkRequest {
        let [tag, id, signaled, region, offset_bytes, a, b] =
            std::array::from_fn(|_| self.number());
        let remote = RemoteAddr { region: RegionId(region as u32), offset_bytes };
        let buffer = self.buffer(pool);
        let op = match tag {
            0 => Opcode::Read { remote, into: buffer },
            1 => Opcode::Write { remote, from: buffer },
            2 => Opcode::CompareSwap { remote, expected: a, new: b },
            3 => Opcode::FetchAdd { remote, add: a },
            _ => Opcode::Send { message: buffer },
        };
        WorkRequest { id, signaled: signaled != 0, op }
    }

    pub(super) fn completion(&mut self, pool: &BufferPool) -> Completion {
        let [context, id, tag] = std::array::from_fn(|_| self.number());
        let outcome = match tag {
            0 => Outcome::Read(self.buffer(pool)),
            1 => Outcome::Written(self.buffer(pool)),
            2 => Outcome::Atomic(self.number()),
            3 => Outcome::Sent(self.buffer(pool)),
            4 => Outcome::Received(self.buffer(pool)),
            5 => Outcome::Disconnected(self.text()),
            _ => {
                let error = self.work_error();
                let has_buffer = self.number() != 0;
                let buffer = self.buffer(pool);
                Outcome::Failed(error, has_buffer.then_some(buffer))
            }
        };
        Completion { context, id, outcome }
    }

    fn work_error(&mut self) -> WorkError {
        let [tag, a, len_bytes, region_bytes] = std::array::from_fn(|_| self.number());
        WorkError::Access(match tag {
            0 => return WorkError::Flushed,
            1 => return WorkError::PeerGone,
            2 => AccessError::OutOfBounds { offset_bytes: a, len_bytes, region_bytes },
            3 => AccessError::Misaligned(a),
            4 => AccessError::ReadOnly,
            _ => AccessError::NotAttached(a as u32),
        })
    }

    pub(super) fn posted(&mut self) -> (Result<(), PostError>, usize) {
        let [left, tag, len_bytes, max_bytes] = std::array::from_fn(|_| self.number() as usize);
        let outcome = match tag {
            0 => Ok(()),
            1 => Err(PostError::Full),
            2 => Err(PostError::Closed),
            3 => Err(PostError::TooLong { len_bytes, max_bytes }),
            _ => Err(PostError::NotOneSided),
        };
        (outcome, left)
    }

    pub(super) fn attached(&mut self) -> Result<(), AttachError> {
        match (self.number(), self.number()) {
            (0, _) => Ok(()),
            (1, region) => Err(AttachError::NotOffered(RegionId(region as u32))),
            _ => Err(AttachError::Closed),
        }
    }

    pub(super) fn caps(&mut self) -> Caps {
        let [max_message_bytes, send_depth] = std::array::from_fn(|_| self.number() as usize);
        let kind = FabricKind::Verbs;
        Caps { kind, one_sided: true, reads_now: false, max_message_bytes, send_depth }
    }

    pub(super) fn wait(&mut self) -> Wait {
        match self.number() {
            0 => Wait::Ready,
            1 => Wait::TimedOut,
            _ => Wait::Busy,
        }
    }
}
