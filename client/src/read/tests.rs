use std::sync::Arc;
use std::time::{Duration, Instant};

use onesided_fabric::{Opcode, Outcome};

use crate::core::{block_on, fake};
use crate::error::Error;
use crate::options::Options;
use crate::table::Table;

const TIMEOUT: Duration = Duration::from_millis(500);

/// How long a GET takes where a READ takes so long, and the server answers nothing.
fn time_of_get(read: Option<Duration>, get: impl AsyncFnOnce(&Table) -> Error) -> Duration {
    let options = Options { operation_timeout: TIMEOUT, ..Options::default() };
    let connection = fake::connection(options, move |chain, due| {
        for request in chain.drain(..) {
            if let (Opcode::Read { mut into, .. }, Some(read)) = (request.op, read) {
                into.fill(0);
                due.put(read, request.id, Outcome::Read(into));
            }
        }
        Ok(())
    });
    let table = Table::from_parts(&connection, "t", fake::table_info(None)).expect("a table");
    let start = Instant::now();
    let error = block_on(|| Some(Arc::clone(&connection)), get(&table));
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(connection.is_alive());
    start.elapsed()
}

#[track_caller]
fn is_in_time(took: Duration) {
    assert!(took >= TIMEOUT && took < TIMEOUT * 3 / 2, "{took:?}");
}

#[test]
fn a_get_has_the_time_of_one_operation_whatever_its_reads_take() {
    for read in [None, Some(TIMEOUT * 3 / 4)] {
        is_in_time(time_of_get(read, async |table| table.get("k").await.expect_err("no answer")));
    }
}

#[test]
fn so_has_a_get_of_many_keys() {
    let get = async |table: &Table| table.get_many(&["k", "l"]).await.expect_err("no answer");
    is_in_time(time_of_get(Some(TIMEOUT * 3 / 4), get));
}
