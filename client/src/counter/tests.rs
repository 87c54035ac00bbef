use std::collections::VecDeque;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use onesided_fabric::{BufferPool, Outcome, PostError, WorkRequest};
use onesided_protocol::control::FabricName;
use onesided_protocol::layout::catalog::CATALOG_REGION;
use onesided_protocol::rpc::{Answer, Reply, Request};

use super::*;
use crate::core::fake::{self, Due};
use crate::options::Options;

/// READs find zeros; it ends before anything else.
fn ends(chain: &mut VecDeque<WorkRequest>, due: &Due) -> Result<(), PostError> {
    while let Some(WorkRequest { id, op, .. }) = chain.pop_front() {
        let Opcode::Read { mut into, .. } = op else { return Err(PostError::Closed) };
        into.fill(0);
        due.put(Duration::ZERO, id, Outcome::Read(into));
    }
    Ok(())
}

/// Answers that the counter was 5.
fn answers(chain: &mut VecDeque<WorkRequest>, due: &Due) -> Result<(), PostError> {
    for request in chain.drain(..) {
        let Opcode::Send { message } = request.op else { panic!("{request:?}") };
        let Request { id, op, .. } = Request::decode(&message).expect("a request");
        assert!(matches!(op, Op::Counter { action: CounterAction::Add { by: 2 }, .. }), "{op:?}");
        let mut answer = Vec::new();
        Answer { id, result: Ok(Reply::Number { value: 5, version: 1 }) }.encode(&mut answer);
        let answer = BufferPool::new().copy_of(&answer);
        due.put(Duration::ZERO, 0, Outcome::Received(answer));
    }
    Ok(())
}

#[test]
fn what_could_not_be_posted_is_done_over_the_next_connection() {
    let first = fake::connection(Options::default(), ends);
    let table =
        Table::from_parts(&first, "t", fake::table_info(Some(FabricName::Verbs))).expect("a table");
    let counter = table.counter("k");
    let handle = &table.handle;
    let by = handle.deadline("a test");
    let open = crate::core::block_on(|| None, handle.open(by)).expect("it is open");
    let cell = LogAddr::new(CATALOG_REGION, 64);
    let place = Place { open: Arc::downgrade(&open), cell, epoch: open.cells_epoch() };
    counter.place.store(Some(Arc::new(place)));

    let mut adding = pin!(counter.fetch_add(2));
    let mut cx = Context::from_waker(Waker::noop());
    while first.is_alive() {
        let polled = adding.as_mut().poll(&mut cx);
        assert!(polled.is_pending(), "nothing was posted: {polled:?}");
        first.dispatch();
    }
    let second = fake::again(&first, answers);
    let added = loop {
        if let Poll::Ready(added) = adding.as_mut().poll(&mut cx) {
            break added;
        }
        table.go_on(&second, &fake::table_info(None));
        second.dispatch();
    };
    assert_eq!(added.expect("it was added"), 5);
}
