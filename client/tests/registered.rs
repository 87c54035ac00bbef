//! GET straight into buffers that callers lend, against the real server.

#[path = "common/children.rs"]
mod children;

use children::{builder, fabrics, one_sided, one_sided_kind};
use onesided::{
    Client, ClientBuilder, Error, FabricChoice, PutOptions, RegisteredBuffer, Table, blocking,
};
use onesided_server::{Server, ServerConfig};

fn server() -> Server {
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 256 << 20,
        fabrics: fabrics(),
        ..ServerConfig::default()
    };
    Server::start(config).expect("the server starts")
}

async fn on_each_fabric(body: impl AsyncFn(Client, Table)) {
    let server = server();
    for fabric in [FabricChoice::Tcp, one_sided()] {
        let client = builder(server.addr()).fabric(fabric).connect().await;
        let client = client.expect("connects");
        let table = client.table("default").await.expect("the table");
        body(client, table).await;
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

#[track_caller]
fn assert_too_small(buffer: &RegisteredBuffer, error: &Error, needed: usize) {
    let Error::BufferTooSmall { needed_bytes, capacity_bytes } = *error else {
        panic!("{error}");
    };
    assert_eq!((needed_bytes, capacity_bytes), (needed, buffer.capacity_bytes()));
    assert!(buffer.is_empty(), "{} bytes", buffer.len());
    let text = error.to_string();
    assert!(text.contains(&needed.to_string()) && text.contains("longer"), "{text}");
}

#[tokio::test]
async fn values_of_any_length_into_one_buffer() {
    on_each_fabric(async |client, table| {
        let mut buffer = table.buffer(3 << 20);
        assert!(buffer.is_empty() && buffer.capacity_bytes() >= 3 << 20);
        let place = buffer.as_ptr();
        for len in [0, 1, 100, 9000, 16_383, 16_384, 16_385, 100_001, 3 << 20, 5] {
            let options = PutOptions::default().user_flags(9);
            let version = table.put_with("k", bytes(len), options).await.expect("a put");
            let got;
            (buffer, got) = table.get_into_registered("k", buffer).await;
            let meta = got.expect("a get").expect("a value");
            assert!(buffer[..] == bytes(len), "{len}");
            assert_eq!((meta.version, meta.user_flags), (version, 9));
            assert_eq!(buffer.as_ptr(), place, "the same memory all the while");
        }
        assert!(table.delete("k").await.expect("a delete"));
        let (buffer, got) = table.get_into_registered("k", buffer).await;
        assert_eq!((got.expect("a get"), buffer.len()), (None, 0));
        let stats = client.stats();
        assert_eq!(stats.gets, 11);
        let asked = if stats.fabric == "tcp" { 11 } else { 0 };
        assert_eq!(stats.rpc_gets, asked, "{stats:?}");
        // One for each size of requests; the buffer is none of those.
        assert!(stats.buffer_mappings < 10 && stats.registered_misses == 1, "{stats:?}");
    })
    .await;
}

#[tokio::test]
async fn a_buffer_that_is_too_small_comes_back() {
    on_each_fabric(async |_, table| {
        for len in [100, 10_000, 20_000, 200_000] {
            table.put("k", bytes(len)).await.expect("a put");
            let buffer = table.buffer(len / 2);
            let (place, capacity) = (buffer.as_ptr(), buffer.capacity_bytes());
            assert!(capacity < len);
            let (mut buffer, got) = table.get_into_registered("k", buffer).await;
            assert_too_small(&buffer, &got.expect_err("no room"), len);
            assert_eq!((buffer.as_ptr(), buffer.capacity_bytes()), (place, capacity));

            table.put("k", "short").await.expect("a put");
            let got;
            (buffer, got) = table.get_into_registered("k", buffer).await;
            assert!(got.expect("a get").is_some());
            assert_eq!(&buffer[..], b"short", "it can be used again");
        }
        let (buffer, got) = table.get_into_registered("k", RegisteredBuffer::default()).await;
        assert_too_small(&buffer, &got.expect_err("no room"), 5);
    })
    .await;
}

const ZERO_COPY_BYTES: usize = 50_000;

/// What is stored is what the buffer held, whichever way it went, and the same buffer comes back.
#[tokio::test]
async fn puts_from_a_buffer_store_what_it_holds() {
    let server = server();
    for fabric in [FabricChoice::Tcp, one_sided()] {
        let builder = builder(server.addr()).fabric(fabric).zero_copy_bytes(ZERO_COPY_BYTES);
        let client = builder.connect().await.expect("connects");
        let table = client.table("default").await.expect("the table");
        let mut buffer = client.register(3 << 20).await.expect("a registered buffer");
        assert!(buffer.is_empty() && buffer.capacity_bytes() >= 3 << 20);
        let place = buffer.as_ptr();
        let mut long = 0;
        for len in [0, 1, 5_000, ZERO_COPY_BYTES - 1, ZERO_COPY_BYTES, 70_000, 1 << 20, 3 << 20] {
            buffer.set_len(len);
            buffer.copy_from_slice(&bytes(len));
            let options = PutOptions::default().user_flags(len as u32);
            let stored;
            (buffer, stored) = table.put_from_with("k", buffer, options).await;
            let version = stored.expect("stored");
            assert!(buffer[..] == bytes(len) && buffer.as_ptr() == place, "{len}: the same buffer");
            buffer.fill(0xEE);
            let value = table.get("k").await.expect("a get").expect("a value");
            assert!(value[..] == bytes(len), "{len}");
            assert_eq!((value.version(), value.user_flags()), (version, len as u32));
            long += u64::from(len >= ZERO_COPY_BYTES);
        }
        let stats = client.stats();
        let lends = stats.fabric == "verbs";
        assert_eq!(stats.lent, if lends { long } else { 0 }, "{stats:?}");
        assert_eq!((stats.registered_misses, stats.rpc_puts), (1, 8), "{stats:?}");
    }
}

/// A PUT that fails gives the buffer back as it was.
#[tokio::test]
async fn a_put_that_is_refused_gives_the_buffer_back() {
    on_each_fabric(async |_, table| {
        for len in [10, 200_000] {
            let mut buffer = table.buffer(len);
            buffer.set_len(len);
            buffer.copy_from_slice(&bytes(len));
            let absent = PutOptions::default().expect(onesided::Expect::Version(12_345));
            let stored;
            (buffer, stored) = table.put_from_with("refused", buffer, absent).await;
            assert!(matches!(stored, Err(Error::Unexpected { .. })), "{stored:?}");
            assert!(buffer[..] == bytes(len), "{len}");
        }
        assert_eq!(table.get("refused").await.expect("a get"), None);
        let too_long = 40 << 20;
        let mut buffer = table.buffer(too_long);
        buffer.set_len(too_long);
        let (buffer, stored) = table.put_from("long", buffer).await;
        assert!(matches!(stored, Err(Error::TooLarge(_))), "{stored:?}");
        assert_eq!(buffer.len(), too_long);
    })
    .await;
}

/// More at once than there are numbers to lend under, and again and again: each value is its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_puts_from_buffers_at_once() {
    const TASKS: usize = 24;
    const EACH: usize = 6;
    const LEN: usize = 80_000;
    on_each_fabric(async |client, table| {
        let one = |task: usize| {
            let table = table.clone();
            async move {
                for round in 0..EACH {
                    let mut buffer = table.buffer(LEN);
                    buffer.set_len(LEN);
                    buffer.fill((task * EACH + round) as u8);
                    let (_parked, stored) = table.put_from(format!("{task}"), buffer).await;
                    stored.expect("stored");
                    let value = table.get(format!("{task}")).await.expect("a get");
                    let value = value.expect("a value");
                    let whole = value.iter().all(|&b| b == (task * EACH + round) as u8);
                    assert!(whole && value.len() == LEN, "{task}, {round}");
                }
            }
        };
        let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(one(task))).collect();
        for task in tasks {
            task.await.expect("a task");
        }
        let stats = client.stats();
        let (hits, misses) = (stats.registered_hits, stats.registered_misses);
        assert_eq!(hits + misses, (TASKS * EACH) as u64, "{stats:?}");
        assert!(misses <= TASKS as u64 && stats.registered_idle_bytes > 0, "{stats:?}");
        if stats.fabric == "verbs" {
            assert!(stats.lent > 0, "{stats:?}");
        }
    })
    .await;
}

/// A PUT that nobody waits for any more: its buffer is not used for anything else before the
/// server has answered, and what is stored is what was in it.
#[tokio::test]
async fn a_dropped_put_keeps_its_buffer_until_the_answer() {
    on_each_fabric(async |client, table| {
        const LEN: usize = 2 << 20;
        for round in 0..20_u8 {
            let mut buffer = table.buffer(LEN);
            buffer.set_len(LEN);
            buffer.fill(round);
            let put = table.put_from("dropped", buffer);
            // Polled a few times at most: it has left, and its answer is still to come.
            let patience = std::time::Duration::from_micros(u64::from(round) * 200);
            let _given_up = tokio::time::timeout(patience, put).await;
            let mut next = table.buffer(LEN);
            next.set_len(LEN);
            next.fill(0xFF);
        }
        client.ping().await.expect("a ping");
        if let Some(value) = table.get("dropped").await.expect("a get") {
            let first = value[0];
            assert!(value.iter().all(|&b| b == first) && first < 20, "a mixture, or {first}");
        }
    })
    .await;
}

fn connect(builder: ClientBuilder) -> blocking::Client {
    let client = builder.fabric(one_sided()).connect_blocking().expect("connects");
    assert_eq!(client.fabric(), one_sided_kind());
    client
}

#[test]
fn without_a_runtime() {
    let server = server();
    let table = connect(builder(server.addr())).table("default").expect("the table");
    let mut buffer = table.buffer(1 << 20);
    for len in [10, 1 << 20] {
        table.put("k", bytes(len)).expect("a put");
        let got;
        (buffer, got) = table.get_into_registered("k", buffer);
        assert!(got.expect("a get").is_some());
        assert!(buffer[..] == bytes(len), "{len}");
    }
    let (mut buffer, got) = table.get_into_registered("absent", buffer);
    assert_eq!((got.expect("a get"), buffer.len()), (None, 0));
    buffer.set_len(100_000);
    buffer.copy_from_slice(&bytes(100_000));
    let (buffer, stored) = table.put_from("from", buffer);
    assert!(stored.is_ok() && buffer.len() == 100_000, "{stored:?}");
    assert!(table.get("from").expect("a get").expect("a value")[..] == bytes(100_000));
}

/// A server that is gone: the buffer comes back with the error.
#[test]
fn after_a_lost_connection_there_is_a_buffer() {
    let server = server();
    let table = connect(builder(server.addr()).reconnect(false)).table("default");
    let table = table.expect("the table");
    let buffer = table.buffer(70_000);
    let capacity = buffer.capacity_bytes();
    drop(server);
    let (buffer, got) = table.get_into_registered("k", buffer);
    assert!(matches!(got, Err(Error::ConnectionLost(_))), "{got:?}");
    assert_eq!((buffer.capacity_bytes(), buffer.len()), (capacity, 0));
}

/// Over verbs regions are registered before any client asks, and none is longer than the device
/// takes as one piece; what lies in them is read whole.
#[test]
fn regions_are_registered_ahead_and_as_short_as_the_device_takes() {
    const MAX_BYTES: usize = 4 << 20;
    const VALUES: usize = 20;
    let server = Server::start(ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        memory_bytes: 64 << 20,
        fabrics: fabrics(),
        registration_max_bytes: MAX_BYTES as u64,
        ..ServerConfig::default()
    })
    .expect("the server starts");
    let engine = server.engine();
    let info = engine.open_table("default").expect("a table");
    let table = engine.table(info.id).expect("by id");
    for n in 0..VALUES {
        let value = vec![n as u8; 1 << 20];
        table.put(&[n as u8], &value, onesided::Expect::Any, onesided::Ttl::Never, 0).expect("put");
    }
    if one_sided() == FabricChoice::Verbs {
        let regions: Vec<_> = (0..engine.regions()).filter_map(|id| engine.region(id)).collect();
        assert!(regions.len() > VALUES / 4, "{} regions", regions.len());
        let len_bytes = regions.iter().map(|region| region.len_bytes());
        assert!(len_bytes.clone().all(|bytes| bytes <= MAX_BYTES));
        let all_bytes = len_bytes.sum::<usize>() as u64;
        let registered = || {
            let stats = server.stats();
            let found = stats.iter().find(|(name, _)| name == "verbs_registered_bytes");
            found.expect("verbs is there").1
        };
        // No client is there: only the server itself can have done it.
        let begin = std::time::Instant::now();
        while registered() < all_bytes {
            assert!(begin.elapsed() < children::LONG, "{} of {all_bytes} bytes", registered());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    let client = connect(builder(server.addr()));
    let table = client.table("default").expect("the table");
    let mut buffer = table.buffer(1 << 20);
    for n in 0..VALUES {
        let value = table.get([n as u8]).expect("a get").expect("a value");
        assert!(value.len() == 1 << 20 && value.iter().all(|&byte| byte == n as u8), "{n}");
        let got;
        (buffer, got) = table.get_into_registered([n as u8], buffer);
        assert!(got.expect("a get").is_some() && buffer.iter().all(|&byte| byte == n as u8));
    }
    assert_eq!(client.stats().rpc_gets, 0, "from the regions themselves");
    let longer = table.put("longer", vec![1; MAX_BYTES + 1]);
    assert_eq!(longer.is_err(), one_sided() == FabricChoice::Verbs, "{longer:?}");
    assert_eq!(client.stats().access_errors, 0);
}
