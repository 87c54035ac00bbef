//! Batches of several kinds of operations, against a map that does the same one by one.

use std::collections::BTreeMap;

use onesided::blocking::{Client, Table};
use onesided::{BatchOp, BatchReply, Error, Expect, FabricChoice, PutOptions, TableOptions};
use onesided_server::{Server, ServerConfig};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Over shm a GET is a load, over tcp everything is in the messages.
const FABRICS: [FabricChoice; 2] = [FabricChoice::Shm, FabricChoice::Tcp];

fn server() -> Server {
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 256 << 20,
        ..ServerConfig::default()
    };
    Server::start(config).expect("the server starts")
}

fn connect(server: &Server, fabric: FabricChoice) -> (Client, Table) {
    let builder = onesided::Client::builder().url(format!("onesided://{}", server.addr()));
    let client = builder.fabric(fabric).connect_blocking().expect("a client");
    let table = client.create_table(&format!("t-{fabric:?}"), TableOptions::default());
    (client, table.expect("a table"))
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> BatchOp<'a> {
    BatchOp::Put { key, value, options: PutOptions::default() }
}

/// An operation with bytes of its own.
type Owned = (u8, Vec<u8>, Vec<u8>);

fn draw(random: &mut StdRng) -> Owned {
    let key = format!("key-{}", random.random_range(0..12u8)).into_bytes();
    // Mostly short; some share no message, and some no staging-free one.
    let len = match random.random_range(0..40) {
        0 => random.random_range(0..300_000),
        1..4 => random.random_range(0..6_000),
        _ => random.random_range(0..200),
    };
    (random.random_range(0..5), key, vec![random.random(); len])
}

fn of(owned: &Owned) -> BatchOp<'_> {
    match owned {
        (0 | 1, key, _) => BatchOp::Get { key },
        (2, key, value) => put(key, value),
        (3, key, value) => {
            let bytes = &value[..value.len().min(50)];
            BatchOp::WriteAt { key, offset: value.len() as u64 % 64, bytes }
        }
        (_, key, _) => BatchOp::Delete { key },
    }
}

#[test]
fn a_batch_does_what_its_operations_do_one_by_one() {
    let server = server();
    for (seed, fabric) in (0..20).flat_map(|seed| FABRICS.map(|fabric| (seed, fabric))) {
        let (client, table) = connect(&server, fabric);
        let mut random = StdRng::seed_from_u64(seed);
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for _ in 0..20 {
            let owned: Vec<Owned> =
                (0..random.random_range(0..100)).map(|_| draw(&mut random)).collect();
            let ops: Vec<BatchOp<'_>> = owned.iter().map(of).collect();
            let replies = table.batch(&ops);
            assert_eq!(replies.len(), ops.len());
            for (op, reply) in ops.iter().zip(replies) {
                match (op, reply.expect("a reply")) {
                    (BatchOp::Get { key }, BatchReply::Value(value)) => {
                        let value = value.as_deref();
                        let right = model.get(*key).map(Vec::as_slice);
                        assert!(value == right, "seed {seed} {fabric:?}: {key:?}");
                    }
                    (BatchOp::Put { key, value, .. }, BatchReply::Stored(version)) => {
                        assert!(version > 0);
                        model.insert(key.to_vec(), value.to_vec());
                    }
                    (BatchOp::WriteAt { key, offset, bytes }, BatchReply::Written(version)) => {
                        let value = model.get_mut(*key);
                        assert_eq!(version.is_some(), value.is_some(), "seed {seed} {fabric:?}");
                        if let Some(value) = value.filter(|_| !bytes.is_empty()) {
                            let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                            value.resize(value.len().max(end), 0);
                            value[start..end].copy_from_slice(bytes);
                        }
                    }
                    (BatchOp::Delete { key }, BatchReply::Deleted(was)) => {
                        assert_eq!(was, model.remove(*key).is_some(), "seed {seed} {fabric:?}");
                    }
                    (op, reply) => panic!("{op:?}: {reply:?}"),
                }
            }
        }
        client.drop_table(table.name()).expect("dropped");
    }
}

#[test]
fn one_that_fails_leaves_the_others_alone() {
    let server = server();
    for fabric in FABRICS {
        let (client, table) = connect(&server, fabric);
        let options = PutOptions::default().expect(Expect::Present);
        let unmet = BatchOp::Put { key: b"absent", value: b"v", options };
        let long = vec![0; 33 << 20];
        let mut replies = table.batch(&[put(b"a", b"1"), unmet, BatchOp::Get { key: b"a" }]);
        assert!(matches!(replies.remove(1), Err(Error::Unexpected(_))));
        let value = BatchReply::Value(table.get("a").expect("a"));
        assert!(matches!(&value, BatchReply::Value(Some(value)) if **value == *b"1"));
        assert_eq!(replies.remove(1).expect("the GET"), value);
        // What is refused on this side does not keep the others from going.
        let mut replies = table.batch(&[put(b"long", &long), put(b"b", b"2")]);
        assert!(matches!(replies.remove(0), Err(Error::TooLarge(_))));
        assert!(matches!(replies.remove(0), Ok(BatchReply::Stored(_))));
        assert_eq!(table.get("b").expect("b").as_deref(), Some(&b"2"[..]));
        client.drop_table(table.name()).expect("dropped");
    }
}

#[test]
fn values_that_share_no_answer_come_all_the_same() {
    let server = server();
    let (_client, table) = connect(&server, FabricChoice::Tcp);
    // Together they are longer than any message.
    let value = vec![7; 12 << 20];
    let keys: Vec<[u8; 1]> = (0..8).map(|key| [key]).collect();
    for key in &keys {
        table.put(key, &value).expect("put");
    }
    for _ in 0..2 {
        let mut ops: Vec<BatchOp<'_>> = keys.iter().map(|key| BatchOp::Get { key }).collect();
        ops.push(put(b"short", b"v"));
        let replies = table.batch(&ops);
        for reply in &replies[..keys.len()] {
            let whole = |reply: &BatchReply| match reply {
                BatchReply::Value(Some(found)) => **found == value,
                _ => false,
            };
            assert!(reply.as_ref().is_ok_and(whole));
        }
        assert!(matches!(replies[keys.len()], Ok(BatchReply::Stored(_))));
    }
}

#[test]
fn a_table_made_anew_is_found() {
    let server = server();
    for fabric in FABRICS {
        let (client, table) = connect(&server, fabric);
        table.put("a", "1").expect("put");
        client.drop_table(table.name()).expect("dropped");
        client.create_table(table.name(), TableOptions::default()).expect("made anew");
        let replies = table.batch(&[BatchOp::Get { key: b"a" }, put(b"a", b"2"), put(b"b", b"3")]);
        let replies: Vec<BatchReply> = replies.into_iter().map(|r| r.expect("a reply")).collect();
        assert_eq!(replies[0], BatchReply::Value(None));
        assert_eq!(table.get("b").expect("b").as_deref(), Some(&b"3"[..]));
    }
}

#[test]
fn long_values_are_rewritten_in_order() {
    let server = server();
    for fabric in FABRICS {
        // Much is copied, and all of a batch has one deadline: this is no test of that.
        let builder = onesided::Client::builder().url(format!("onesided://{}", server.addr()));
        let builder = builder.fabric(fabric).operation_timeout_ms(60_000);
        let client = builder.connect_blocking().expect("a client");
        let table = client.create_table(&format!("{fabric:?}"), TableOptions::default());
        let table = table.expect("a table");
        let mut model = vec![0; 6 << 20];
        table.put(b"k", &model).expect("put");
        // More than the server does of one batch, and more than one message. Each overlaps the one
        // before it, and in front of the last one the value is asked for.
        let parts: Vec<Vec<u8>> = (1..=18).map(|n| vec![n; 4_000]).collect();
        let write = |n: usize| BatchOp::WriteAt { key: b"k", offset: n as u64, bytes: &parts[n] };
        let mut ops: Vec<BatchOp<'_>> = (0..parts.len()).map(write).collect();
        ops.insert(parts.len() - 1, BatchOp::Get { key: b"k" });
        let replies = table.batch(&ops);
        for (n, reply) in replies.into_iter().enumerate() {
            match reply.unwrap_or_else(|error| panic!("{fabric:?} {n}: {error}")) {
                BatchReply::Written(Some(_)) => {
                    let n = if n < parts.len() { n } else { n - 1 };
                    model[n..n + parts[n].len()].copy_from_slice(&parts[n]);
                }
                BatchReply::Value(Some(value)) => assert!(*value == model, "{fabric:?} {n}"),
                other => panic!("{fabric:?} {n}: {other:?}"),
            }
        }
        let value = table.get(b"k").expect("get");
        assert!(value.as_deref() == Some(&model[..]), "{fabric:?}");
    }
}
