//! What strangers and mad clients send. A good client is answered all along.

mod common;

use std::io::Write;
use std::net::TcpStream;

use common::*;
use onesided_protocol::control::{PURPOSE_CONTROL, PURPOSE_DATA, ToClient, ToServer};
use onesided_protocol::rpc::{Answer, ErrorCode};
use onesided_server::{Server, ServerConfig};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

fn say(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut stream = dial(server.addr());
    stream.write_all(bytes).expect("send");
    stream
}

fn random() -> SmallRng {
    let seed = rand::random();
    println!("seed {seed}");
    SmallRng::seed_from_u64(seed)
}

#[test]
fn malformed_hellos_are_answered_and_closed() {
    let server = start(ServerConfig { handshake_timeout_ms: 300, ..config() });
    let (_control, mut good) = connect(server.addr());
    let frame = |length: u32, body: &[u8]| {
        [&preamble(PURPOSE_CONTROL)[..], &length.to_le_bytes(), body].concat()
    };
    for (what, bytes) in [
        ("http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("redis", b"*1\r\n$4\r\nPING\r\n".to_vec()),
        ("another purpose", preamble(9)),
        ("2^31", frame(1 << 31, b"")),
        ("2^32-1", frame(u32::MAX, b"x")),
        ("513", frame(513, &[0; 513])),
        ("empty", frame(0, b"")),
        ("no hello", frame(1, &[9])),
        ("unknown kind", frame(1, &[200])),
        ("half a preamble", b"onesi".to_vec()),
        ("no frame", preamble(PURPOSE_CONTROL)),
        ("half a frame", frame(100, b"half")),
        ("no ticket", preamble(PURPOSE_DATA)),
    ] {
        let answer = last_words(say(&server, &bytes));
        assert_eq!(answer, Some(ErrorCode::Malformed), "{what}");
        good.ping();
    }
}

#[test]
fn random_bytes_on_the_control_port() {
    let server = start(config());
    let (_control, mut good) = connect(server.addr());
    let mut rng = random();
    for round in 0..200 {
        let mut bytes = match round % 3 {
            0 => Vec::new(),
            1 => preamble(PURPOSE_CONTROL),
            _ => preamble(PURPOSE_DATA),
        };
        let mut junk = vec![0; rng.random_range(0..2000)];
        rng.fill_bytes(&mut junk);
        bytes.extend_from_slice(&junk);
        // The server may close in the middle of it.
        let _closed_already = dial(server.addr()).write_all(&bytes);
        if round % 20 == 0 {
            good.ping();
        }
    }
    good.ping();
}

#[test]
fn random_frames_after_a_good_hello() {
    let server = start(config());
    let (_control, mut good) = connect(server.addr());
    let mut rng = random();
    for _ in 0..100 {
        let mut control = Control::open(server.addr());
        let mut junk = vec![0; rng.random_range(1..500)];
        rng.fill_bytes(&mut junk);
        // Only kinds that do not exist: a random one that does could be well formed.
        junk[0] = rng.random_range(13..=255);
        write_frame(&mut control.stream, &junk).expect("send");
        assert_eq!(control.last_word(), ErrorCode::Malformed);
        assert!(read_frame(&mut control.stream).is_err(), "closed");
    }
    good.ping();
}

#[test]
fn random_bytes_as_data_frames() {
    let server = start(config());
    let (_good_control, mut good) = connect(server.addr());
    let mut rng = random();
    for round in 0..100 {
        let (mut control, mut data) = connect(server.addr());
        let mut junk = vec![0; rng.random_range(25..3000)];
        rng.fill_bytes(&mut junk);
        if round % 2 == 0 {
            // A header that fits, an operation that does not exist.
            junk[..24].fill(0);
            junk[24] = 200;
            write_frame(&mut data.stream, &junk).expect("send");
            let bytes = read_frame(&mut data.stream).expect("an answer");
            let error = Answer::decode(&bytes).expect("decodes").result.expect_err("refused");
            assert_eq!(error.code, ErrorCode::Malformed);
        } else {
            let length: u32 = rng.random_range((64 << 20)..=u32::MAX);
            let _closed_already =
                data.stream.write_all(&[&length.to_le_bytes()[..], &junk].concat());
        }
        assert!(data.is_closed());
        assert_eq!(control.ask(&ToServer::Goodbye), ToClient::Done);
    }
    good.ping();
}

#[test]
fn half_messages_hold_nobody_up() {
    let server = start(config());
    let (_control, mut good) = connect(server.addr());
    let mut halves = Vec::new();
    for _ in 0..20 {
        let (mut control, mut data) = connect(server.addr());
        data.stream.write_all(&(30u32 << 20).to_le_bytes()).expect("send");
        data.stream.write_all(&[0; 1000]).expect("send");
        control.stream.write_all(&[100, 0]).expect("send");
        halves.push((control, data));
        good.ping();
    }
}
