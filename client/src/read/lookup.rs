//! GET by one-sided READs, every case of design.md 4, on any one-sided fabric. The fast path
//! ([`super::fast`]) is its first step without the detours.

use onesided_protocol::LogAddr;
use onesided_protocol::hash::KeyHash;
use onesided_protocol::layout::cell;
use onesided_protocol::layout::entry::{
    EntryHeader, HEADER_BYTES, Verdict, first_read_bytes, judge,
};
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::slot::Slot;
use onesided_protocol::layout::state::State;
use onesided_protocol::limits::{HOPS_MAX, ROUNDS_MAX};
use onesided_protocol::rules::{Rule, holds};
use zerocopy::IntoBytes;

use super::bucket::Bucket;
use super::current::Current;
use super::io::Io;
use super::target::Target;
use super::view::{IndexMap, Place, Refreshed, TableView};
use crate::error::Error;
use crate::stats::Counter;
use crate::value::Meta;

/// Forwards that are followed from a slot that was READ just now: in a table that clients update it
/// lags. Whoever follows more of them asks less often, and asking costs the server time; beyond
/// the square root of 2 answers' time in READs GETs are slower for it.
const FRESH_HOPS_MAX: u32 = 4;
/// The same where a READ is a load.
const LOADED_HOPS_MAX: u32 = 16;

/// What a lookup by READs came to.
pub(crate) enum Outcome {
    /// The target holds the value that was current at some moment of this call.
    Hit(Meta),
    /// There was one of so many bytes, and the target has no room for it.
    NoRoom { needed_bytes: usize },
    /// There was none at some moment of this call.
    Miss,
    /// READs alone do not tell: ask by RPC.
    AskServer,
}

/// One round's answer.
enum Round {
    Done(Outcome),
    /// Where the bucket is was not known: nothing was looked at, and nothing is repeated.
    Unmapped,
    /// Look again, after learning where the bucket is now if the flag says so.
    Again {
        refresh: bool,
    },
    /// The bucket gave only valid entries of other keys.
    Collision,
    /// It gave an entry that is not committed yet.
    Pending,
}

/// What one slot led to.
enum Followed {
    Hit(Meta),
    NoRoom {
        needed_bytes: usize,
    },
    Expired,
    ExpiryUnclear,
    OtherKey,
    Dead,
    Unproven,
    /// Its state word says that it is not committed yet, or what was there before is not.
    Pending,
    /// Replaced more often than is followed.
    TooFar,
}

/// Looks `key` up; its value goes into `target`, which holds anything after other outcomes than a
/// hit. Ends after [`ROUNDS_MAX`] rounds at the latest.
pub(crate) async fn lookup(
    io: &Io<'_>,
    view: &TableView,
    key: &[u8],
    target: &mut Target<'_, '_>,
) -> Result<Outcome, Error> {
    let hash = view.hash(key);
    let (mut collisions, mut pending) = (0, 0);
    let mut looked = false;
    for round in 0..ROUNDS_MAX {
        if looked {
            io.counts.add(Counter::Retries, 1);
            // Of what this client has replaced by itself.
            io.connection.commit_now();
        }
        let search = Search { io, view, key, hash, may_use_cache: round == 0 };
        let round = search.round(target).await?;
        looked |= !matches!(round, Round::Unmapped);
        match round {
            Round::Done(outcome) => return Ok(outcome),
            Round::Again { refresh: false } => {}
            Round::Unmapped | Round::Again { refresh: true } => {
                match view.refresh(io, hash).await? {
                    Refreshed::Yes => {}
                    Refreshed::TableGone => return Ok(Outcome::AskServer),
                }
            }
            // It is no proof of a miss: the slot of this very key may have been replaced by one
            // of the other meanwhile.
            Round::Collision => collisions += 1,
            // Its writer may take as long as it wants, and the server commits it when asked.
            Round::Pending => pending += 1,
        }
        if collisions == 2 || pending == 2 {
            break;
        }
    }
    Ok(Outcome::AskServer)
}

/// The value's bytes in an entry's image, which was judged to be whole.
#[inline]
pub(super) fn bytes_of<'i>(image: &'i [u8], header: &EntryHeader) -> &'i [u8] {
    &image[header.value_offset()..header.len_bytes()]
}

/// Whether the state word says so, which comes first.
fn is_pending(entry: &[u64]) -> bool {
    entry.first().is_some_and(|word| matches!(State::decode(*word), State::Pending(1..)))
}

struct Search<'a> {
    io: &'a Io<'a>,
    view: &'a TableView,
    key: &'a [u8],
    hash: KeyHash,
    may_use_cache: bool,
}

impl Search<'_> {
    async fn round(&self, target: &mut Target<'_, '_>) -> Result<Round, Error> {
        let Some((map, place)) = self.view.map().and_then(|map| Some((map, map.place(self.hash)?)))
        else {
            return Ok(Round::Unmapped);
        };
        let Some(bucket) = self.bucket(map, place).await? else {
            return Ok(Round::Again { refresh: true });
        };
        let candidates = bucket.candidates(self.hash);
        if candidates.is_empty() {
            return self.no_candidate(&bucket, place).await;
        }
        // Also when a split has begun to move the key: its slot is good until the split ends.
        self.follow_all(&candidates, &bucket, target).await
    }

    async fn bucket(&self, map: &IndexMap, place: Place) -> Result<Option<Bucket>, Error> {
        if self.may_use_cache
            && let Some(bucket) = Bucket::cached(map, place)
        {
            self.io.counts.add(Counter::CacheHits, 1);
            return Ok(Some(bucket));
        }
        Bucket::read(self.io, map, place).await
    }

    async fn no_candidate(&self, bucket: &Bucket, place: Place) -> Result<Round, Error> {
        if !bucket.fresh {
            if !holds(Rule::CacheNeverProvesMiss) {
                return Ok(Round::Done(Outcome::Miss));
            }
            return Ok(Round::Again { refresh: false });
        }
        let proven = if holds(Rule::MissRechecksVersion) {
            bucket.proves_a_miss(self.io, place, self.hash).await?
        } else {
            bucket.covers(self.hash)
        };
        // While this client was stopped its session may have ended, and the index be another's.
        let fenced = holds(Rule::FencedProvesNoMiss) && self.io.connection.endpoint().is_fenced();
        Ok(match proven {
            true if fenced => Round::Done(Outcome::AskServer),
            true => Round::Done(Outcome::Miss),
            false => Round::Again { refresh: true },
        })
    }

    async fn follow_all(
        &self,
        candidates: &[Slot],
        bucket: &Bucket,
        target: &mut Target<'_, '_>,
    ) -> Result<Round, Error> {
        let (mut only_other_keys, mut is_pending) = (true, false);
        for &slot in candidates {
            let done = match self.follow(slot, bucket.fresh, target).await? {
                Followed::Hit(meta) => Outcome::Hit(meta),
                Followed::NoRoom { needed_bytes } => Outcome::NoRoom { needed_bytes },
                Followed::Expired => Outcome::Miss,
                Followed::ExpiryUnclear => Outcome::AskServer,
                Followed::Dead if !holds(Rule::DeadLooksAgain) => Outcome::Miss,
                Followed::OtherKey => continue,
                // Where clients update, slots lag: the server repairs this one when it is asked.
                Followed::TooFar if bucket.fresh => Outcome::AskServer,
                followed @ (Followed::Dead
                | Followed::Unproven
                | Followed::Pending
                | Followed::TooFar) => {
                    is_pending |= matches!(followed, Followed::Pending);
                    only_other_keys = false;
                    continue;
                }
            };
            return Ok(Round::Done(done));
        }
        let refresh = bucket.fresh && !bucket.covers(self.hash);
        if bucket.fresh && only_other_keys && !refresh {
            return Ok(Round::Collision);
        }
        Ok(if is_pending && !refresh { Round::Pending } else { Round::Again { refresh } })
    }

    /// READs the entry that a slot points at, and those it was replaced by.
    async fn follow(
        &self,
        slot: Slot,
        is_fresh: bool,
        target: &mut Target<'_, '_>,
    ) -> Result<Followed, Error> {
        let (mut class, mut next) = (slot.class(), slot.addr());
        let hops_max = match is_fresh {
            // A cached slot may be as old as can be: its bucket is nearer than the chain's end.
            false => HOPS_MAX,
            true if self.io.connection.caps().reads_now => LOADED_HOPS_MAX,
            true => FRESH_HOPS_MAX,
        };
        for hop in 0..=hops_max {
            let Some(addr) = next else { break };
            if hop > 0 {
                self.io.counts.add(Counter::ForwardHops, 1);
            }
            let len_bytes = first_read_bytes(size_class::bytes(class), self.key.len());
            let Some(words) = self.io.read(addr, len_bytes).await? else { break };
            match judge(&self.view.sums, addr, words.as_bytes(), self.key) {
                Verdict::Hit(header) => return self.hit(addr, header, words, target).await,
                Verdict::Large { header, state } => {
                    return self.large(addr, header, state, target).await;
                }
                Verdict::Forwarded(..) if hop == hops_max => return Ok(Followed::TooFar),
                Verdict::Forwarded(of, to) => (class, next) = (of, Some(to)),
                Verdict::OtherKey => return Ok(Followed::OtherKey),
                Verdict::Dead => return Ok(Followed::Dead),
                Verdict::Unproven if is_pending(&words) => {
                    return Ok(Followed::Pending);
                }
                Verdict::Unproven => {
                    self.io.counts.add(Counter::ChecksumFailures, 1);
                    break;
                }
            }
        }
        Ok(Followed::Unproven)
    }

    async fn hit(
        &self,
        addr: LogAddr,
        header: EntryHeader,
        words: Vec<u64>,
        target: &mut Target<'_, '_>,
    ) -> Result<Followed, Error> {
        if header.is_counter() {
            return self.counter(&header, words, target).await;
        }
        let EntryHeader { version, expiry_s, flags, .. } = header;
        if flags == 0 {
            target.note(Current { addr, word: words[0], version, expiry_s });
        }
        Ok(match self.io.expired(header.expiry_s) {
            Expired::No if target.copy(bytes_of(words.as_bytes(), &header)) => {
                Followed::Hit(Meta::of(&header))
            }
            Expired::No => Followed::NoRoom { needed_bytes: header.value_len as usize },
            Expired::Unclear => Followed::ExpiryUnclear,
            // It may have been replaced in time, after it was READ: it is a miss only if it is
            // still the key's entry now that its time is over.
            Expired::Yes => match self.io.read(addr, HEADER_BYTES).await? {
                Some(again) if again.first() == words.first() => Followed::Expired,
                _ => Followed::Unproven,
            },
        })
    }

    /// The cell says what the counter is, if it still is one: its end is said there first.
    async fn counter(
        &self,
        header: &EntryHeader,
        words: Vec<u64>,
        target: &mut Target<'_, '_>,
    ) -> Result<Followed, Error> {
        let cell = cell::from_value(bytes_of(words.as_bytes(), header));
        let number = match cell {
            Some(cell) => self.io.number(cell).await?,
            None => None,
        };
        let Some(number) = number else { return Ok(Followed::Unproven) };
        let text = number.to_string();
        Ok(match target.copy(text.as_bytes()) {
            true => Followed::Hit(Meta::of(header)),
            false => Followed::NoRoom { needed_bytes: text.len() },
        })
    }

    /// READs exactly the value; and only after that has completed the state word again: the same
    /// means whole (design.md 4).
    async fn large(
        &self,
        addr: LogAddr,
        header: EntryHeader,
        state: u64,
        target: &mut Target<'_, '_>,
    ) -> Result<Followed, Error> {
        let value_len = header.value_len as usize;
        let Some((remote, room)) = self.io.place(addr, header.padded_bytes()).await? else {
            return Ok(Followed::Unproven);
        };
        if room < header.padded_bytes() {
            return Ok(Followed::Unproven);
        }
        let offset_bytes = remote.offset_bytes + header.value_offset() as u64;
        let from = onesided_fabric::RemoteAddr { offset_bytes, ..remote };
        let has_room = target.has_room(value_len);
        if has_room {
            target.read(self.io, from, value_len).await?;
        }
        // Before the state word: an expired entry is a miss only if it was not replaced in time.
        let expired = self.io.expired(header.expiry_s);
        if holds(Rule::LargeReadsStateAgain) {
            let again = self.io.read_at(remote, 8).await?;
            if again[0] != state {
                return Ok(Followed::Unproven);
            }
        }
        Ok(match expired {
            Expired::No if has_room => Followed::Hit(Meta::of(&header)),
            Expired::No => Followed::NoRoom { needed_bytes: value_len },
            Expired::Yes => Followed::Expired,
            Expired::Unclear => Followed::ExpiryUnclear,
        })
    }
}

/// Whether an expiry has passed on the server's clock, as far as this side can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expired {
    /// It has not.
    No,
    /// It has.
    Yes,
    /// It is within the clock's error bound: only the server can tell, so that nobody sees a
    /// miss and then a hit.
    Unclear,
}

impl Expired {
    /// For an expiry in seconds (0 = never) and the server's time with its error bound, in ns.
    pub(crate) fn at(expiry_s: u32, now_ns: u64, error_ns: u64) -> Self {
        let expiry_ns = u64::from(expiry_s) * 1_000_000_000;
        match expiry_s {
            0 => Self::No,
            _ if now_ns + error_ns < expiry_ns => Self::No,
            _ if now_ns.saturating_sub(error_ns) >= expiry_ns => Self::Yes,
            _ => Self::Unclear,
        }
    }
}
