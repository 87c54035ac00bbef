//! Clients that ask and never take an answer: their devices have no receive buffers left, so the
//! server's sends to them are refused again and again (RNR). Nobody hears of that: not those who
//! listen, and the deaf hear that their connection has ended.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use onesided_fabric::verbs::{Connected, Limits};
use onesided_fabric::{BufferPool, Opcode, Outcome, PostError, WorkRequest};

use crate::rig::{Server, TIMEOUT, has_device, messages, take, talks};

const DEAF: u64 = 128;
/// More than a client has receive buffers for.
const EACH: usize = 48;
const RECEIVE_DEPTH: usize = 16;

/// Posts all questions, and takes nothing.
fn asks(peer: &Connected, pool: &BufferPool) {
    let question = || Opcode::Send { message: pool.copy_of(&[5; 600]) };
    let request = |_| WorkRequest { id: 0, signaled: false, op: question() };
    let mut chain: VecDeque<_> = (0..EACH).map(request).collect();
    match peer.endpoint.post(&mut chain) {
        Ok(()) | Err(PostError::Full) => {}
        // It was ended already.
        Err(PostError::Closed) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn clients_that_never_read_their_answers_harm_nobody_else() {
    if !has_device() {
        return;
    }
    let server = Server::start(Limits { work_timeout_ms: 3_000, ..Limits::default() });
    let limits = Limits { receive_depth: RECEIVE_DEPTH, ..Limits::default() };
    let deaf: Vec<_> = (1..=DEAF).map(|n| server.connect(n, limits)).collect();
    let good = server.connect(0, Limits::default());
    let pool = BufferPool::new();
    deaf.iter().for_each(|peer| asks(peer, &pool));
    let begin = Instant::now();
    let mut rounds = 0;
    // As long as any of them holds anything of the server's.
    while server.seen.ends.lock().len() < DEAF as usize {
        talks(&good, &messages(rounds, 20, 3_000), 4);
        rounds += 1;
        assert!(begin.elapsed() < 3 * TIMEOUT, "{} ends", server.seen.ends.lock().len());
    }
    eprintln!("{rounds} rounds of 20 answers while {DEAF} clients read none of theirs");
    for (context, reason) in server.seen.ends.lock().iter() {
        assert!(reason.contains("within 3s"), "{context}: {reason}");
    }
    assert_eq!(server.figure("queue_pairs"), 1);
    for (n, peer) in deaf.iter().enumerate() {
        // What had come before, whole; and then the end, and no word of receive buffers.
        let mut all = take(peer, usize::MAX);
        match all.pop().map(|last| last.outcome) {
            Some(Outcome::Disconnected(reason)) => {
                assert!(!reason.contains("receive buffer"), "{n}: {reason}");
            }
            other => panic!("{n}: {other:?}"),
        }
        let answers = all.iter().filter(|c| match &c.outcome {
            Outcome::Received(message) => message[..] == [5; 600],
            Outcome::Failed(..) => false,
            other => panic!("{n}: {other:?}"),
        });
        assert!(answers.count() <= EACH);
    }
    talks(&good, &messages(99, 50, 20_000), 8);
    drop(deaf);
    // What they had is given back.
    let deadline = Instant::now() + TIMEOUT;
    while server.figure("sends_in_flight") > 0 {
        assert!(Instant::now() < deadline, "{} sends in flight", server.figure("sends_in_flight"));
        std::thread::sleep(Duration::from_millis(20));
    }
}
