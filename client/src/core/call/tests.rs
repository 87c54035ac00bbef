use std::pin::pin;
use std::task::Waker;

use super::super::fake::connection;
use super::*;
use crate::options::Options;

const PING: Outgoing<'_> = Outgoing { sequence: 0, table: 0, op: &Op::Ping };

#[test]
fn who_is_given_up_while_waiting_for_a_credit_leaves_its_slot() {
    let connection = connection(Options::default(), |_, _| panic!("nothing is posted"));
    let by = Deadline::after("a test", Duration::from_secs(600));
    let credits = connection.credits.try_acquire_many(2).expect("all credits");
    for _ in 0..3 {
        let mut one = pin!(connection.call(PING, None, by));
        let mut many = pin!(connection.call_many(&[PING, PING], by));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(one.as_mut().poll(&mut cx).is_pending());
        assert!(many.as_mut().poll(&mut cx).is_pending());
        assert!(!connection.slots.are_free(), "they wait with slots");
    }
    drop(credits);
    assert!(connection.slots.are_free() && !connection.is_in_use());
    assert_eq!(connection.credits.available_permits(), 2);
}
