//! Cases of SEND and RECV, connections and waiting: every backend passes them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use onesided_fabric::{Outcome, PostError, Wait, WorkError, WorkRequest};

use crate::rig::{End, Rig, pattern};

pub(crate) fn messages_arrive_whole_and_in_order(rig: &mut Rig) {
    let i = rig.connect();
    for (from, to) in [(End::Client(i), End::Server(i)), (End::Server(i), End::Client(i))] {
        let max = rig.endpoint(from).caps().max_message_bytes;
        let sizes = [1, 2, 7, 8, 9, 63, 64, 65, 300, max - 1, max, 1, max / 2, 3];
        for (salt, &len) in sizes.iter().enumerate() {
            let request = rig.send(0, &pattern(salt, len));
            rig.post(from, [request]);
        }
        for (salt, &len) in sizes.iter().enumerate() {
            let message = rig.next_message(to);
            assert!(message[..] == pattern(salt, len)[..], "message {salt} of {len} bytes");
        }
    }
}

pub(crate) fn a_too_long_message_is_refused_and_nothing_else(rig: &mut Rig) {
    let i = rig.connect();
    let endpoint = rig.endpoint(End::Client(i));
    let max = endpoint.caps().max_message_bytes;
    let messages = [&b"before"[..], &vec![1; max + 1], b"after"];
    let mut chain: VecDeque<WorkRequest> =
        (0..).zip(messages).map(|(n, m)| rig.send(n, m)).collect();
    let refused = endpoint.post(&mut chain).unwrap_err();
    let PostError::TooLong { len_bytes, max_bytes } = refused else { panic!("{refused}") };
    assert_eq!((len_bytes, max_bytes), (max + 1, max));
    assert_eq!(chain.len(), 2, "the one before it was taken");
    assert_eq!(chain[0].id, 1, "the offending one is at the front");
    chain.pop_front();
    rig.post(End::Client(i), chain);
    assert_eq!(&rig.next_message(End::Server(i))[..], b"before");
    assert_eq!(&rig.next_message(End::Server(i))[..], b"after");
}

pub(crate) fn only_signaled_sends_complete(rig: &mut Rig) {
    let i = rig.connect();
    let mut chain: Vec<_> = (0..8).map(|n| rig.send(n, &pattern(n as usize, 40))).collect();
    chain[3].signaled = true;
    chain[7].signaled = true;
    rig.post(End::Client(i), chain);
    for _ in 0..8 {
        rig.next_message(End::Server(i));
    }
    for id in [3, 7] {
        let completion = rig.next(End::Client(i));
        assert_eq!(completion.id, id);
        let Outcome::Sent(buffer) = completion.outcome else { panic!("{completion:?}") };
        assert!(buffer[..] == pattern(id as usize, 40)[..], "the buffer comes back");
    }
    rig.linger();
    assert_eq!(rig.arrived(End::Client(i)), 0);
}

pub(crate) fn a_full_queue_recovers_and_loses_nothing(rig: &mut Rig) {
    let i = rig.connect();
    for (from, to) in [(End::Client(i), End::Server(i)), (End::Server(i), End::Client(i))] {
        let endpoint = rig.endpoint(from);
        let len = endpoint.caps().max_message_bytes / 2;
        let body = |n: usize| [&(n as u64).to_le_bytes()[..], &pattern(n, len - 8)].concat();
        let mut posted = 0;
        // Nobody polls the receiving side meanwhile; what the sender may need is its own poll.
        let refused = loop {
            let mut chain = VecDeque::from([rig.send(0, &body(posted))]);
            match endpoint.post(&mut chain) {
                Ok(()) => posted += 1,
                Err(error) => {
                    assert_eq!(chain.len(), 1, "what was not taken stays");
                    break error;
                }
            }
            match from {
                End::Client(c) => rig.pump_client(c),
                End::Server(_) => rig.pump_servers(),
            }
            assert!(posted < 100_000, "never full");
        };
        assert!(matches!(refused, PostError::Full), "{refused}");
        let more = posted + 20;
        let rest: Vec<_> = (posted..more).map(|n| rig.send(0, &body(n))).collect();
        for request in rest {
            rig.post(from, [request]);
        }
        for n in 0..more {
            assert!(rig.next_message(to)[..] == body(n)[..], "message {n} of {more}");
        }
    }
}

pub(crate) fn many_peers_share_one_queue(rig: &mut Rig) {
    const PEERS: usize = 64;
    let peers: Vec<usize> = (0..PEERS).map(|_| rig.connect()).collect();
    for round in 0..3 {
        for &i in &peers {
            let request = rig.send(0, &pattern(i * 3 + round, 50));
            rig.post(End::Client(i), [request]);
        }
        for &i in &peers {
            let message = rig.next_message(End::Server(i));
            assert!(message[..] == pattern(i * 3 + round, 50)[..], "peer {i}");
            let answer = rig.send(0, &message);
            rig.post(End::Server(i), [answer]);
        }
        for &i in &peers {
            let answer = rig.next_message(End::Client(i));
            assert!(answer[..] == pattern(i * 3 + round, 50)[..], "answer to {i}");
        }
    }
    // One that goes does not disturb the others.
    rig.endpoint(End::Client(7)).close();
    rig.all_until_end(End::Server(7));
    let request = rig.send(0, b"still here");
    rig.post(End::Client(8), [request]);
    assert_eq!(&rig.next_message(End::Server(8))[..], b"still here");
}

fn ends_once(rig: &mut Rig, end: End) {
    let all = rig.all_until_end(end);
    let ends = all.iter().filter(|c| matches!(c.outcome, Outcome::Disconnected(_))).count();
    assert_eq!(ends, 1, "{all:?}");
    assert!(rig.endpoint(end).is_closed());
    let mut chain = VecDeque::from([rig.send(0, b"late")]);
    let refused = rig.endpoint(end).post(&mut chain).unwrap_err();
    assert!(matches!(refused, PostError::Closed), "{refused}");
    assert_eq!(chain.len(), 1);
}

pub(crate) fn either_side_may_close(rig: &mut Rig) {
    for client_closes in [true, false] {
        let i = rig.connect();
        let (closer, other) = match client_closes {
            true => (End::Client(i), End::Server(i)),
            false => (End::Server(i), End::Client(i)),
        };
        rig.endpoint(closer).close();
        rig.endpoint(closer).close();
        ends_once(rig, closer);
        ends_once(rig, other);
        rig.endpoint(closer).close();
        rig.endpoint(other).close();
        rig.linger();
        assert_eq!(rig.arrived(closer) + rig.arrived(other), 0);
    }
}

pub(crate) fn dropping_what_a_client_holds_closes(rig: &mut Rig) {
    let i = rig.connect();
    rig.drop_client(i);
    ends_once(rig, End::Server(i));
}

pub(crate) fn what_is_outstanding_fails_before_the_end(rig: &mut Rig) {
    let i = rig.connect();
    let endpoint = rig.endpoint(End::Client(i));
    let len = endpoint.caps().max_message_bytes / 2;
    let mut posted = 0;
    loop {
        let mut request = rig.send(posted, &pattern(posted as usize, len));
        request.signaled = true;
        match endpoint.post(&mut VecDeque::from([request])) {
            Ok(()) => posted += 1,
            Err(PostError::Full) => break,
            Err(other) => panic!("{other}"),
        }
    }
    endpoint.close();
    let mut all = rig.all_until_end(End::Client(i));
    let last = all.pop().expect("the end");
    assert!(matches!(last.outcome, Outcome::Disconnected(_)), "{last:?}");
    let ids: Vec<u64> = all.iter().map(|c| c.id).collect();
    assert_eq!(ids, (0..posted).collect::<Vec<_>>(), "each exactly once, in order");
    let mut flushed = false;
    for completion in all {
        match completion.outcome {
            Outcome::Sent(buffer) | Outcome::Failed(WorkError::PeerGone, Some(buffer)) => {
                assert!(!flushed, "one that left after one that did not");
                assert_eq!(buffer.len(), len);
            }
            Outcome::Failed(WorkError::Flushed, Some(buffer)) => {
                flushed = true;
                assert_eq!(buffer.len(), len);
            }
            other => panic!("{other:?}"),
        }
    }
    ends_once_quietly(rig, End::Server(i));
}

fn ends_once_quietly(rig: &mut Rig, end: End) {
    for completion in rig.all_until_end(end) {
        let expected =
            matches!(completion.outcome, Outcome::Received(_) | Outcome::Disconnected(_));
        assert!(expected, "{completion:?}");
    }
}

pub(crate) fn messages_sent_before_a_close_may_arrive_but_never_half(rig: &mut Rig) {
    let i = rig.connect();
    let len = rig.endpoint(End::Client(i)).caps().max_message_bytes / 3;
    for n in 0..4 {
        let request = rig.send(0, &pattern(n, len));
        rig.post(End::Client(i), [request]);
    }
    rig.endpoint(End::Client(i)).close();
    let all = rig.all_until_end(End::Server(i));
    for (n, completion) in all.iter().enumerate() {
        match &completion.outcome {
            Outcome::Received(m) => assert!(m[..] == pattern(n, len)[..], "message {n}"),
            Outcome::Disconnected(_) => assert_eq!(n + 1, all.len()),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn wake_ends_a_wait_also_a_later_one(rig: &mut Rig) {
    let i = rig.connect();
    rig.linger();
    for end in [End::Client(i), End::Server(i)] {
        let cq = rig.cq(end);
        cq.wake();
        assert_eq!(cq.wait(Duration::from_secs(3600)), Wait::Ready, "{end:?}");
        if rig.backend.single_threaded() {
            continue;
        }
        let sleeper = {
            let cq = rig.cq(end);
            std::thread::spawn(move || cq.wait(Duration::from_secs(3600)))
        };
        // Whether it sleeps already or not yet, it must end.
        std::thread::sleep(Duration::from_millis(20));
        cq.wake();
        assert_eq!(sleeper.join().unwrap(), Wait::Ready, "{end:?}");
    }
}

pub(crate) fn a_wait_times_out(rig: &mut Rig) {
    let i = rig.connect();
    rig.linger();
    for end in [End::Client(i), End::Server(i)] {
        let cq = rig.cq(end);
        // What was rung for before may still end one wait each.
        let ended = (0..10).any(|_| cq.wait(Duration::from_millis(30)) == Wait::TimedOut);
        assert!(ended, "{end:?} never times out");
    }
}

pub(crate) fn a_message_ends_a_wait(rig: &mut Rig) {
    let i = rig.connect();
    rig.linger();
    for (from, to) in [(End::Client(i), End::Server(i)), (End::Server(i), End::Client(i))] {
        let sleeper = {
            let cq = rig.cq(to);
            std::thread::spawn(move || {
                let mut out = Vec::new();
                let deadline = Instant::now() + Duration::from_secs(30);
                while cq.poll(&mut out, 1) == 0 && Instant::now() < deadline {
                    cq.wait(Duration::from_secs(5));
                }
                out
            })
        };
        if !rig.backend.single_threaded() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut chain = VecDeque::from([rig.send(0, b"get up")]);
        rig.endpoint(from).post(&mut chain).unwrap();
        // Where the fabric gathers, what was posted leaves with the next poll.
        while !sleeper.is_finished() {
            match from {
                End::Client(c) => rig.pump_client(c),
                End::Server(_) => rig.pump_servers(),
            }
            rig.backend.progress();
        }
        let out = sleeper.join().unwrap();
        assert!(matches!(&out[0].outcome, Outcome::Received(m) if m[..] == *b"get up"), "{out:?}");
    }
}

pub(crate) fn one_thread_waits_at_a_time(rig: &mut Rig) {
    if rig.backend.single_threaded() {
        return;
    }
    let i = rig.connect();
    rig.linger();
    for end in [End::Client(i), End::Server(i)] {
        let cq = rig.cq(end);
        let sleeper = {
            let cq = rig.cq(end);
            std::thread::spawn(move || while cq.wait(Duration::from_secs(3600)) != Wait::Ready {})
        };
        let mut busy = false;
        for _ in 0..1000 {
            // It returns at once when the other one sleeps already.
            busy |= cq.wait(Duration::from_millis(1)) == Wait::Busy;
            if busy {
                break;
            }
            // The other one may have found this one waiting: it needs a chance to be first.
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(busy, "{end:?}: two waits at once");
        while !sleeper.is_finished() {
            cq.wake();
            std::thread::yield_now();
        }
        sleeper.join().unwrap();
    }
}

pub(crate) fn poll_gives_no_more_than_asked(rig: &mut Rig) {
    let i = rig.connect();
    let chain: Vec<_> = (0..10).map(|n| rig.send(0, &[n])).collect();
    rig.post(End::Client(i), chain);
    let cq = rig.cq(End::Server(i));
    let mut got = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(30);
    // Without the rig's own polling.
    for max in [0, 1, 2, 3].into_iter().cycle() {
        rig.backend.progress();
        let mut out = Vec::new();
        let n = cq.poll(&mut out, max);
        assert!(n <= max && out.len() == n, "{n} of {max}");
        for completion in out {
            let Outcome::Received(message) = completion.outcome else { panic!("{completion:?}") };
            got.push(message[0]);
        }
        if got.len() >= 10 {
            break;
        }
        assert!(Instant::now() < deadline, "only {got:?}");
    }
    assert_eq!(got, (0..10).collect::<Vec<u8>>());
}
