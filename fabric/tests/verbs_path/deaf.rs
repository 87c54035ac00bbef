//! Clients that ask and take no answer. Where they have receive buffers for their answers, as the
//! library's clients have, nobody hears of it. Where they have none left, the server's sends to
//! them are refused again and again (RNR): others go on, and the deaf hear that their connection
//! has ended, not of receive buffers.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use onesided_fabric::verbs::{Connected, Limits};
use onesided_fabric::{BufferPool, Completion, Opcode, Outcome, WorkRequest};

use crate::rig::{Server, TIMEOUT, has_device, messages, take, talks};

const EACH: usize = 48;
const QUESTION: [u8; 600] = [5; 600];

/// So many clients whose queues take `receive_depth` messages.
fn join(server: &Server, count: u64, receive_depth: usize) -> Vec<Connected> {
    let limits = Limits { receive_depth, ..Limits::default() };
    (1..=count).map(|n| server.connect(n, limits)).collect()
}

/// Posts all questions, and takes nothing.
fn asks(peer: &Connected, pool: &BufferPool) {
    let op = || Opcode::Send { message: pool.copy_of(&QUESTION) };
    let request = |_| WorkRequest { id: 0, signaled: false, op: op() };
    let mut chain: VecDeque<_> = (0..EACH).map(request).collect();
    peer.endpoint.post(&mut chain).expect("posted");
}

/// The answers among what a client finds at last, each whole.
#[track_caller]
fn answers(all: &[Completion]) -> usize {
    let is_answer = |completion: &&Completion| match &completion.outcome {
        Outcome::Received(message) => message[..] == QUESTION,
        Outcome::Failed(..) => false,
        other => panic!("{other:?}"),
    };
    all.iter().filter(is_answer).count()
}

#[test]
fn clients_that_never_read_their_answers_harm_nobody() {
    if !has_device() {
        return;
    }
    const DEAF: u64 = 128;
    let server = Server::start(Limits::default());
    let deaf = join(&server, DEAF, EACH + 16);
    let good = server.connect(0, Limits::default());
    let pool = BufferPool::new();
    deaf.iter().for_each(|peer| asks(peer, &pool));
    for round in 0..10 {
        talks(&good, &messages(round, 20, 3_000), 4);
    }
    assert_eq!(*server.seen.ends.lock(), []);
    for (n, peer) in deaf.iter().enumerate() {
        let all = take(peer, EACH);
        assert_eq!((all.len(), answers(&all)), (EACH, EACH), "client {n}");
    }
    assert_eq!(*server.seen.ends.lock(), []);
}

#[test]
fn clients_without_room_for_their_answers_end_and_others_go_on() {
    if !has_device() {
        return;
    }
    const DEAF: u64 = 4;
    const WITHIN_S: u64 = 10;
    let limits = Limits { work_timeout_ms: WITHIN_S * 1_000, ..Limits::default() };
    let server = Server::start(limits);
    let deaf = join(&server, DEAF, 16);
    let good = server.connect(0, Limits::default());
    let pool = BufferPool::new();
    deaf.iter().for_each(|peer| asks(peer, &pool));
    let begin = Instant::now();
    let mut rounds = 0;
    // As long as any of them holds anything of the server's.
    while server.seen.ends.lock().len() < DEAF as usize {
        talks(&good, &messages(rounds, 4, 3_000), 2);
        rounds += 1;
        assert!(begin.elapsed() < 3 * TIMEOUT, "{} ends", server.seen.ends.lock().len());
    }
    eprintln!("{rounds} rounds of 4 answers while {DEAF} clients had no room for theirs");
    for (context, reason) in server.seen.ends.lock().iter() {
        assert!(reason.contains(&format!("within {WITHIN_S}s")), "{context}: {reason}");
    }
    for (n, peer) in deaf.iter().enumerate() {
        // What had come before, whole; and then the end.
        let mut all = take(peer, usize::MAX);
        match all.pop().map(|last| last.outcome) {
            Some(Outcome::Disconnected(reason)) => {
                assert!(!reason.contains("receive buffer"), "{n}: {reason}");
            }
            other => panic!("{n}: {other:?}"),
        }
        assert!((1..EACH).contains(&answers(&all)), "{n}");
    }
    talks(&good, &messages(99, 50, 20_000), 8);
    // What they had is given back.
    let deadline = Instant::now() + TIMEOUT;
    while server.figure("sends_in_flight") > 0 || server.figure("queue_pairs") > 1 {
        assert!(Instant::now() < deadline, "{:?}", server.listener.figures());
        std::thread::sleep(Duration::from_millis(20));
    }
}
