//! memcached by its meta commands (1.6 or later).

use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use super::patch::patch;
use super::usage;
use super::wire::{Address, PIECE_BYTES, Traffic, Wire, figure, number, push_number};
use super::{Counters, Description, Operation, Outcome, Session, Target, Usage};

const START: &str = "memcached -m 1024 -s PATH, or -l HOST -p PORT";
/// Longest key.
const KEY_MAX_BYTES: usize = 250;
/// Longer times to live are taken for Unix time.
const RELATIVE_MAX_S: u32 = 60 * 60 * 24 * 30;
/// Conditional writes in a row that others may get ahead of.
const ATTEMPTS: usize = 1000;

/// `memcached://HOST[:PORT]` or `memcached+unix:///PATH`.
pub(super) struct Memcached {
    address: Address,
    traffic: Arc<Traffic>,
    server_pid: Option<u32>,
    /// Connections that the server takes, if it tells.
    connections_max: Option<u64>,
}

/// Whether a key can be part of a command; why not, if not.
pub(super) fn check_key(key: &[u8]) -> Result<()> {
    let (len, shown) = (key.len(), key[..key.len().min(40)].escape_ascii());
    ensure!(
        (1..=KEY_MAX_BYTES).contains(&len),
        "the key `{shown}...` has {len} bytes; memcached takes {KEY_MAX_BYTES} at most"
    );
    let splits = |byte: &u8| *byte <= b' ' || *byte == 0x7F;
    ensure!(
        !key.iter().any(splits),
        "the key `{shown}` has a space or a control character in it, which memcached does not take"
    );
    Ok(())
}

/// Its answer is `MN`.
fn no_operation(wire: &mut Wire) -> Result<&[u8]> {
    wire.out.extend_from_slice(b"mn\r\n");
    wire.flush()?;
    wire.line()
}

impl Memcached {
    /// Connects once, so that a missing server is known at once.
    pub(super) fn open(address: Address, server_pid: Option<u32>) -> Result<Self> {
        let mut memcached =
            Self { address, traffic: Arc::default(), server_pid, connections_max: None };
        let mut wire = Wire::connect(&memcached.address, &Arc::default(), START)?;
        match no_operation(&mut wire)? {
            b"MN" => {}
            _ => bail!(
                "the server at {} knows no meta commands: memcached 1.6 is needed",
                memcached.address
            ),
        }
        memcached.connections_max =
            figure(&memcached.stats()?, "memcached", "max_connections").ok();
        Ok(memcached)
    }

    /// A connection that the server serves. Beyond its limit it takes connections and closes them,
    /// or lets them wait.
    fn connect(&self, number: usize) -> Result<Wire> {
        let mut wire = Wire::connect(&self.address, &Arc::default(), START)?;
        let is_served = no_operation(&mut wire).and_then(|line| match line {
            b"MN" => Ok(()),
            line => bail!("it says {}", line.escape_ascii()),
        });
        is_served.with_context(|| {
            let limit = self.connections_max.map_or("?".to_owned(), |most| most.to_string());
            format!(
                "{} does not serve connection {} of this run: its limit is {limit} connections \
                 of all its clients; start it with a higher one (-c N), or take fewer --clients",
                self.address,
                number + 1
            )
        })?;
        wire.count_in(&self.traffic);
        Ok(wire)
    }

    /// Of a connection that is not counted.
    fn stats(&self) -> Result<Vec<(String, String)>> {
        let mut wire = Wire::connect(&self.address, &Arc::default(), START)?;
        wire.out.extend_from_slice(b"stats\r\n");
        wire.flush()?;
        let mut all = Vec::new();
        loop {
            let line = String::from_utf8_lossy(wire.line()?).into_owned();
            match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
                ["END"] => return Ok(all),
                ["STAT", name, value] => all.push((name.to_owned(), value.to_owned())),
                _ => {}
            }
        }
    }
}

impl Target for Memcached {
    fn name(&self) -> String {
        self.address.name_of("memcached")
    }

    fn describe(&self) -> Result<Description> {
        let notes = vec![
            "meta commands: mg, ms, md".to_owned(),
            "an update of one field reads the record, patches it, and writes it if it is the same: \
             two round trips"
                .to_owned(),
        ];
        Ok(Description {
            version: figure(&self.stats()?, "memcached", "version")?,
            transport: self.address.transport().to_owned(),
            notes,
            ..Description::default()
        })
    }

    fn session(&self, client: usize) -> Result<Box<dyn Session>> {
        let wire = self.connect(client)?;
        Ok(Box::new(MemcachedSession { wire, patches: Patches::default() }))
    }

    fn usage(&self) -> Result<Option<Usage>> {
        let stats = self.stats()?;
        let cpu: [f64; 2] = [
            figure(&stats, "memcached", "rusage_user")?,
            figure(&stats, "memcached", "rusage_system")?,
        ];
        let own_pid: u32 = figure(&stats, "memcached", "pid")?;
        let pid = self.server_pid.unwrap_or(own_pid);
        // Of a server elsewhere it is nobody here, or another program.
        let resident = usage::resident_bytes(pid, "memcached");
        let cpu_seconds = cpu.iter().sum();
        let process = u64::from(own_pid);
        Ok(resident.map(|resident_bytes| Usage { process, cpu_seconds, resident_bytes }))
    }

    fn counters(&self) -> Counters {
        self.traffic.counters()
    }

    fn clear(&self) -> Result<()> {
        let mut wire = Wire::connect(&self.address, &Arc::default(), START)?;
        wire.out.extend_from_slice(b"flush_all\r\n");
        wire.flush()?;
        match wire.line()? {
            b"OK" => Ok(()),
            line => bail!("memcached answered flush_all with {}", line.escape_ascii()),
        }
    }
}

struct MemcachedSession {
    wire: Wire,
    patches: Patches,
}

/// Second steps of the updates of a part of a record.
#[derive(Default)]
struct Patches {
    /// Whose first step is on its way: a later operation on such a key has to wait.
    begun: Vec<usize>,
    /// Who has a second step: its place, what it expects, and its record in `bytes`.
    records: Vec<(usize, u64, Range<usize>)>,
    bytes: Vec<u8>,
    one: Vec<u8>,
}

impl Session for MemcachedSession {
    fn execute(
        &mut self,
        batch: &[Operation<'_>],
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        let mut done = 0;
        while done < batch.len() {
            let end = self.encode_piece(batch, done);
            if !self.wire.out.is_empty() {
                self.wire.flush()?;
            }
            for (place, operation) in batch.iter().enumerate().take(end).skip(done) {
                self.take_answer(place, operation, answer)?;
            }
            self.second_steps(batch, answer)?;
            done = end;
        }
        Ok(())
    }
}

/// Whether it takes two steps.
fn is_patch(operation: &Operation<'_>) -> bool {
    matches!(operation, Operation::Update { whole: false, .. } | Operation::Replace { .. })
}

fn key_of<'a>(operation: &Operation<'a>) -> &'a [u8] {
    match *operation {
        Operation::Read { key }
        | Operation::Insert { key, .. }
        | Operation::Update { key, .. }
        | Operation::Replace { key, .. }
        | Operation::Delete { key } => key,
        Operation::Scan { from, .. } => from,
    }
}

impl MemcachedSession {
    /// Encodes operations from `start` on that can be on their way together; where they end.
    fn encode_piece(&mut self, batch: &[Operation<'_>], start: usize) -> usize {
        self.patches.begun.clear();
        for (place, operation) in batch.iter().enumerate().skip(start) {
            let key = key_of(operation);
            let waits = self.patches.begun.iter().any(|&before| key_of(&batch[before]) == key);
            if waits || place > start && self.wire.out.len() + len_bytes(operation) > PIECE_BYTES {
                return place;
            }
            encode(&mut self.wire.out, operation);
            if is_patch(operation) {
                self.patches.begun.push(place);
            }
        }
        batch.len()
    }

    fn take_answer(
        &mut self,
        place: usize,
        operation: &Operation<'_>,
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        if matches!(operation, Operation::Scan { .. }) {
            answer(place, Outcome::Unsupported);
            return Ok(());
        }
        let found = match reply(&mut self.wire)? {
            Reply::Value { value, .. } if matches!(operation, Operation::Read { .. }) => {
                Outcome::Found(value)
            }
            Reply::Value { value, cas } if is_patch(operation) => {
                let Patches { records, bytes, one, .. } = &mut self.patches;
                match patch(operation, value, one) {
                    Ok(()) => {
                        let start = bytes.len();
                        bytes.extend_from_slice(one);
                        records.push((place, cas, start..bytes.len()));
                    }
                    Err(error) => answer(place, Outcome::Failed(&error.to_string())),
                }
                return Ok(());
            }
            Reply::Absent => Outcome::Absent,
            Reply::Done => Outcome::Done,
            Reply::Failed(text) => {
                answer(place, Outcome::Failed(&String::from_utf8_lossy(text)));
                return Ok(());
            }
            Reply::Value { .. } | Reply::Changed => bail!("memcached answered something else"),
        };
        answer(place, found);
        Ok(())
    }

    /// Writes what was patched; what others wrote in between is read and patched again.
    fn second_steps(
        &mut self,
        batch: &[Operation<'_>],
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let records = std::mem::take(&mut self.patches.records);
            let mut again = Vec::new();
            // Each long record alone, and short ones together.
            let mut sent = 0;
            for (number, (place, cas, range)) in records.iter().enumerate() {
                let (key, record) = (key_of(&batch[*place]), &self.patches.bytes[range.clone()]);
                push_set(&mut self.wire.out, key, record, 0, Some(*cas));
                if self.wire.out.len() > PIECE_BYTES / 2 || number + 1 == records.len() {
                    self.wire.flush()?;
                    for (place, ..) in &records[sent..=number] {
                        match reply(&mut self.wire)? {
                            Reply::Done => answer(*place, Outcome::Done),
                            Reply::Absent => answer(*place, Outcome::Absent),
                            Reply::Changed => again.push(*place),
                            Reply::Failed(text) => {
                                answer(*place, Outcome::Failed(&String::from_utf8_lossy(text)));
                            }
                            Reply::Value { .. } => bail!("memcached answered a write with a value"),
                        }
                    }
                    sent = number + 1;
                }
            }
            self.patches.bytes.clear();
            if again.is_empty() {
                // Its room is used again.
                self.patches.records = records;
                self.patches.records.clear();
                return Ok(());
            }
            for place in again {
                encode(&mut self.wire.out, &batch[place]);
                self.wire.flush()?;
                self.take_answer(place, &batch[place], answer)?;
            }
        }
        for (place, ..) in std::mem::take(&mut self.patches.records) {
            answer(place, Outcome::Failed("others wrote the record again and again in between"));
        }
        Ok(())
    }
}

/// About as many bytes as its command is long.
fn len_bytes(operation: &Operation<'_>) -> usize {
    const WORDS: usize = 48;
    let value = match operation {
        Operation::Insert { value, .. } => value.len(),
        Operation::Update { bytes, whole: true, .. } => bytes.len(),
        _ => 0,
    };
    WORDS + key_of(operation).len() + value
}

/// The command, or the first step of it.
fn encode(out: &mut Vec<u8>, operation: &Operation<'_>) {
    match *operation {
        Operation::Read { key } => push_key(out, b"mg ", key, b" v\r\n"),
        Operation::Insert { key, value, ttl_s } => push_set(out, key, value, ttl_s, None),
        Operation::Update { key, bytes, whole: true, .. } => push_set(out, key, bytes, 0, None),
        Operation::Update { key, .. } | Operation::Replace { key, .. } => {
            push_key(out, b"mg ", key, b" v c\r\n");
        }
        Operation::Delete { key } => push_key(out, b"md ", key, b"\r\n"),
        Operation::Scan { .. } => {}
    }
}

fn push_key(out: &mut Vec<u8>, command: &[u8], key: &[u8], flags: &[u8]) {
    out.extend_from_slice(command);
    out.extend_from_slice(key);
    out.extend_from_slice(flags);
}

fn push_set(out: &mut Vec<u8>, key: &[u8], value: &[u8], ttl_s: u32, cas: Option<u64>) {
    push_key(out, b"ms ", key, b" ");
    push_number(out, value.len() as u64);
    if let Some(cas) = cas {
        out.extend_from_slice(b" C");
        push_number(out, cas);
    }
    if ttl_s > 0 {
        out.extend_from_slice(b" T");
        push_number(out, expiry(ttl_s));
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn expiry(ttl_s: u32) -> u64 {
    if ttl_s <= RELATIVE_MAX_S {
        return ttl_s.into();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs() + u64::from(ttl_s)
}

enum Reply<'a> {
    Value {
        value: &'a [u8],
        cas: u64,
    },
    Absent,
    Done,
    /// The version is another one.
    Changed,
    Failed(&'a [u8]),
}

fn reply(wire: &mut Wire) -> Result<Reply<'_>> {
    let mut words = wire.line()?.split(|&byte| byte == b' ');
    let head = match words.next() {
        Some(b"VA") => {
            let len = words.next().and_then(number).context("memcached sent no length")?;
            let cas = words.find_map(|flag| number(flag.strip_prefix(b"c")?)).unwrap_or(0);
            Some((usize::try_from(len)?, cas))
        }
        Some(b"EN" | b"NF") => return Ok(Reply::Absent),
        Some(b"HD") => return Ok(Reply::Done),
        Some(b"EX") => return Ok(Reply::Changed),
        // Its text; the borrow of the line cannot be given back on one path only.
        _ => None,
    };
    match head {
        Some((len, cas)) => Ok(Reply::Value { value: wire.bytes(len)?, cas }),
        None => match wire.again() {
            line @ ([b'S', b'E', ..] | [b'C', b'L', ..] | [b'N', b'S', ..]) => {
                Ok(Reply::Failed(line))
            }
            line => bail!("memcached sent {}", line.escape_ascii()),
        },
    }
}
