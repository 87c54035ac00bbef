//! Room for short entries, used again and again: what is allocated for one GET is free when its
//! value is dropped, and the next GET of the same thread takes it without asking the allocator.

use std::cell::{Cell, RefCell};

use onesided_fabric::Line;

/// Lines of an entry that has room here.
pub(crate) const SHORT_LINES: usize = 4;
/// Rooms that a thread keeps beside the one at hand: 16 KiB.
const KEPT_MAX: usize = 64;

type Room = Box<[Line; SHORT_LINES]>;

/// What a thread keeps.
struct Kept {
    /// The one that is taken first: all that GETs one by one need.
    at_hand: Cell<Option<Room>>,
    more: RefCell<Vec<Room>>,
}

thread_local! {
    static KEPT: Kept =
        const { Kept { at_hand: Cell::new(None), more: RefCell::new(Vec::new()) } };
}

/// Room for one entry. Its bytes are whatever was there before.
pub(crate) struct Short {
    /// There until it is dropped.
    room: Option<Room>,
}

impl Short {
    #[inline(always)]
    pub(crate) fn take() -> Self {
        // A thread that ends keeps none.
        let kept = KEPT.try_with(|kept| kept.at_hand.take()).ok().flatten();
        Self { room: Some(kept.unwrap_or_else(one_more)) }
    }

    #[inline(always)]
    pub(crate) fn lines_mut(&mut self) -> &mut [Line] {
        self.room.as_mut().map_or(&mut [], |room| &mut room[..])
    }

    #[inline(always)]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.lines_mut().as_flattened_mut().as_flattened_mut()
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.room.as_ref().map_or(&[], |room| room.as_flattened().as_flattened())
    }
}

#[inline(never)]
fn one_more() -> Room {
    let kept = KEPT.try_with(|kept| kept.more.try_borrow_mut().ok()?.pop()).ok().flatten();
    kept.unwrap_or_else(|| Box::new([[[0; 8]; 8]; SHORT_LINES]))
}

impl Drop for Short {
    #[inline(always)]
    fn drop(&mut self) {
        let given_back = KEPT.try_with(|kept| {
            if let Some(before) = kept.at_hand.replace(self.room.take()) {
                keep(kept, before);
            }
        });
        // Of a thread that ends: it is freed.
        let _freed = given_back;
    }
}

#[inline(never)]
fn keep(kept: &Kept, room: Room) {
    if let Ok(mut more) = kept.more.try_borrow_mut()
        && more.len() < KEPT_MAX
    {
        more.push(room);
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
        let rooms: Vec<Short> = (0..KEPT_MAX + 4).map(|_| Short::take()).collect();
        assert_eq!(kept(), 0);
        drop(rooms);
        assert_eq!(kept(), KEPT_MAX + 1);
        let mut room = Short::take();
        room.lines_mut()[3][7] = [9; 8];
        assert_eq!((kept(), room.bytes()[255], room.bytes().len()), (KEPT_MAX, 9, 256));
        std::thread::spawn(move || {
            drop(room);
            assert_eq!(kept(), 1);
        })
        .join()
        .expect("the other thread");
        assert_eq!(kept(), KEPT_MAX);
    }
}
