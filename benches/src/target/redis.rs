//! Redis, or what speaks RESP as it does: a record is a string.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};

use super::patch::patch;
use super::wire::{Address, PIECE_BYTES, Traffic, Wire, figure, number, push_number};
use super::{Counters, Description, Operation, Outcome, Session, Target, Usage};

const START: &str = "redis-server --save '' --appendonly no";
/// Conditional writes in a row that others may get ahead of.
const ATTEMPTS: usize = 1000;

/// SETRANGE, but of a record that is there; else 0, which SETRANGE of some bytes never answers.
const SETRANGE_IF_THERE: &[u8] = b"if redis.call('EXISTS',KEYS[1])==0 then return 0 end \
return redis.call('SETRANGE',KEYS[1],ARGV[1],ARGV[2])";

/// `redis://HOST[:PORT]` or `redis+unix:///PATH`.
pub(super) struct Redis {
    address: Address,
    traffic: Arc<Traffic>,
    /// No update makes a record.
    checked: bool,
}

impl Redis {
    /// Connects once, so that a missing server is known at once.
    pub(super) fn open(address: Address, checked: bool) -> Result<Self> {
        let redis = Self { address, traffic: Arc::default(), checked };
        redis.connect()?.command(&[b"PING"])?;
        Ok(redis)
    }

    fn connect(&self) -> Result<RedisSession> {
        let wire = Wire::connect(&self.address, &self.traffic, START)?;
        Ok(RedisSession { wire, checked: self.checked, value: Vec::new(), patched: Vec::new() })
    }

    fn info(&self) -> Result<Vec<(String, String)>> {
        // On a connection that is not counted.
        let wire = Wire::connect(&self.address, &Arc::default(), START)?;
        let (value, patched) = (Vec::new(), Vec::new());
        let mut session = RedisSession { wire, checked: false, value, patched };
        session.command(&[b"INFO"])?;
        let text = String::from_utf8_lossy(&session.value);
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Ok(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }
}

impl Target for Redis {
    fn name(&self) -> String {
        self.address.name_of("redis")
    }

    fn describe(&self) -> Result<Description> {
        let info = self.info()?;
        let fork = ["valkey_version", "redis_version"].into_iter();
        let version = fork.filter_map(|name| figure(&info, "Redis", name).ok()).next();
        let absent = match self.checked {
            true => "with --verify SETRANGE is in a script that leaves absent records absent",
            false => {
                "SETRANGE of a record that is not there (evicted, say) makes one of that field, \
                 and zeros before it: Redis tells no NOT_FOUND"
            }
        };
        let notes = vec![
            "a record is a string; GET, SET, SETRANGE for one field, DEL".to_owned(),
            absent.to_owned(),
            "a field of another length: WATCH, GET, MULTI, SET, EXEC".to_owned(),
        ];
        Ok(Description {
            version: version.unwrap_or_default(),
            transport: self.address.transport().to_owned(),
            notes,
            ..Description::default()
        })
    }

    fn session(&self, _client: usize) -> Result<Box<dyn Session>> {
        Ok(Box::new(self.connect()?))
    }

    fn usage(&self) -> Result<Option<Usage>> {
        let info = self.info()?;
        let cpu: [f64; 2] =
            [figure(&info, "Redis", "used_cpu_user")?, figure(&info, "Redis", "used_cpu_sys")?];
        let resident_bytes = figure(&info, "Redis", "used_memory_rss")?;
        let process = figure(&info, "Redis", "process_id")?;
        Ok(Some(Usage { process, cpu_seconds: cpu.iter().sum(), resident_bytes }))
    }

    fn counters(&self) -> Counters {
        self.traffic.counters()
    }

    fn clear(&self) -> Result<()> {
        self.connect()?.command(&[b"FLUSHDB"])
    }
}

struct RedisSession {
    wire: Wire,
    /// See [`Redis::checked`].
    checked: bool,
    /// Of an answer that is taken on its own.
    value: Vec<u8>,
    patched: Vec<u8>,
}

impl Session for RedisSession {
    fn execute(
        &mut self,
        batch: &[Operation<'_>],
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        let mut done = 0;
        for (place, operation) in batch.iter().enumerate() {
            match operation {
                Operation::Replace { key, .. } => {
                    self.take_answers(batch, done..place, answer)?;
                    done = place + 1;
                    match self.replace(key, operation)? {
                        Replaced::Done => answer(place, Outcome::Done),
                        Replaced::Absent => answer(place, Outcome::Absent),
                        Replaced::Failed(text) => answer(place, Outcome::Failed(&text)),
                    }
                    continue;
                }
                // A long value waits until the others have been answered.
                _ if !self.wire.out.is_empty()
                    && self.wire.out.len() + len_bytes(operation) > PIECE_BYTES =>
                {
                    self.take_answers(batch, done..place, answer)?;
                    done = place;
                }
                _ => {}
            }
            match *operation {
                Operation::Update { key, offset, bytes, whole: false } if self.checked => {
                    push_checked(&mut self.wire.out, key, offset, bytes);
                }
                _ => encode(&mut self.wire.out, operation),
            }
        }
        self.take_answers(batch, done..batch.len(), answer)
    }
}

enum Replaced {
    Done,
    Absent,
    Failed(String),
}

impl RedisSession {
    /// Sends what is waiting, and takes the answers to these operations.
    fn take_answers(
        &mut self,
        batch: &[Operation<'_>],
        places: std::ops::Range<usize>,
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        if !self.wire.out.is_empty() {
            self.wire.flush()?;
        }
        for place in places {
            let operation = &batch[place];
            match operation {
                Operation::Scan { .. } => answer(place, Outcome::Unsupported),
                Operation::Read { .. } => match reply(&mut self.wire)? {
                    Reply::Bulk(value) => answer(place, Outcome::Found(value)),
                    Reply::Nil => answer(place, Outcome::Absent),
                    Reply::Error(text) => {
                        answer(place, Outcome::Failed(&String::from_utf8_lossy(text)));
                    }
                    _ => bail!("Redis answered a GET with no value"),
                },
                _ => match reply(&mut self.wire)? {
                    Reply::Number(0) if matches!(operation, Operation::Delete { .. }) => {
                        answer(place, Outcome::Absent);
                    }
                    Reply::Number(0) if self.checked => answer(place, Outcome::Absent),
                    Reply::Number(_) | Reply::Status => answer(place, Outcome::Done),
                    Reply::Error(text) => {
                        answer(place, Outcome::Failed(&String::from_utf8_lossy(text)));
                    }
                    _ => bail!("Redis answered a write with a value"),
                },
            }
        }
        Ok(())
    }

    /// One command by itself; a value is kept.
    fn command(&mut self, words: &[&[u8]]) -> Result<()> {
        push_command(&mut self.wire.out, words);
        self.wire.flush()?;
        self.value.clear();
        match reply(&mut self.wire)? {
            Reply::Bulk(value) => self.value.extend_from_slice(value),
            Reply::Error(text) => bail!("Redis says: {}", String::from_utf8_lossy(text)),
            _ => {}
        }
        Ok(())
    }

    /// Read, replace, write if nobody else wrote.
    fn replace(&mut self, key: &[u8], operation: &Operation<'_>) -> Result<Replaced> {
        for _ in 0..ATTEMPTS {
            push_command(&mut self.wire.out, &[b"WATCH", key]);
            push_command(&mut self.wire.out, &[b"GET", key]);
            self.wire.flush()?;
            expect_ok(&mut self.wire)?;
            let patched = match reply(&mut self.wire)? {
                Reply::Bulk(value) => patch(operation, value, &mut self.patched),
                Reply::Nil => {
                    self.command(&[b"UNWATCH"])?;
                    return Ok(Replaced::Absent);
                }
                Reply::Error(text) => Err(anyhow!("{}", String::from_utf8_lossy(text))),
                _ => bail!("Redis answered a GET with no value"),
            };
            if let Err(error) = patched {
                self.command(&[b"UNWATCH"])?;
                return Ok(Replaced::Failed(error.to_string()));
            }
            push_command(&mut self.wire.out, &[b"MULTI"]);
            push_command(&mut self.wire.out, &[b"SET", key, &self.patched]);
            push_command(&mut self.wire.out, &[b"EXEC"]);
            self.wire.flush()?;
            expect_ok(&mut self.wire)?;
            expect_ok(&mut self.wire)?;
            match reply(&mut self.wire)? {
                // Somebody else wrote in between.
                Reply::Nil => {}
                Reply::Array(1) => {
                    expect_ok(&mut self.wire)?;
                    return Ok(Replaced::Done);
                }
                Reply::Error(text) => {
                    return Ok(Replaced::Failed(String::from_utf8_lossy(text).into_owned()));
                }
                _ => bail!("Redis answered EXEC with something else than results"),
            }
        }
        Ok(Replaced::Failed(format!("others wrote the record {ATTEMPTS} times in between")))
    }
}

/// About as many bytes as its command is long.
fn len_bytes(operation: &Operation<'_>) -> usize {
    const WORDS: usize = 256;
    match operation {
        Operation::Insert { key, value, .. } => WORDS + key.len() + value.len(),
        Operation::Update { key, bytes, .. } => WORDS + key.len() + bytes.len(),
        Operation::Read { key } | Operation::Delete { key } => WORDS + key.len(),
        Operation::Scan { .. } | Operation::Replace { .. } => 0,
    }
}

fn encode(out: &mut Vec<u8>, operation: &Operation<'_>) {
    match *operation {
        Operation::Read { key } => push_command(out, &[b"GET", key]),
        Operation::Insert { key, value, ttl_s: 0 }
        | Operation::Update { key, bytes: value, whole: true, .. } => {
            push_command(out, &[b"SET", key, value]);
        }
        Operation::Insert { key, value, ttl_s } => {
            let seconds = ttl_s.to_string();
            push_command(out, &[b"SET", key, value, b"EX", seconds.as_bytes()]);
        }
        Operation::Update { key, offset, bytes, whole: false } => {
            out.extend_from_slice(b"*4\r\n$8\r\nSETRANGE\r\n");
            push_word(out, key);
            let mut digits = Vec::with_capacity(20);
            push_number(&mut digits, offset as u64);
            push_word(out, &digits);
            push_word(out, bytes);
        }
        Operation::Delete { key } => push_command(out, &[b"DEL", key]),
        Operation::Scan { .. } | Operation::Replace { .. } => {}
    }
}

fn push_checked(out: &mut Vec<u8>, key: &[u8], offset: usize, bytes: &[u8]) {
    let offset = offset.to_string();
    push_command(out, &[b"EVAL", SETRANGE_IF_THERE, b"1", key, offset.as_bytes(), bytes]);
}

fn push_command(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.push(b'*');
    push_number(out, words.len() as u64);
    out.extend_from_slice(b"\r\n");
    words.iter().for_each(|word| push_word(out, word));
}

fn push_word(out: &mut Vec<u8>, word: &[u8]) {
    out.push(b'$');
    push_number(out, word.len() as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

enum Reply<'a> {
    /// OK, QUEUED, PONG.
    Status,
    Number(u64),
    Bulk(&'a [u8]),
    Nil,
    /// So many replies follow.
    Array(u64),
    Error(&'a [u8]),
}

fn reply(wire: &mut Wire) -> Result<Reply<'_>> {
    let line = wire.line()?;
    let (kind, rest) = line.split_first().context("Redis sent an empty line")?;
    let len = match kind {
        b'$' | b'*' if rest == b"-1" => return Ok(Reply::Nil),
        b'$' => number(rest),
        b'*' => return number(rest).map(Reply::Array).context("Redis sent no length"),
        b':' => return number(rest).map(Reply::Number).context("Redis sent no number"),
        // The borrow of the line cannot be given back on one path only.
        b'+' | b'-' => None,
        _ => bail!("Redis sent {}", line.escape_ascii()),
    };
    match len {
        Some(len) => wire.bytes(usize::try_from(len)?).map(Reply::Bulk),
        None => status(wire.again()),
    }
}

fn status(line: &[u8]) -> Result<Reply<'_>> {
    match line.split_first() {
        Some((b'+', _)) => Ok(Reply::Status),
        Some((b'-', text)) => Ok(Reply::Error(text)),
        _ => bail!("Redis sent {}", line.escape_ascii()),
    }
}

fn expect_ok(wire: &mut Wire) -> Result<()> {
    match reply(wire)? {
        Reply::Status => Ok(()),
        Reply::Error(text) => bail!("Redis says: {}", String::from_utf8_lossy(text)),
        _ => bail!("Redis answered with something else than OK"),
    }
}
