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
        // One of 4 MiB for the buffer, and one for each size of requests.
        assert!(stats.buffer_mappings < 10 && stats.buffer_bytes >= 4 << 20, "{stats:?}");
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
    let (buffer, got) = table.get_into_registered("absent", buffer);
    assert_eq!((got.expect("a get"), buffer.len()), (None, 0));
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
