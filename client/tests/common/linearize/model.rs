//! One key of the store, as if nothing ever happened at the same time.

use onesided_protocol::layout::cell::may_become;
use serde::{Deserialize, Serialize};

/// A value. Tests write each byte value once, so equal contents mean the same write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Content {
    /// A number that stands for bytes: [`Content::of`] and [`Content::appended`] make them.
    Bytes(u64),
    /// These bytes with a stamp written over a few of them, by [`Content::stamped`].
    Stamped(u64, u64),
    /// A decimal number, for increments.
    Number(i64),
    /// A counter; who reads it as a value sees a number.
    Counter(i64),
}

impl Content {
    /// The bytes of one piece.
    pub fn of(piece: u64) -> Self {
        Self::Bytes(piece)
    }

    /// These bytes with another piece behind them.
    pub fn appended(self, piece: u64) -> Self {
        let then = |id: u64| (id.rotate_left(23) ^ piece).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        match self {
            Self::Stamped(id, stamp) => Self::Stamped(then(id), stamp),
            other => Self::Bytes(then(other.id())),
        }
    }

    /// These bytes with a stamp where all stamps are written: the last one is seen.
    pub fn stamped(self, stamp: u64) -> Self {
        Self::Stamped(self.id(), stamp)
    }

    /// What a value with this content looks like.
    fn seen(self) -> Self {
        match self {
            Self::Counter(n) => Self::Number(n),
            other => other,
        }
    }

    fn id(self) -> u64 {
        match self {
            Self::Bytes(id) | Self::Stamped(id, _) => id,
            Self::Number(n) | Self::Counter(n) => n as u64 ^ 0x5555_5555_5555_5555,
        }
    }
}

/// As `onesided_protocol::rpc::Expect`, for histories that cross processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Expect {
    Any,
    Absent,
    Present,
    Version(u64),
}

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Op {
    Get,
    /// `expiry_s`: 0 = never.
    Put {
        content: Content,
        expect: Expect,
        expiry_s: u32,
    },
    Delete {
        expect: Expect,
    },
    Append {
        piece: u64,
    },
    /// Write at an offset, always the same one.
    Stamp {
        stamp: u64,
    },
    Increment {
        by: i64,
    },
    Touch {
        expiry_s: u32,
    },
    /// Of a counter; absent, it counts as 0.
    Add {
        by: i64,
    },
    Swap {
        expected: i64,
        new: i64,
    },
    Count,
    /// The server's clock reaches this second: what expires by then is gone.
    Clock {
        now_s: u32,
    },
    /// The end of what was given this expiry, where nobody knows the server's clock and the
    /// expiry is but a name.
    Ends {
        expiry_s: u32,
    },
}

/// What is answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Ret {
    /// Get: content and version.
    Value(Content, u64),
    /// Get, delete, touch, stamp: there is none.
    Absent,
    /// Put, append, touch, stamp: the version it has now.
    Version(u64),
    /// Delete: it was there.
    Deleted,
    /// `expect` was not met.
    Refused,
    /// Increment of what is no number.
    WrongType,
    /// Increment: the sum, and the version if it was told.
    Number(i64, Option<u64>),
    /// A counter's number, before it was changed.
    Old(i64),
    /// Touch: it was there; the version was not told.
    Touched,
    /// Clock, ends.
    Ticked,
}

/// What the key has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stored {
    pub content: Content,
    /// `None`: the operation that wrote it never told.
    pub version: Option<u64>,
    pub expiry_s: u32,
}

/// The key: what it has, and the highest version ever told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct State {
    pub stored: Option<Stored>,
    pub told: u64,
}

impl State {
    /// The state after `op`, if `op` can answer `ret` in this state. With `None` the answer is
    /// not known: the state after it took effect, or `None` if it would change nothing.
    pub fn step(&self, op: &Op, ret: Option<&Ret>) -> Option<Self> {
        match ret {
            Some(ret) => self.answered(op, ret),
            None => self.silent(op),
        }
    }

    fn answered(&self, op: &Op, ret: &Ret) -> Option<Self> {
        match (*op, *ret) {
            (Op::Get, Ret::Value(content, version)) => self.read(content, version),
            (Op::Get | Op::Touch { .. } | Op::Stamp { .. }, Ret::Absent) => self.unless_stored(),
            (Op::Put { expect, .. } | Op::Delete { expect }, Ret::Refused) => {
                self.meets(expect, false).then_some(*self)
            }
            (Op::Put { content, expect, expiry_s }, Ret::Version(version)) => {
                let met = self.assuming(expect)?;
                met.written(content, Some(version), expiry_s)
            }
            (Op::Delete { expect }, Ret::Deleted) => {
                let met = self.assuming(expect)?;
                met.stored.map(|_| Self { stored: None, ..met })
            }
            (Op::Delete { expect }, Ret::Absent) => self.assuming(expect)?.unless_stored(),
            (Op::Append { .. } | Op::Stamp { .. } | Op::Touch { .. }, Ret::Version(version)) => {
                self.mutated(op)?.with_version(self, version)
            }
            (Op::Touch { .. }, Ret::Touched) => self.mutated(op),
            (Op::Add { .. } | Op::Swap { .. } | Op::Count, Ret::Old(old)) => {
                (self.counted()? == old).then(|| self.counting(op)).flatten()
            }
            (Op::Add { by }, Ret::WrongType) => {
                let is_refused = |old: i64| !may_become(old, old + by);
                self.counted().is_none_or(is_refused).then_some(*self)
            }
            (Op::Swap { .. } | Op::Count, Ret::WrongType) => {
                self.counted().is_none().then_some(*self)
            }
            (Op::Append { .. } | Op::Stamp { .. } | Op::Touch { .. }, Ret::WrongType) => {
                let is_counter = |s: Stored| matches!(s.content, Content::Counter(_));
                self.stored.is_some_and(is_counter).then_some(*self)
            }
            (Op::Increment { by }, Ret::Number(value, None)) if self.is_counter() => {
                (self.counted()? + by == value).then(|| self.counting(&Op::Add { by })).flatten()
            }
            (Op::Increment { .. }, Ret::Number(value, version)) => {
                let after = self.mutated(op)?;
                let fits = after.stored.is_some_and(|s| s.content == Content::Number(value));
                match version {
                    _ if !fits => None,
                    Some(version) => after.with_version(self, version),
                    None => Some(after),
                }
            }
            (Op::Increment { by }, Ret::WrongType) => {
                let is_refused = |s: Stored| match s.content {
                    Content::Counter(old) => !may_become(old, old + by),
                    Content::Number(_) => false,
                    Content::Bytes(_) | Content::Stamped(..) => true,
                };
                self.stored.is_some_and(is_refused).then_some(*self)
            }
            (Op::Clock { now_s }, Ret::Ticked) => Some(self.at(now_s)),
            (Op::Ends { expiry_s }, Ret::Ticked) => Some(self.without(expiry_s)),
            _ => None,
        }
    }

    fn silent(&self, op: &Op) -> Option<Self> {
        match *op {
            Op::Get | Op::Count => None,
            Op::Add { .. } | Op::Swap { .. } => self.counting(op).filter(|after| after != self),
            Op::Increment { by } if self.is_counter() => self.counting(&Op::Add { by }),
            Op::Put { content, expect, expiry_s } => {
                self.assuming(expect)?.written(content, None, expiry_s)
            }
            Op::Delete { expect } => {
                let met = self.assuming(expect)?;
                met.stored.map(|_| Self { stored: None, ..met })
            }
            Op::Append { .. } | Op::Stamp { .. } | Op::Increment { .. } | Op::Touch { .. } => {
                self.mutated(op)
            }
            Op::Clock { now_s } => Some(self.at(now_s)).filter(|after| after != self),
            Op::Ends { expiry_s } => Some(self.without(expiry_s)).filter(|after| after != self),
        }
    }

    /// A get of these. What was not known about the version is known now.
    fn read(&self, content: Content, version: u64) -> Option<Self> {
        let stored = self.stored.filter(|s| s.content.seen() == content)?;
        match stored.version {
            Some(known) => (known == version).then_some(*self),
            None => (version > self.told).then_some(Self {
                stored: Some(Stored { version: Some(version), ..stored }),
                told: version,
            }),
        }
    }

    fn is_counter(&self) -> bool {
        self.stored.is_some_and(|s| matches!(s.content, Content::Counter(_)))
    }

    /// What it counts; `None`: it is no counter.
    fn counted(&self) -> Option<i64> {
        match self.stored.map(|s| s.content) {
            None => Some(0),
            Some(Content::Counter(n)) => Some(n),
            Some(_) => None,
        }
    }

    /// After an operation on a counter: its entry stays, and with it the version.
    fn counting(&self, op: &Op) -> Option<Self> {
        let old = self.counted()?;
        let new = match *op {
            Op::Add { by } => old + by,
            Op::Swap { expected, new } if expected == old => new,
            Op::Swap { .. } | Op::Count => return Some(*self),
            _ => return None,
        };
        let content = Content::Counter(new);
        let made = Stored { content, version: None, expiry_s: 0 };
        let stored = self.stored.map_or(made, |stored| Stored { content, ..stored });
        Some(Self { stored: Some(stored), ..*self })
    }

    fn unless_stored(&self) -> Option<Self> {
        self.stored.is_none().then_some(*self)
    }

    /// Whether `expect` may have been met, or not met.
    fn meets(&self, expect: Expect, wanted: bool) -> bool {
        match expect {
            Expect::Any => wanted,
            Expect::Absent => self.stored.is_none() == wanted,
            Expect::Present => self.stored.is_some() == wanted,
            Expect::Version(v) => match self.stored {
                None => !wanted,
                Some(Stored { version: Some(known), .. }) => (known == v) == wanted,
                Some(Stored { version: None, .. }) => !wanted || v > self.told,
            },
        }
    }

    /// This state, with what follows from `expect` having been met.
    fn assuming(&self, expect: Expect) -> Option<Self> {
        if !self.meets(expect, true) {
            return None;
        }
        let mut met = *self;
        if let (Expect::Version(v), Some(stored)) = (expect, &mut met.stored) {
            stored.version = Some(v);
            met.told = met.told.max(v);
        }
        Some(met)
    }

    /// Versions: an update adds 1, an insert is above all that was.
    fn written(&self, content: Content, version: Option<u64>, expiry_s: u32) -> Option<Self> {
        let after = Self { stored: Some(Stored { content, version: None, expiry_s }), ..*self };
        match version {
            Some(version) => after.with_version(self, version),
            None => Some(after),
        }
    }

    fn with_version(mut self, before: &Self, version: u64) -> Option<Self> {
        let fits = match before.stored.and_then(|s| s.version) {
            Some(known) => version == known + 1,
            None => version > before.told,
        };
        if !fits {
            return None;
        }
        self.stored.as_mut()?.version = Some(version);
        self.told = version;
        Some(self)
    }

    /// After an append, stamp, increment or touch that does something.
    fn mutated(&self, op: &Op) -> Option<Self> {
        let before = self.stored;
        let kept_s = before.map_or(0, |s| s.expiry_s);
        if self.is_counter() {
            return None;
        }
        let (content, expiry_s) = match (*op, before) {
            (Op::Append { piece }, None) => (Content::of(piece), 0),
            (Op::Append { piece }, Some(s)) => (s.content.appended(piece), kept_s),
            (Op::Stamp { stamp }, Some(s)) => (s.content.stamped(stamp), kept_s),
            (Op::Increment { by }, None) => (Content::Number(by), 0),
            (Op::Increment { by }, Some(s)) => match s.content {
                Content::Number(n) => (Content::Number(n.checked_add(by)?), kept_s),
                Content::Bytes(_) | Content::Stamped(..) | Content::Counter(_) => return None,
            },
            (Op::Touch { expiry_s }, Some(s)) => (s.content, expiry_s),
            _ => return None,
        };
        Some(Self { stored: Some(Stored { content, version: None, expiry_s }), ..*self })
    }

    fn at(&self, now_s: u32) -> Self {
        let kept = self.stored.filter(|s| s.expiry_s == 0 || now_s < s.expiry_s);
        Self { stored: kept, ..*self }
    }

    fn without(&self, expiry_s: u32) -> Self {
        let kept = self.stored.filter(|s| s.expiry_s != expiry_s);
        Self { stored: kept, ..*self }
    }
}
