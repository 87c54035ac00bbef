//! Room for values, used again and again: what is allocated for one GET is free when its value is
//! dropped, and the next GET of the same thread takes it without asking the allocator.
//!
//! A value is one pointer to its room, so that it comes back in registers. What comes back through
//! memory is stored and loaded in pieces of other widths, which the processor cannot forward: each
//! such load waits until all before it has retired, the cache miss of the entry too.

use std::cell::{Cell, RefCell};

use onesided_fabric::Line;

/// Lines of an entry that has room here without another allocation.
pub(crate) const SHORT_LINES: usize = 4;
/// Rooms that a thread keeps beside the one at hand: 20 KiB.
const KEPT_MAX: usize = 64;
/// Rooms with room for a longer value that it keeps beside these, and how long that is at most:
/// 74 KiB. As many as the values of one message by RPC.
const LONG_KEPT_MAX: usize = 32;
const LONG_KEPT_BYTES: usize = 2 << 10;

/// What a room holds.
#[repr(C, align(64))]
pub(crate) struct Body {
    /// A short entry, or the header that a long value has.
    pub(crate) lines: [Line; SHORT_LINES],
    /// A long value; empty in a room that nobody has.
    pub(crate) long: Vec<u8>,
}

/// As it moves: between values and who keeps it.
type Boxed = Box<Body>;

/// What a thread keeps.
struct Kept {
    /// The one that is taken first: all that GETs one by one need.
    at_hand: Cell<Option<Boxed>>,
    more: RefCell<Vec<Boxed>>,
    /// Apart, since a room for a short value is to be dropped without a look at a longer one.
    long: RefCell<Vec<Boxed>>,
}

thread_local! {
    static KEPT: Kept = const {
        Kept {
            at_hand: Cell::new(None),
            more: RefCell::new(Vec::new()),
            long: RefCell::new(Vec::new()),
        }
    };
}

/// Room for one value. Its lines are whatever was there before.
pub(crate) struct Room {
    /// There until it is dropped.
    body: Option<Boxed>,
}

impl Room {
    #[inline(always)]
    pub(crate) fn take() -> Self {
        // A thread that ends keeps none.
        let kept = KEPT.try_with(|kept| kept.at_hand.take()).ok().flatten();
        Self { body: Some(kept.unwrap_or_else(one_more)) }
    }

    /// Room for a long value, empty; if one of this thread was dropped before, with its memory.
    pub(crate) fn take_long() -> Self {
        let kept = KEPT.try_with(|kept| kept.long.try_borrow_mut().ok()?.pop()).ok().flatten();
        kept.map_or_else(Self::take, |body| Self { body: Some(body) })
    }

    /// What it holds; `None` never happens.
    #[inline(always)]
    pub(crate) fn body(&self) -> Option<&Body> {
        self.body.as_deref()
    }

    #[inline(always)]
    pub(crate) fn body_mut(&mut self) -> Option<&mut Body> {
        self.body.as_deref_mut()
    }
}

#[inline(never)]
fn one_more() -> Boxed {
    let kept = KEPT.try_with(|kept| kept.more.try_borrow_mut().ok()?.pop()).ok().flatten();
    kept.unwrap_or_else(|| Box::new(Body { lines: [[[0; 8]; 8]; SHORT_LINES], long: Vec::new() }))
}

impl Drop for Room {
    #[inline(always)]
    fn drop(&mut self) {
        let Some(body) = self.body.take() else { return };
        if body.long.capacity() != 0 {
            return drop_long(body);
        }
        give_back(body);
    }
}

#[inline(always)]
fn give_back(body: Boxed) {
    let given_back = KEPT.try_with(|kept| {
        if let Some(before) = kept.at_hand.replace(Some(body)) {
            keep(kept, before);
        }
    });
    // Of a thread that ends: it is freed.
    let _freed = given_back;
}

#[inline(never)]
fn drop_long(mut body: Boxed) {
    body.long.clear();
    if body.long.capacity() > LONG_KEPT_BYTES {
        body.long = Vec::new();
        return give_back(body);
    }
    let given_back = KEPT.try_with(|kept| {
        if let Ok(mut long) = kept.long.try_borrow_mut()
            && long.len() < LONG_KEPT_MAX
        {
            long.push(body);
        }
    });
    // Of a thread that ends: it is freed.
    let _freed = given_back;
}

#[inline(never)]
fn keep(kept: &Kept, body: Boxed) {
    if let Ok(mut more) = kept.more.try_borrow_mut()
        && more.len() < KEPT_MAX
    {
        more.push(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> usize {
        KEPT.with(|kept| {
            let at_hand = kept.at_hand.take();
            let is_there = usize::from(at_hand.is_some());
            kept.at_hand.set(at_hand);
            is_there + kept.more.borrow().len()
        })
    }

    #[test]
    fn rooms_come_back_to_the_thread_that_drops_them_and_are_bounded() {
        let rooms: Vec<Room> = (0..KEPT_MAX + 4).map(|_| Room::take()).collect();
        assert_eq!(kept(), 0);
        drop(rooms);
        assert_eq!(kept(), KEPT_MAX + 1);
        let mut room = Room::take();
        room.body_mut().expect("there").lines[3][7] = [9; 8];
        assert_eq!((kept(), room.body().expect("there").lines[3][7]), (KEPT_MAX, [9; 8]));
        std::thread::spawn(move || {
            drop(room);
            assert_eq!(kept(), 1);
        })
        .join()
        .expect("the other thread");
        assert_eq!(kept(), KEPT_MAX);
    }

    #[test]
    fn a_room_that_is_kept_holds_no_long_value() {
        for len in [1000, LONG_KEPT_BYTES + 1] {
            let mut room = Room::take();
            room.body_mut().expect("there").long = vec![1; len];
            drop(room);
            assert_eq!(Room::take().body().expect("there").long.capacity(), 0);
        }
    }

    #[test]
    fn memory_of_long_values_is_used_again_and_bounded() {
        let long = |len| {
            let mut room = Room::take_long();
            let body = room.body_mut().expect("there");
            assert!(body.long.is_empty());
            body.long.resize(len, 1);
            room
        };
        let first = long(1000);
        let at = first.body().expect("there").long.as_ptr();
        drop(first);
        let again = long(500);
        assert_eq!(again.body().expect("there").long.as_ptr(), at);
        drop(again);
        drop((0..LONG_KEPT_MAX + 4).map(|_| long(LONG_KEPT_BYTES)).collect::<Vec<_>>());
        let kept = || KEPT.with(|kept| kept.long.borrow().len());
        assert_eq!(kept(), LONG_KEPT_MAX);
        let taken: Vec<_> = (0..LONG_KEPT_MAX).map(|_| long(1)).collect();
        drop(long(LONG_KEPT_BYTES + 1));
        assert_eq!(kept(), 0, "too long to be kept");
        drop(taken);
    }
}
