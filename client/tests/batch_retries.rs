//! Batches whose answers are lost: a GET that stands before a PUT of its key never gives what that
//! PUT has written.

#[path = "common/proxy.rs"]
mod proxy;

use std::time::{Duration, Instant};

use onesided::blocking::{Client, Table};
use onesided::{BatchOp, BatchReply, Error, FabricChoice, PutOptions};
use onesided_server::{Server, ServerConfig};
use proxy::Proxy;

const VALUE_MAX_BYTES: usize = 1 << 20;

struct Bed {
    server: Server,
    proxy: Proxy,
    _client: Client,
    table: Table,
}

impl Bed {
    fn new() -> Self {
        let server = Server::start(ServerConfig {
            listen: "127.0.0.1:0".to_owned(),
            memory_bytes: 128 << 20,
            value_max_bytes: VALUE_MAX_BYTES,
            ..ServerConfig::default()
        });
        let server = server.expect("the server starts");
        let proxy = Proxy::to(server.addr());
        let builder = onesided::Client::builder().url(proxy.url()).fabric(FabricChoice::Tcp);
        let client = builder.connect_blocking().expect("a client");
        let table = client.table("default").expect("a table");
        Self { server, proxy, _client: client, table }
    }

    /// Performs them; the first answer is lost, after the server has stored `written` under `a`.
    fn lose_the_answer(
        &self,
        ops: &[BatchOp<'_>],
        written: &[u8],
    ) -> Vec<Result<BatchReply, Error>> {
        self.proxy.swallow_answers(true);
        let replies = std::thread::scope(|scope| {
            let batch = scope.spawn(|| self.table.batch(ops));
            let deadline = Instant::now() + Duration::from_secs(60);
            while self.stored_a() != written {
                assert!(Instant::now() < deadline, "never applied");
                std::thread::sleep(Duration::from_millis(2));
            }
            self.proxy.swallow_answers(false);
            self.proxy.cut();
            batch.join().expect("no panic")
        });
        assert_eq!(self.stored_a(), written);
        replies
    }

    fn stored_a(&self) -> Vec<u8> {
        let info = self.server.engine().open_table("default").expect("the table");
        let table = self.server.engine().table(info.id).expect("the table");
        let mut value = Vec::new();
        assert!(table.get(b"a", &mut value).is_some());
        value
    }
}

fn get(key: &[u8]) -> BatchOp<'_> {
    BatchOp::Get { key }
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> BatchOp<'a> {
    BatchOp::Put { key, value, options: PutOptions::default() }
}

fn is_value(reply: &Result<BatchReply, Error>, expected: &[u8]) -> bool {
    matches!(reply, Ok(BatchReply::Value(Some(value))) if **value == *expected)
}

fn is_stored(reply: &Result<BatchReply, Error>) -> bool {
    matches!(reply, Ok(BatchReply::Stored(_)))
}

fn is_unknown(reply: &Result<BatchReply, Error>) -> bool {
    matches!(reply, Err(Error::OutcomeUnknown { .. }))
}

#[test]
fn what_a_get_gave_before_a_put_of_its_key_is_given_again() {
    let bed = Bed::new();
    for len in [0, 300, 2_000, 7_000] {
        let (old, new) = (vec![1; len], vec![2; len]);
        bed.table.put("a", &old).expect("put");
        bed.table.put("b", &old).expect("put");
        let ops = [get(b"a"), get(b"b"), put(b"a", b"between"), get(b"a"), put(b"a", &new)];
        let replies = bed.lose_the_answer(&ops, &new);
        assert!(is_value(&replies[0], &old), "{len} bytes");
        assert!(is_value(&replies[1], &old), "{len} bytes");
        assert!(is_value(&replies[3], b"between"), "{len} bytes");
        assert!(is_stored(&replies[2]) && is_stored(&replies[4]), "{len} bytes");
    }
}

#[test]
fn what_is_too_long_to_be_kept_is_said_to_be_unknown() {
    let bed = Bed::new();
    let (old, new) = (vec![1; 20_000], vec![2; 100]);
    bed.table.put("a", &old).expect("put");
    bed.table.put("b", &old).expect("put");
    let replies = bed.lose_the_answer(&[get(b"a"), get(b"b"), put(b"a", &new)], &new);
    assert!(is_unknown(&replies[0]), "the GET before the PUT");
    assert!(is_value(&replies[1], &old), "nobody else has written it");
    assert!(is_stored(&replies[2]));
    // Behind the last PUT of its key it can be asked for again.
    bed.table.put("a", &old).expect("put");
    let replies = bed.lose_the_answer(&[put(b"b", b"b"), put(b"a", &new), get(b"a")], &new);
    assert!(is_value(&replies[2], &new));
}

#[test]
fn gets_of_another_message_are_not_asked_again_behind_a_put() {
    let bed = Bed::new();
    // The PUT has a message of its own.
    let (old, new) = (vec![1; 100], vec![2; 100_000]);
    bed.table.put("a", &old).expect("put");
    bed.table.put("b", &old).expect("put");
    for gets in [&[get(b"a"), get(b"b")][..], &[get(b"a")]] {
        bed.table.put("a", &old).expect("put");
        let ops = [gets, &[put(b"a", &new)]].concat();
        let replies = bed.lose_the_answer(&ops, &new);
        assert!(is_unknown(&replies[0]));
        assert!(replies[1..gets.len()].iter().all(|reply| is_value(reply, &old)));
        assert!(is_stored(&replies[gets.len()]));
    }
}

#[test]
fn a_value_without_room_beside_others_is_not_asked_for_behind_a_put() {
    let bed = Bed::new();
    let old = vec![1; VALUE_MAX_BYTES / 2];
    let keys: Vec<[u8; 1]> = (b'a'..b'f').map(|key| [key]).collect();
    for key in &keys {
        bed.table.put(key, &old).expect("put");
    }
    let mut ops: Vec<BatchOp<'_>> = keys.iter().rev().map(|key| get(key)).collect();
    ops.push(put(b"a", b"new"));
    let replies = bed.table.batch(&ops);
    assert!(replies[..4].iter().all(|reply| is_value(reply, &old)), "asked for one by one");
    assert!(is_unknown(&replies[4]) && is_stored(&replies[5]));
    // Now it is known how long values are.
    bed.table.put("a", &old).expect("put");
    let replies = bed.table.batch(&ops);
    assert!(replies[..5].iter().all(|reply| is_value(reply, &old)));
    assert!(is_stored(&replies[5]));
}
