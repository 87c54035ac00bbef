use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;

use super::super::driver::block_on;
use super::super::fake::{CREDITS, connection, table_info};
use super::*;
use crate::options::Options;
use crate::table::Table;

const PING: Outgoing<'_> = Outgoing { sequence: 0, table: 0, op: &Op::Ping };

#[test]
fn who_is_given_up_while_waiting_for_a_credit_leaves_its_slot() {
    let connection = connection(Options::default(), |_, _| panic!("nothing is posted"));
    let by = Deadline::after("a test", Duration::from_secs(600));
    let credits = connection.credits.try_acquire_many(CREDITS as u32).expect("all credits");
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
    assert_eq!(connection.credits.available_permits(), CREDITS);
}

/// A connection whose fabric takes one request, answers nothing, and has no room for others.
fn full_after_one() -> Arc<Connection> {
    let is_full = AtomicBool::new(false);
    let timeout = Duration::from_millis(100);
    let options = Options { operation_timeout: timeout, ..Options::default() };
    connection(options, move |chain, _| {
        if !is_full.swap(true, Ordering::Relaxed) {
            chain.pop_front();
        }
        if chain.is_empty() { Ok(()) } else { Err(PostError::Full) }
    })
}

#[test]
fn a_batch_that_left_in_part_says_of_the_rest_that_its_time_was_over() {
    let connection = full_after_one();
    let by = Deadline::after("a test", Duration::from_millis(100));
    let answers = connection.call_many(&[PING; 3], by);
    let answers = block_on(|| Some(Arc::clone(&connection)), answers);
    let errors: Vec<_> = answers.into_iter().map(|answer| answer.expect_err("no answer")).collect();
    assert!(
        matches!(
            errors[..],
            [
                CallError::TimedOut { sent: true },
                CallError::TimedOut { sent: false },
                CallError::TimedOut { sent: false }
            ]
        ),
        "{errors:?}"
    );
}

#[test]
fn a_batch_that_takes_too_long_leaves_the_connection_to_others() {
    let connection = full_after_one();
    let table = Table::from_parts(&connection, "t", table_info(None)).expect("a table");
    // Too long to share messages.
    let pairs = [1, 2, 3].map(|n| ([n], vec![n; 40 << 10]));
    let stored = block_on(|| Some(Arc::clone(&connection)), table.put_many(&pairs));
    assert!(
        matches!(
            stored[..],
            [
                Err(Error::OutcomeUnknown { .. }),
                Err(Error::TimedOut { .. }),
                Err(Error::TimedOut { .. })
            ]
        ),
        "{stored:?}"
    );
    assert!(connection.is_alive());
}
