//! An update where WRITE and compare-and-swap are work requests: one round trip from an entry that
//! is known, behind one doorbell; what commits the new entry is posted later and not waited for.

use std::sync::Arc;

use onesided_fabric::RemoteAddr;
use onesided_protocol::LogAddr;
use onesided_protocol::layout::size_class;
use onesided_protocol::layout::state::State;
use onesided_protocol::limits::HOPS_MAX;
use onesided_protocol::rpc::Op;
use onesided_protocol::rules::{Rule, holds};
use zerocopy::IntoBytes;

use super::entry::{self, Words};
use super::extents::Held;
use super::known::{Remembered, Tag};
use super::{Done, Put, TRIES, Tried, Updates};
use crate::core::{Deadline, NoWord, Posted, Session, Swap, block_on};
use crate::error::Error;
use crate::options::PutOptions;
use crate::read::{self, Current, Seen};
use crate::rpc;
use crate::stats::Counter;
use crate::table::{OpenTable, Own, TableHandle};

/// After so many updates of a key by this client its slot is repaired. Readers follow four forwards
/// here and then ask, which repairs it, too; so oftener would help few of them.
const REPAIR_EVERY: u32 = 512;

/// An entry's place while it is being linked.
struct Place {
    addr: LogAddr,
    len_bytes: usize,
    _held: Held,
}

pub(super) async fn put(
    table: &TableHandle,
    key: &[u8],
    value: &[u8],
    options: PutOptions,
) -> Result<Tried, Error> {
    let by = table.deadline("put");
    let open = table.open(by).await?;
    let Some(updates) = &open.updates else { return Ok(Tried::AskServer) };
    let Some(put) = Put::of(&open, key, value, options) else { return Ok(Tried::AskServer) };
    // What it looks at must be usable after this.
    let begun = table.begin();
    if !open.is_usable() {
        return Ok(Tried::AskServer);
    }
    let tag = updates.known.tag(open.view.hash(key), key);
    let update = Update { open: &open, updates, put, tag, by };
    let tried = update.make().await;
    drop(begun);
    match tried {
        Ok(tried) => Ok(tried),
        Err(Failed::Nothing) => Ok(Tried::AskServer),
        Err(Failed::InDoubt(place, version)) => {
            let session = Arc::clone(open.connection.session());
            in_doubt(table, InDoubt { session, place, version }, key).await
        }
    }
}

/// As [`put`], of a key whose entry is known, by a thread that waits itself: in few instructions,
/// where nothing is in the way. `None`: nothing was done.
pub(super) fn put_waiting(
    open: &OpenTable,
    own: &Own,
    updates: &Updates,
    put: Put<'_>,
) -> Option<Result<Tried, InDoubt>> {
    let tag = updates.known.tag(open.view.hash(put.key), put.key);
    let known = updates.known.get(tag)?;
    let by = Deadline::after("put", open.connection.options().operation_timeout);
    let update = Update { open, updates, put, tag, by };
    match update.make_waiting(own, known)? {
        Ok(tried) => Some(Ok(tried)),
        Err(Failed::Nothing) => Some(Ok(Tried::AskServer)),
        Err(Failed::InDoubt(place, version)) => {
            let session = Arc::clone(open.connection.session());
            Some(Err(InDoubt { session, place, version }))
        }
    }
}

/// What became of an update is not known.
pub(super) struct InDoubt {
    session: Arc<Session>,
    place: Place,
    version: u64,
}

/// Why an update did not come through.
enum Failed {
    /// Nothing was changed.
    Nothing,
    /// The connection was lost before it was known whether the entry of this version was linked.
    InDoubt(Place, u64),
}

struct Update<'a> {
    open: &'a OpenTable,
    updates: &'a Updates,
    put: Put<'a>,
    tag: Tag,
    by: Deadline,
}

impl Update<'_> {
    async fn make(&self) -> Result<Tried, Failed> {
        match self.remembered().await {
            Some(remembered) => self.make_from(remembered, None).await,
            None => Ok(Tried::AskServer),
        }
    }

    /// The first try of a thread that waits itself; the others, if others are faster. `None`:
    /// nothing was posted.
    fn make_waiting(&self, own: &Own, remembered: Remembered) -> Option<Result<Tried, Failed>> {
        let Remembered { current, updates } = remembered;
        let is_simple = holds(Rule::IndexReadOnly) && holds(Rule::Token);
        if !is_simple || !self.put.may_replace(self.open, &current) {
            return None;
        }
        let version = current.version.checked_add(1)?;
        let at = self.remote(current.addr)?;
        let (mut place, connection) = (None, &self.open.connection);
        let post = |id| self.post(id, &mut place, (at, current.word), version);
        let (sent, found) = match connection.word_blocking(self.by, post)? {
            Ok(found) => found,
            Err(NoWord::NotPosted(Stopped::NoRoom)) => return Some(Ok(Tried::NoRoom)),
            Err(NoWord::NotPosted(_) | NoWord::NoSlot(_)) => return None,
            Err(NoWord::Failed(_) | NoWord::NoAnswer(_)) => {
                connection.mark_lost("an update was not answered");
                return Some(Err(Failed::InDoubt(place?, version)));
            }
        };
        own.shard.add(Counter::UpdateRoundTrips, 1);
        let first = (Attempt { found, version, sent }, place?);
        if found == sent.expected {
            return Some(Ok(self.linked(first.1.addr, &first.0, updates, false)));
        }
        let others = self.make_from(remembered, Some(first));
        Some(block_on(|| Some(Arc::clone(connection)), others))
    }

    /// Tries until it is linked; `first` is a try that was.
    async fn make_from(
        &self,
        remembered: Remembered,
        first: Option<(Attempt, Place)>,
    ) -> Result<Tried, Failed> {
        let Remembered { mut current, updates } = remembered;
        let (mut first, mut place) = first.unzip();
        let seen = match holds(Rule::IndexReadOnly) {
            true => None,
            false => read::seen_slot(self.open, self.put.key).await,
        };
        let mut lost = false;
        for _ in 0..TRIES {
            if !self.put.may_replace(self.open, &current) {
                break;
            }
            let tried = match first.take() {
                Some(first) => Ok(first),
                None => self.try_once(current, &mut place).await,
            };
            let attempt = match tried {
                Ok(tried) => tried,
                Err(Stopped::NoRoom) => return Ok(Tried::NoRoom),
                Err(Stopped::Nothing) => break,
                Err(Stopped::InDoubt(version)) => {
                    let place = place.take().ok_or(Failed::Nothing)?;
                    return Err(Failed::InDoubt(place, version));
                }
            };
            let found = attempt.found;
            if found == attempt.sent.expected {
                let Some(Place { addr, .. }) = place else { break };
                let done = self.linked(addr, &attempt, updates, lost);
                if !holds(Rule::IndexReadOnly) {
                    read::point_slot(self.open, self.put.key, seen, attempt.sent.words.forward);
                }
                return Ok(done);
            }
            self.open.counts.add(Counter::UpdatesLost, 1);
            lost = true;
            // Of its own entry, which the server has committed meanwhile.
            if found == current.word {
                continue;
            }
            match self.newer(found).await {
                Some(newer) => current = newer,
                None => break,
            }
        }
        self.updates.known.forget(self.tag);
        Ok(Tried::AskServer)
    }

    async fn remembered(&self) -> Option<Remembered> {
        if let Some(remembered) = self.updates.known.get(self.tag) {
            return Some(remembered);
        }
        self.open.counts.add(Counter::UpdateRoundTrips, 1);
        let current = read::current(self.open, self.put.key).await.ok()??;
        Some(Remembered { current, updates: 0 })
    }

    /// WRITEs the entry and swaps the state word of the current one. Gives the word that was there.
    async fn try_once(
        &self,
        current: Current,
        place: &mut Option<Place>,
    ) -> Result<Attempt, Stopped> {
        let version = current.version.checked_add(1).ok_or(Stopped::Nothing)?;
        let at = self.remote(current.addr).ok_or(Stopped::Nothing)?;
        let expected = self.expected(current).await;
        let post = |id| self.post(id, place, (at, expected), version);
        let posted = self.open.connection.word(self.by, post).await;
        let (sent, found) = match posted {
            Ok(found) => found,
            Err(NoWord::NotPosted(stopped)) => return Err(stopped),
            Err(NoWord::NoSlot(_)) => return Err(Stopped::Nothing),
            Err(NoWord::Failed(_) | NoWord::NoAnswer(_)) => {
                // Nothing else tells any more whether it was swapped: the connection has to end.
                self.open.connection.mark_lost("an update was not answered");
                return Err(Stopped::InDoubt(version));
            }
        };
        self.open.counts.add(Counter::UpdateRoundTrips, 1);
        Ok(Attempt { found, version, sent })
    }

    /// The word that is to be swapped: that of this very entry. (Without the rule that of whatever
    /// committed entry is there now.)
    async fn expected(&self, current: Current) -> u64 {
        if holds(Rule::Token) {
            return current.word;
        }
        let words = self.open.io().read(current.addr, size_class::bytes(0)).await;
        let word = words.ok().flatten().and_then(|words| words.first().copied());
        word.filter(|word| matches!(State::decode(*word), State::Committed(_))).unwrap_or(0)
    }

    /// Under the lock of the leases: entries are WRITTEN in the order of their places.
    fn post(
        &self,
        id: u64,
        place: &mut Option<Place>,
        (at, expected): (RemoteAddr, u64),
        version: u64,
    ) -> Result<Sent, Stopped> {
        let is_new = place.is_none();
        let len_bytes = entry::len_bytes(self.put.key, self.put.value);
        let Updates { extents, turn, .. } = self.updates;
        let mut room = extents.lock_in(*turn).ok_or(Stopped::Nothing)?;
        if is_new {
            let Some(addr) = room.place(len_bytes) else {
                return Err(if room.pauses() { Stopped::Nothing } else { Stopped::NoRoom });
            };
            let held = room.hold().ok_or(Stopped::Nothing)?;
            *place = Some(Place { addr, len_bytes, _held: held });
        }
        let addr = place.as_ref().ok_or(Stopped::Nothing)?.addr;
        let give_back = |room: &mut super::extents::Room, place: &mut Option<Place>| {
            if is_new && let Some(unused) = place.take() {
                room.give_back(unused.len_bytes);
            }
            Stopped::Nothing
        };
        let Some(to) = self.remote(addr) else { return Err(give_back(&mut room, place)) };
        let mut buffer = self.open.connection.shared().pool.get(len_bytes);
        let sums = &self.open.view.sums;
        let words = entry::lay_out(&mut buffer, &self.put, version, addr, sums);
        let connection = &self.open.connection;
        let (commits, expected) = connection.take_commits(at, expected);
        let swap = Swap { at, expected, new: words.forward };
        match connection.post_swap(id, commits, (to, buffer), swap) {
            Ok(Posted::Both) => Ok(Sent { words, expected, tend: room.is_low() }),
            // A pending entry that nothing leads to. What was to be committed the server does.
            Ok(Posted::WriteOnly) | Err(_) => Err(Stopped::Nothing),
            Ok(Posted::Nothing) => Err(give_back(&mut room, place)),
        }
    }

    fn remote(&self, addr: LogAddr) -> Option<RemoteAddr> {
        self.open.io().known_place(addr)
    }

    /// Commits the entry, without waiting; should that not arrive, the server does it. Where others
    /// write the key it is done at once: they wait for it.
    fn commit(&self, addr: LogAddr, words: Words, is_contended: bool) {
        let Some(at) = self.remote(addr) else { return };
        let connection = &self.open.connection;
        if holds(Rule::FinishByCas) {
            let swap = Swap { at, expected: words.pending, new: words.committed };
            match is_contended {
                true => connection.commit_at_once(swap),
                false => connection.commit(swap, self.by.at),
            }
        } else {
            let word = connection.shared().pool.copy_of(&words.committed.to_le_bytes());
            connection.write_unheard(at, word);
        }
    }

    /// The entry at `addr` is the newest one.
    fn linked(&self, addr: LogAddr, attempt: &Attempt, updates: u32, is_contended: bool) -> Tried {
        let &Attempt { version, sent: Sent { words, tend, .. }, .. } = attempt;
        self.commit(addr, words, is_contended);
        let (word, expiry_s) = (words.committed, self.put.expiry_s);
        let current = Current { addr, word, version, expiry_s };
        let repair = updates + 1 >= REPAIR_EVERY;
        let updates = if repair { 0 } else { updates + 1 };
        self.updates.known.put(self.tag, Remembered { current, updates });
        Tried::Done(Done { version, tend, repair })
    }

    /// The newest entry, when the state word of one before it was this.
    async fn newer(&self, found: u64) -> Option<Current> {
        let (key, io) = (self.put.key, self.open.io());
        if let State::Forwarded(mut class, Some(mut addr)) = State::decode(found) {
            for _ in 0..HOPS_MAX {
                self.open.counts.add(Counter::UpdateRoundTrips, 1);
                let words = io.read(addr, size_class::bytes(class)).await.ok()??;
                match read::examine(&self.open.view.sums, addr, words.as_bytes(), key) {
                    Seen::Current(current) => return Some(current),
                    Seen::Forwarded(of, to) => (class, addr) = (of, to),
                    // Soon; one more look costs as much as asking the server.
                    Seen::Pending => self.open.connection.commit_now(),
                    Seen::Other => break,
                }
            }
        }
        self.open.counts.add(Counter::UpdateRoundTrips, 1);
        read::current(self.open, key).await.ok()?
    }
}

/// A try that was posted.
#[derive(Clone, Copy)]
struct Sent {
    words: Words,
    /// What the state word of the entry that is to be replaced has to be.
    expected: u64,
    /// It is time to ask for the next lease.
    tend: bool,
}

/// A try whose answer came.
struct Attempt {
    /// The state word of the entry that is to be replaced.
    found: u64,
    version: u64,
    sent: Sent,
}

/// Why a try came to nothing.
enum Stopped {
    Nothing,
    NoRoom,
    InDoubt(u64),
}

/// The connection was lost in the middle. The one after it comes when the server has destroyed that
/// one, so nothing is linked any more: it tells what was, as long as the session is the same one.
pub(super) async fn in_doubt(
    table: &TableHandle,
    InDoubt { session, place, version }: InDoubt,
    key: &[u8],
) -> Result<Tried, Error> {
    let unknown = |reason: String| Error::OutcomeUnknown { what: "put", reason };
    if !table.link().reconnects() {
        return Err(unknown("the connection was lost".to_owned()));
    }
    let op = Op::Linked { key, addr: place.addr.get() };
    let (linked, open) = match rpc::call_where(table, "put", &op, rpc::linked).await {
        Ok(answer) => answer,
        Err(error) => return Err(unknown(error.reason())),
    };
    // Another session, of a server that was restarted, may have a lease at the same place.
    if !Arc::ptr_eq(open.connection.session(), &session) {
        return Err(unknown("the session had ended".to_owned()));
    }
    Ok(match linked {
        true => Tried::Done(Done { version, tend: false, repair: false }),
        false => Tried::AskServer,
    })
}
