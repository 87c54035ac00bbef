//! Every operation against the real server, over tcp and shm, asynchronous and blocking.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use onesided::{
    Client, Error, Expect, FabricChoice, FabricKind, PutOptions, Table, TableOptions, Ttl,
};
use onesided_server::{Server, ServerConfig};

const FABRICS: [(FabricChoice, FabricKind); 2] =
    [(FabricChoice::Tcp, FabricKind::Tcp), (FabricChoice::Shm, FabricKind::Shm)];

fn server() -> Server {
    server_that(true)
}

/// One that loads from its clients' memory, or READs it as over a network.
fn server_that(staging_loads: bool) -> Server {
    let config = ServerConfig {
        staging_loads,
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 256 << 20,
        ..ServerConfig::default()
    };
    Server::start(config).unwrap()
}

fn url(server: &Server) -> String {
    format!("onesided://{}", server.addr())
}

async fn client(server: &Server, fabric: FabricChoice) -> Client {
    Client::builder().url(url(server)).fabric(fabric).connect().await.unwrap()
}

async fn on_both(body: impl AsyncFn(Client, Table)) {
    let servers = [true, false].map(server_that);
    let [loads, reads] = &servers;
    let shm_by_reads = (reads, FABRICS[1].0, FABRICS[1].1);
    let all = FABRICS.map(|(choice, kind)| (loads, choice, kind));
    for (server, choice, kind) in all.into_iter().chain([shm_by_reads]) {
        let client = client(server, choice).await;
        assert_eq!(client.fabric(), kind);
        assert_eq!(client.stats().fabric, kind.to_string());
        let name = format!("t-{kind}");
        let table = client.create_table(&name, TableOptions::default()).await.unwrap();
        body(client, table).await;
    }
}

#[tokio::test]
async fn put_get_delete() {
    on_both(async |client, table| {
        assert_eq!(table.get("k").await.unwrap(), None);
        let first = table.put("k", "v1").await.unwrap();
        let value = table.get("k").await.unwrap().unwrap();
        assert_eq!((&value[..], value.version()), (&b"v1"[..], first));
        assert_eq!(value.expires_at(), None);
        let second = table.put("k", "v2").await.unwrap();
        assert!(second > first);
        assert!(table.delete("k").await.unwrap());
        assert!(!table.delete("k").await.unwrap());
        assert_eq!(table.get("k").await.unwrap(), None);
        // Nothing and everything are keys and values, too.
        table.put("", "").await.unwrap();
        assert_eq!(&table.get("").await.unwrap().unwrap()[..], b"");
        let key = vec![7; 65_535];
        table.put(&key, "long key").await.unwrap();
        assert_eq!(&table.get(&key).await.unwrap().unwrap()[..], b"long key");
        let stats = client.stats();
        assert_eq!((stats.gets, stats.rpc_puts, stats.rpc_deletes), (5, 4, 2));
        assert!(client.ping().await.unwrap().as_nanos() > 0);
    })
    .await;
}

#[tokio::test]
async fn values_into_the_callers_buffer() {
    on_both(async |client, table| {
        let mut into = b"what it held".to_vec();
        assert_eq!(table.get_into("k", &mut into).await.unwrap(), None);
        assert_eq!(into, b"");
        let options = PutOptions::default().user_flags(9).ttl(Ttl::Seconds(1000));
        for len in [0, 1, 7, 100, 5000, 9000, 16_384, 16_385, 100_000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let version = table.put_with("k", &bytes, options).await.unwrap();
            let meta = table.get_into("k", &mut into).await.unwrap().unwrap();
            assert!(into == bytes, "{len}");
            assert_eq!((meta.version, meta.user_flags), (version, 9));
            let value = table.get("k").await.unwrap().unwrap();
            assert_eq!((value.bytes(), value.meta()), (&bytes[..], meta));
            assert_eq!(value.expires_at(), meta.expires_at());
            assert!(meta.expires_at().is_some() && value.into_vec() == bytes, "{len}");
        }
        assert!(table.delete("k").await.unwrap());
        assert_eq!(table.get_into("k", &mut into).await.unwrap(), None);
        assert_eq!((into.len(), client.stats().gets), (0, 20));
    })
    .await;
}

#[tokio::test]
async fn conditions_flags_and_lifetimes() {
    on_both(async |_, table| {
        let with = |expect| PutOptions::default().expect(expect).user_flags(9);
        let unexpected = |result: Result<u64, Error>| {
            assert!(matches!(result, Err(Error::Unexpected(_))), "{result:?}");
        };
        unexpected(table.put_with("k", "x", with(Expect::Present)).await);
        let version = table.put_with("k", "1", with(Expect::Absent)).await.unwrap();
        unexpected(table.put_with("k", "x", with(Expect::Absent)).await);
        unexpected(table.put_with("k", "x", with(Expect::Version(version + 1))).await);
        let version = table.put_with("k", "2", with(Expect::Version(version))).await.unwrap();
        let value = table.get("k").await.unwrap().unwrap();
        assert_eq!((&value[..], value.user_flags()), (&b"2"[..], 9));
        let refused = table.delete_with("k", Expect::Version(version - 1)).await;
        assert!(matches!(refused, Err(Error::Unexpected(_))));
        assert!(table.delete_with("k", Expect::Version(version)).await.unwrap());

        let mortal = PutOptions::default().ttl(Ttl::Seconds(1000));
        table.put_with("k", "3", mortal).await.unwrap();
        assert!(table.get("k").await.unwrap().unwrap().expires_at().is_some());
        assert!(table.touch("k", Ttl::Never).await.unwrap());
        assert_eq!(table.get("k").await.unwrap().unwrap().expires_at(), None);
        assert!(table.touch("k", Ttl::Seconds(0)).await.unwrap());
        assert_eq!(table.get("k").await.unwrap(), None, "0 s is expired at once");
        assert!(!table.touch("k", Ttl::Never).await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn append_and_increment() {
    on_both(async |_, table| {
        table.append("a", "one").await.unwrap();
        table.append("a", "two").await.unwrap();
        assert_eq!(&table.get("a").await.unwrap().unwrap()[..], b"onetwo");
        assert_eq!(table.increment("n", 5).await.unwrap(), 5);
        assert_eq!(table.increment("n", -7).await.unwrap(), -2);
        assert!(matches!(table.increment("a", 1).await, Err(Error::WrongType(_))));
        assert_eq!(&table.get("n").await.unwrap().unwrap()[..], b"-2");
    })
    .await;
}

#[tokio::test]
async fn bytes_of_a_value_are_replaced() {
    on_both(async |client, table| {
        assert_eq!(table.write_at("k", 0, "x").await.unwrap(), None);
        assert_eq!(table.get("k").await.unwrap(), None, "none was made");
        let kept = PutOptions::default().ttl(Ttl::Seconds(600)).user_flags(7);
        let first = table.put_with("k", "hello", kept).await.unwrap();
        let before = table.get("k").await.unwrap().unwrap().expires_at();
        assert_eq!(table.write_at("k", 1, "a").await.unwrap(), Some(first + 1));
        assert_eq!(table.write_at("k", 7, "!").await.unwrap(), Some(first + 2));
        assert_eq!(table.write_at("k", 1_000, "").await.unwrap(), Some(first + 3));
        let value = table.get("k").await.unwrap().unwrap();
        assert_eq!((&value[..], value.version()), (&b"hallo\0\0!"[..], first + 3));
        assert_eq!((value.user_flags(), value.expires_at()), (7, before));
        let refused = table.write_at("k", 32 << 20, "x").await;
        assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
        let (old, new) = (pattern(100_000, 1), pattern(80_000, 2));
        table.put("large", &old).await.unwrap();
        assert!(table.write_at("large", 50_000, &new).await.unwrap().is_some());
        let value = table.get("large").await.unwrap().unwrap();
        assert!(value[..] == [&old[..50_000], &new[..]].concat()[..]);
        assert_eq!(client.stats().rpc_writes_at, 6);
    })
    .await;
}

#[tokio::test]
async fn many_at_once() {
    on_both(async |_, table| {
        let key = |n: usize| format!("key-{n}");
        let pairs: Vec<_> = (0..500).map(|n| (key(n), format!("value-{n}"))).collect();
        for result in table.put_many(&pairs).await {
            result.unwrap();
        }
        let keys: Vec<_> = (0..600).map(key).collect();
        let values = table.get_many(&keys).await.unwrap();
        for (n, value) in values.iter().enumerate() {
            let expected = pairs.get(n).map(|(_, value)| value.as_bytes());
            assert_eq!(value.as_deref(), expected, "{n}");
        }
        assert!(table.get_many::<&str>(&[]).await.unwrap().is_empty());
        assert!(table.put_many::<&str, &str>(&[]).await.is_empty());
    })
    .await;
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed).collect()
}

#[tokio::test]
async fn large_values() {
    on_both(async |client, table| {
        for (n, len) in
            [4000, 4096, 4200, 16_384, 16_385, 1 << 20, 32 << 20].into_iter().enumerate()
        {
            let value = pattern(len, n as u8);
            table.put("large", &value).await.unwrap();
            let got = table.get("large").await.unwrap().unwrap();
            assert!(got[..] == value[..], "{len} bytes differ");
        }
        let refused = table.put("large", vec![0; (32 << 20) + 1]).await;
        assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
        let refused = table.put(vec![0; 65_536], "x").await;
        assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
        table.put("grown", pattern(100_000, 1)).await.unwrap();
        table.append("grown", pattern(100_000, 2)).await.unwrap();
        let grown = [pattern(100_000, 1), pattern(100_000, 2)].concat();
        assert!(table.get("grown").await.unwrap().unwrap()[..] == grown[..]);
        let pairs: Vec<_> = (0..40).map(|n| (format!("m{n}"), pattern(20_000, n))).collect();
        for result in table.put_many(&pairs).await {
            result.unwrap();
        }
        let keys: Vec<_> = pairs.iter().map(|(key, _)| key).collect();
        for (value, (key, expected)) in table.get_many(&keys).await.unwrap().iter().zip(&pairs) {
            assert!(value.as_deref() == Some(&expected[..]), "{key}");
        }
        let staged = client.stats().staged;
        assert_eq!(staged > 0, client.fabric() == FabricKind::Shm, "{staged} staged");
    })
    .await;
}

#[tokio::test]
async fn tables_come_and_go() {
    let server = server();
    let client = client(&server, FabricChoice::Auto).await;
    assert_eq!(client.fabric(), FabricKind::Shm);
    assert!(matches!(client.table("none").await, Err(Error::NoSuchTable(_))));
    let options = TableOptions { default_ttl_s: 60, ..TableOptions::default() };
    let table = client.create_table("t", options).await.unwrap();
    assert!(matches!(client.create_table("t", options).await, Err(Error::TableExists(_))));
    table.put("k", "v").await.unwrap();
    assert!(table.get("k").await.unwrap().unwrap().expires_at().is_some());
    client.alter_table("t", TableOptions::default()).await.unwrap();
    let names: Vec<_> = client.tables().await.unwrap().into_iter().map(|t| t.name).collect();
    assert!(names.contains(&"t".to_owned()) && names.contains(&"default".to_owned()), "{names:?}");
    client.drop_table("t").await.unwrap();
    assert!(matches!(table.put("k", "v").await, Err(Error::NoSuchTable(_))));
    assert!(matches!(client.drop_table("t").await, Err(Error::NoSuchTable(_))));
    // The handle finds the table that took the name.
    let again = client.create_table("t", TableOptions::default()).await.unwrap();
    again.put("k", "new").await.unwrap();
    assert_eq!(&table.get("k").await.unwrap().unwrap()[..], b"new");
    table.put("k", "newer").await.unwrap();
    assert!(!client.server_stats().await.unwrap().is_empty());
}

/// Polls once and drops.
#[test]
fn a_table_that_is_altered_is_not_a_dropped_one() {
    let server = server();
    let client = onesided::blocking::Client::connect(url(&server)).unwrap();
    let table = client.table("default").unwrap();
    table.put("k", "v").unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for default_ttl_s in
                (1..).take_while(|_| !done.load(std::sync::atomic::Ordering::Relaxed))
            {
                let options = TableOptions { default_ttl_s, ..TableOptions::default() };
                server.engine().alter_table("default", options).unwrap();
            }
        });
        let outcomes: Vec<_> = (0..3_000).map(|_| table.keys()).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for keys in outcomes {
            assert_eq!(keys.unwrap(), [b"k".to_vec()]);
        }
    });
}

fn drop_in_flight<F: Future>(future: F) -> bool {
    let mut future = std::pin::pin!(future);
    let poll = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    matches!(poll, Poll::Pending)
}

#[tokio::test]
async fn dropped_futures_free_what_they_held() {
    on_both(async |_, table| {
        let large = pattern(1 << 20, 3);
        let mut in_flight = 0;
        // More than there are credits, sequence numbers and slots.
        for n in 0..2000 {
            in_flight += usize::from(drop_in_flight(table.increment("n", 1)));
            if n % 100 == 0 {
                drop_in_flight(table.put("large", &large));
                drop_in_flight(table.get("large"));
            }
        }
        let applied = table.increment("n", 0).await.unwrap();
        assert!(applied <= 2000, "{applied} of 2000, {in_flight} were dropped in flight");
        table.put("large", &large).await.unwrap();
        assert!(table.get("large").await.unwrap().unwrap()[..] == large[..]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_share_a_session() {
    on_both(async |client, table| {
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let table = table.clone();
                tokio::spawn(async move {
                    for _ in 0..20 {
                        table.increment("n", 1).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(table.increment("n", 0).await.unwrap(), 2000);
        assert_eq!(client.stats().reconnects, 0);
    })
    .await;
}

#[test]
fn blocking_without_a_runtime() {
    let server = server();
    for (choice, _) in FABRICS {
        let client = onesided::blocking::Client::builder()
            .url(url(&server))
            .fabric(choice)
            .connect_blocking()
            .unwrap();
        let table = client.table("default").unwrap();
        table.delete("n").unwrap();
        let table = Arc::new(table);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                let table = Arc::clone(&table);
                scope.spawn(move || {
                    for _ in 0..200 {
                        table.increment("n", 1).unwrap();
                    }
                });
            }
        });
        assert_eq!(table.increment("n", 0).unwrap(), 1600);
        let large = pattern(3 << 20, 5);
        table.put("large", &large).unwrap();
        assert!(table.get("large").unwrap().unwrap()[..] == large[..]);
        table.append("a", "x").unwrap();
        assert_eq!(table.get_many(&["a", "none"]).unwrap().iter().flatten().count(), 1);
        assert!(table.put_many(&[("b", "1"), ("c", "2")]).iter().all(Result::is_ok));
        assert!(table.touch("b", Ttl::Never).unwrap());
        assert!(table.delete("a").unwrap());
        assert!(client.ping().unwrap().as_nanos() > 0);
    }
}

#[tokio::test]
async fn a_full_server_says_so_and_serves_what_makes_it_no_fuller() {
    for fabric in FABRICS.map(|(choice, _)| choice) {
        let config = ServerConfig {
            listen: "127.0.0.1:0".to_owned(),
            memory_bytes: 16 << 20,
            segment_bytes: 128 << 10,
            ..ServerConfig::default()
        };
        let server = Server::start(config).unwrap();
        let client = client(&server, fabric).await;
        let table = client.table("default").await.unwrap();
        let value = vec![7; 5_000];
        let key = |n: usize| format!("key {n}");
        let mut keys = 0;
        let refusal = loop {
            match table.put(key(keys), &value).await {
                Ok(_) => keys += 1,
                Err(error) => break error,
            }
        };
        assert!(keys > 2_700, "only {keys} values of 5000 bytes in 16 MiB");
        assert!(matches!(&refusal, Error::OutOfMemory(text) if text.contains("--memory")));
        for n in 0..2 * keys {
            table.put(key(n % keys), &vec![n as u8; 5_000 - n / keys * 50]).await.unwrap();
        }
        for n in 0..keys {
            let expected = vec![(n + keys) as u8; 4_950];
            assert_eq!(&table.get(key(n)).await.unwrap().unwrap()[..], expected, "key {n}");
        }
        assert!(matches!(table.put("one more", &value).await, Err(Error::OutOfMemory(_))));
        for n in (0..keys).step_by(4) {
            assert!(table.delete(key(n)).await.unwrap());
        }
        for n in (0..keys).step_by(5) {
            table.put(format!("new {n}"), &value).await.unwrap();
        }
        let stats = client.server_stats().await.unwrap();
        let moved = stats.iter().find(|(name, _)| name == "cleaning_moved_bytes").unwrap().1;
        assert!(moved > 0, "{stats:?}");
        // A cache beside it takes everything, and loses what it had.
        let evict = TableOptions { evict: true, ..TableOptions::default() };
        let cache = client.create_table("cache", evict).await.unwrap();
        for n in 0..2 * keys {
            let put = cache.put(key(n), &value).await;
            put.unwrap_or_else(|error| panic!("{n} of {keys}: {error}"));
        }
        assert_eq!(&cache.get(key(2 * keys - 1)).await.unwrap().unwrap()[..], value);
        assert_eq!(&table.get(key(1)).await.unwrap().unwrap()[..2], [(1 + keys) as u8; 2]);
    }
}
