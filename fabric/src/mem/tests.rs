//! Bounds, edges, rights and seals of [`Memory`].

use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};

use super::huge::tests::NEVER;
use super::*;

fn fd_of(memory: &Memory) -> OwnedFd {
    memory.fd().expect("shared").try_clone().expect("a descriptor")
}

#[test]
fn every_access_outside_is_refused() {
    let memory = Memory::private(4096).expect("memory");
    let outside = |r: Result<(), AccessError>| matches!(r, Err(AccessError::OutOfBounds { .. }));
    for at in [4096, 4104, usize::MAX - 7, usize::MAX & !7, 1 << 63] {
        assert!(outside(memory.load(at).map(|_| ())), "load {at}");
        assert!(outside(memory.store(at, 1)), "store {at}");
        assert!(outside(memory.compare_swap(at, 0, 1).map(|_| ())), "swap {at}");
        assert!(outside(memory.fetch_add(at, 1).map(|_| ())), "add {at}");
        assert!(outside(memory.read_words(at, &mut [0])), "words {at}");
        assert!(outside(memory.write_words(at, &[0])), "words {at}");
        assert!(outside(memory.zero(at, 1)), "zero {at}");
        assert!(memory.release(at, 1).is_err(), "release {at}");
        memory.prefetch(at, 64);
    }
    for (at, len) in [(4090, 7), (0, 4097), (4096, 1), (usize::MAX, 2)] {
        assert!(outside(memory.read_bytes(at, &mut vec![0; len])), "{len} at {at}");
        let mut appended = vec![7];
        assert!(outside(memory.append_bytes(at, len, &mut appended)), "{len} at {at}");
        assert_eq!(appended, [7]);
        assert!(outside(memory.write_bytes(at, &vec![0; len])), "{len} at {at}");
    }
    assert!(outside(memory.read_words(8, &mut [0; 512])));
    memory.read_bytes(4096, &mut []).expect("nothing, at the very end");
    memory.write_bytes(4095, &[1]).expect("the last byte");
    assert_eq!(memory.load(4088), Ok(1 << 56));
}

#[test]
fn misaligned_words_are_refused() {
    let memory = Memory::private(4096).expect("memory");
    for at in [1, 4, 7, 4095] {
        assert_eq!(memory.load(at), Err(AccessError::Misaligned(at as u64)));
        assert_eq!(memory.store(at, 1), Err(AccessError::Misaligned(at as u64)));
        assert_eq!(memory.fetch_or(at, 1), Err(AccessError::Misaligned(at as u64)));
        assert_eq!(memory.read_words(at, &mut [0]), Err(AccessError::Misaligned(at as u64)));
        assert_eq!(memory.write_words(at, &[0]), Err(AccessError::Misaligned(at as u64)));
    }
}

#[test]
fn unaligned_copies_touch_exactly_their_bytes() {
    let memory = Memory::private(4096).expect("memory");
    // Around words, and around the lines of longer ones.
    for (at, len) in (0..17).flat_map(|at| (0..41).chain(120..140).map(move |len| (at, len))) {
        memory.write_bytes(0, &[0xEE; 192]).expect("inside");
        let bytes: Vec<u8> = (1..=len).collect();
        memory.write_bytes(at, &bytes).expect("inside");
        let mut all = [0; 192];
        memory.read_bytes(0, &mut all).expect("inside");
        let end = at + bytes.len();
        assert!(all[..at].iter().chain(&all[end..]).all(|&b| b == 0xEE), "{len} at {at}");
        assert_eq!(all[at..end], bytes, "{len} at {at}");
        let mut back = vec![0; bytes.len()];
        memory.read_bytes(at, &mut back).expect("inside");
        assert_eq!(back, bytes, "{len} at {at}");
        let mut appended = vec![1, 2];
        memory.append_bytes(at, bytes.len(), &mut appended).expect("inside");
        assert_eq!(appended, [&[1, 2], &bytes[..]].concat(), "{len} at {at}");
    }
}

#[test]
fn atomics_return_what_was_there() {
    let memory = Memory::private(4096).expect("memory");
    assert_eq!(memory.compare_swap(8, 1, 9), Ok(0));
    assert_eq!(memory.compare_swap(8, 0, 9), Ok(0));
    assert_eq!(memory.fetch_add(8, u64::MAX), Ok(9));
    assert_eq!(memory.fetch_or(8, 0x10), Ok(8));
    assert_eq!(memory.swap(8, 3), Ok(0x18));
    assert_eq!(memory.load(8), Ok(3));
}

#[test]
fn two_mappings_share_and_rights_hold() {
    let owner = Memory::shared("t", 8192, Rights::ReadOnly).expect("memory");
    owner.write_bytes(5, b"seen by both").expect("inside");
    let peer = Memory::foreign(fd_of(&owner), 8192, Rights::ReadOnly).expect("mapped");
    let mut got = [0; 12];
    peer.read_bytes(5, &mut got).expect("inside");
    assert_eq!(&got, b"seen by both");
    assert_eq!(peer.store(0, 1), Err(AccessError::ReadOnly));
    assert_eq!(peer.write_bytes(0, b"x"), Err(AccessError::ReadOnly));
    assert_eq!(peer.write_words(0, &[1]), Err(AccessError::ReadOnly));
    assert_eq!(peer.compare_swap(0, 0, 1), Err(AccessError::ReadOnly));
    assert_eq!(peer.fetch_add(0, 1), Err(AccessError::ReadOnly));
    assert_eq!(peer.fetch_or(0, 1), Err(AccessError::ReadOnly));
    assert_eq!(peer.swap(0, 1), Err(AccessError::ReadOnly));
    assert_eq!(peer.zero(0, 8), Err(AccessError::ReadOnly));
    assert!(peer.release(0, 8192).is_err());
    owner.store(0, 7).expect("the owner may");
    assert_eq!(peer.load(0), Ok(7));
}

#[test]
fn read_only_memory_cannot_be_mapped_or_written_by_peers() {
    let owner = Memory::shared("t", 4096, Rights::ReadOnly).expect("memory");
    let mapped = Memory::foreign(fd_of(&owner), 4096, Rights::ReadWrite);
    assert_eq!(mapped.expect_err("sealed").kind(), ErrorKind::PermissionDenied);
    let fd = fd_of(&owner);
    assert_eq!(rustix::io::pwrite(&fd, b"x", 0), Err(rustix::io::Errno::PERM));
    // Not even through a descriptor opened anew.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    if let Ok(file) = std::fs::OpenOptions::new().read(true).write(true).open(path) {
        let mapped = Memory::foreign(file.into(), 4096, Rights::ReadWrite);
        assert_eq!(mapped.expect_err("sealed").kind(), ErrorKind::PermissionDenied);
    }
    let writable = Memory::shared("t", 4096, Rights::ReadWrite).expect("memory");
    Memory::foreign(fd_of(&writable), 4096, Rights::ReadWrite).expect("peers may write this");
}

#[test]
fn peers_cannot_truncate_or_unseal() {
    for rights in [Rights::ReadOnly, Rights::ReadWrite] {
        let owner = Memory::shared("t", 8192, rights).expect("memory");
        let fd = fd_of(&owner);
        for len in [0, 4096, 16384] {
            assert_eq!(rustix::fs::ftruncate(&fd, len), Err(rustix::io::Errno::PERM));
        }
        let sealed = rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE);
        assert_eq!(sealed, Err(rustix::io::Errno::PERM));
    }
}

#[test]
fn memory_that_could_be_truncated_is_not_mapped() {
    let fd = rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .expect("a memfd");
    rustix::fs::ftruncate(&fd, 4096).expect("a length");
    let unsealed = Memory::foreign(fd, 4096, Rights::ReadOnly);
    assert_eq!(unsealed.expect_err("unsealed").kind(), ErrorKind::InvalidData);
    let owner = Memory::shared("t", 4096, Rights::ReadWrite).expect("memory");
    let long = Memory::foreign(fd_of(&owner), 8192, Rights::ReadOnly);
    assert_eq!(long.expect_err("too long").kind(), ErrorKind::InvalidData);
    let file = tempfile::tempfile().expect("a file");
    assert!(Memory::foreign(file.into(), 4096, Rights::ReadOnly).is_err());
}

#[test]
fn pages_that_a_device_knows_are_zeroed_in_place() {
    let memory = Memory::shared("test", 1 << 20, Rights::ReadWrite).expect("memory");
    let resident = || {
        let fd = memory.fd().expect("a memfd");
        // In units of 512 bytes.
        rustix::fs::fstat(fd).expect("its state").st_blocks * 512
    };
    memory.write_bytes(0, &[7; 1 << 20]).expect("inside");
    memory.release(0, 1 << 19).expect("released");
    assert_eq!(resident(), 1 << 19, "half of the pages are gone");
    let span = memory.registered(1, Ok::<_, ()>, |span| *span).expect("made");
    assert_eq!(span.len_bytes, 1 << 20);
    memory.release(1 << 19, 1 << 19).expect("released");
    assert_eq!(resident(), 1 << 19, "the pages stay");
    assert_eq!(memory.load((1 << 20) - 8), Ok(0));
}

#[test]
fn released_pages_read_as_zero_for_all() {
    for peers in [Rights::ReadOnly, Rights::ReadWrite] {
        let owner = Memory::shared("t", 4 * 4096, peers).expect("memory");
        let peer = Memory::foreign(fd_of(&owner), 4 * 4096, Rights::ReadOnly).expect("mapped");
        owner.close_fd();
        assert!(owner.fd().is_none());
        owner.write_bytes(0, &[1; 4 * 4096]).expect("inside");
        // Only the whole pages in it: the second and the third.
        owner.release(100, 3 * 4096).expect("released");
        let mut bytes = vec![0; 4 * 4096];
        peer.read_bytes(0, &mut bytes).expect("inside");
        assert!(bytes[..4096].iter().chain(&bytes[3 * 4096..]).all(|&b| b == 1));
        assert!(bytes[4096..3 * 4096].iter().all(|&b| b == 0));
    }
}

#[test]
fn discarded_memory_is_zero_and_unknown_and_its_pages_go_with_the_last_of_all() {
    struct Registration(Arc<AtomicU64>);
    impl Drop for Registration {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    const BYTES: usize = 2 * HUGE_PAGE_BYTES;
    let owner = Memory::shared("t", BYTES, Rights::ReadOnly).expect("memory");
    let fd = fd_of(&owner);
    let peer = Memory::foreign(fd_of(&owner), BYTES, Rights::ReadOnly).expect("mapped");
    owner.write_bytes(BYTES - 9, &[7; 9]).expect("inside");
    let dropped = Arc::new(AtomicU64::new(0));
    let make = |_| Ok::<_, ()>(Registration(Arc::clone(&dropped)));
    owner.registered(1, make, |_| ()).expect("made");
    owner.discard().expect("discarded");
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    assert!(
        owner.fd().is_none()
            && HugePageMaker::shared()
                .expect("a maker")
                .make(&owner, 0, Only::Any, &NEVER)
                .is_err()
    );
    assert_eq!((owner.load(BYTES - 8), peer.load(BYTES - 8)), (Ok(0), Ok(0x0707_0707_0707_0707)));
    owner.store(0, 1).expect("still a mapping");
    assert_eq!(peer.load(0), Ok(0), "of its own");
    peer.discard().expect("discarded");
    assert_eq!((peer.load(BYTES - 8), peer.store(0, 1)), (Ok(0), Err(AccessError::ReadOnly)));
    // Now only this descriptor keeps the pages.
    assert!(rustix::fs::fstat(fd).expect("its state").st_blocks > 0);
}

#[test]
fn a_huge_page_keeps_what_is_stored_and_peers_see_it() {
    const BYTES: usize = 2 * HUGE_PAGE_BYTES;
    let maker = HugePageMaker::shared().expect("a maker");
    let owner = Memory::shared("t", BYTES, Rights::ReadOnly).expect("memory");
    let peer = Memory::foreign(fd_of(&owner), BYTES, Rights::ReadOnly).expect("mapped");
    for memory in [&owner, &peer] {
        assert!(memory.base.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
    }
    owner.write_bytes(HUGE_PAGE_BYTES - 6, b"before").expect("inside");
    let mut seen = [0; 12];
    peer.read_bytes(HUGE_PAGE_BYTES - 6, &mut seen).expect("inside");
    // One that is used, and one that nobody has touched: a kernel that makes the one huge makes
    // the other, if it has pages. Where it refuses, nothing may have changed either.
    let is_invalid = |made: std::io::Result<()>| {
        made.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
    };
    let [used, fresh] =
        [0, HUGE_PAGE_BYTES].map(|at| is_invalid(maker.make(&owner, at, Only::Any, &NEVER)));
    assert_eq!(used, fresh);
    owner.write_bytes(HUGE_PAGE_BYTES, b"-after").expect("inside");
    owner.store(64, 7).expect("inside");
    peer.read_bytes(HUGE_PAGE_BYTES - 6, &mut seen).expect("inside");
    assert_eq!((&seen, peer.load(64)), (b"before-after", Ok(7)));
    for outside in [8, 4096, BYTES, usize::MAX & !(HUGE_PAGE_BYTES - 1)] {
        assert!(maker.make(&owner, outside, Only::Any, &NEVER).is_err(), "{outside}");
    }
    assert!(maker.make(&peer, 0, Only::Any, &NEVER).is_err(), "read-only");
    let short = Memory::shared("t", 4096, Rights::ReadOnly).expect("memory");
    assert!(maker.make(&short, 0, Only::Any, &NEVER).is_err(), "too short");
    let private = Memory::private(BYTES).expect("memory");
    assert!(maker.make(&private, 0, Only::Any, &NEVER).is_err(), "of this process alone");
}

#[test]
fn a_huge_page_is_not_made_under_those_who_use_the_memory() {
    const BYTES: usize = 3 * HUGE_PAGE_BYTES;
    let maker = HugePageMaker::shared().expect("a maker");
    let memory = Memory::shared("t", BYTES, Rights::ReadOnly).expect("memory");
    memory.store(2 * HUGE_PAGE_BYTES - 8, 7).expect("inside");
    let is_busy = |step: usize| {
        let made = maker.make(&memory, step * HUGE_PAGE_BYTES, Only::Fresh, &NEVER);
        made.is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
    };
    assert_eq!([0, 1, 2].map(is_busy), [false, true, false]);
    assert_eq!(memory.load(2 * HUGE_PAGE_BYTES - 8), Ok(7));
}

#[test]
fn hooks_run_before_each_word() {
    struct Count(AtomicU64);
    impl StoreHook for Count {
        fn before_store(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let count = Arc::new(Count(AtomicU64::new(0)));
    let memory = Memory::hooked(4096, Arc::clone(&count) as _).expect("memory");
    memory.store(0, 1).expect("inside");
    memory.write_bytes(8, &[1; 32]).expect("inside");
    memory.write_words(0, &[1; 3]).expect("inside");
    assert_eq!(count.0.load(Ordering::Relaxed), 1 + 4 + 3);
}
