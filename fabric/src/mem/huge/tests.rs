use rustix::process::{Pid, Signal};

use super::*;
use crate::Rights;

pub(in crate::mem) static NEVER: AtomicBool = AtomicBool::new(false);

/// One that no other test has, and its process.
fn maker() -> (HugePageMaker, libc::pid_t) {
    let maker = HugePageMaker::start().expect("a process");
    let pid = pid_of(&maker).expect("it was just made");
    (maker, pid)
}

fn pid_of(maker: &HugePageMaker) -> Option<libc::pid_t> {
    maker.child.lock().as_ref().map(|child| child.pid)
}

fn memory() -> Memory {
    Memory::shared("t", HUGE_PAGE_BYTES, Rights::ReadOnly).expect("memory")
}

/// Also as a process that has ended and nobody has waited for.
fn exists(pid: libc::pid_t) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// To a child of this test's own.
fn send(pid: libc::pid_t, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid).expect("a number"), signal).expect("sent");
}

#[test]
fn there_is_one_for_all_and_it_ends_with_its_last_user() {
    let shared = HugePageMaker::shared().expect("a process");
    let same = HugePageMaker::shared().expect("the same");
    assert_eq!(pid_of(&shared), pid_of(&same));
    let (maker, pid) = maker();
    assert!(exists(pid) && maker.is_there());
    drop(maker);
    assert!(!exists(pid));
}

#[test]
fn one_that_was_killed_says_so_leaves_nothing_and_its_memory_stays() {
    let ((maker, pid), memory) = (maker(), memory());
    memory.store(64, 7).expect("inside");
    send(pid, Signal::KILL);
    for _ in 0..2 {
        let error = maker.make(&memory, 0, Only::Any, &NEVER).expect_err("nobody is there");
        assert!(error.to_string().contains("has ended"), "{error}");
        assert!(!exists(pid));
    }
    assert_eq!(memory.load(64), Ok(7));
}

#[test]
fn one_that_was_killed_is_gone_when_somebody_looks() {
    let (maker, pid) = maker();
    send(pid, Signal::KILL);
    let looks = (0..60_000).take_while(|_| {
        let is_there = maker.is_there();
        std::thread::sleep(Duration::from_millis(u64::from(is_there)));
        is_there
    });
    assert!(looks.count() < 60_000, "it is there a minute after it was killed");
    assert!(!exists(pid));
}

#[test]
fn one_that_was_stopped_keeps_nobody_who_ends_and_ends_itself() {
    let ((maker, pid), memory) = (maker(), memory());
    send(pid, Signal::STOP);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| maker.make(&memory, 0, Only::Any, &ends));
        let other = scope.spawn(|| maker.make(&memory, 0, Only::Any, &ends));
        ends.store(true, Ordering::Relaxed);
        // Whichever asks ends it, and the other one finds it gone, or does not want it any more.
        for asked in [asker, other] {
            assert!(asked.join().expect("no panic").is_err());
        }
    });
    assert!(!maker.is_there() && !exists(pid));
}

#[test]
fn one_that_was_stopped_ends_with_its_last_user() {
    let (maker, pid) = maker();
    send(pid, Signal::STOP);
    drop(maker);
    assert!(!exists(pid));
}
