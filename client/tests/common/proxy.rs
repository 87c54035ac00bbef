//! A TCP proxy that can be told to misbehave.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Default)]
struct State {
    /// Bytes are taken in neither direction.
    stalled: AtomicBool,
    /// What the server says is thrown away.
    swallowing: AtomicBool,
    /// New connections are closed at once.
    refusing: AtomicBool,
    stopped: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

/// Forwards connections to a server until it is dropped.
pub(crate) struct Proxy {
    addr: SocketAddr,
    state: Arc<State>,
}

impl Proxy {
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if shared.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(client) = client else { continue };
                if !shared.refusing.load(Ordering::SeqCst) {
                    // A server that is down refuses: the client sees its connection close.
                    let _down = forward(client, server, &shared);
                }
            }
        });
        Self { addr, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("onesided://{}", self.addr)
    }

    pub(crate) fn stall(&self, on: bool) {
        self.state.stalled.store(on, Ordering::SeqCst);
    }

    pub(crate) fn swallow_answers(&self, on: bool) {
        self.state.swallowing.store(on, Ordering::SeqCst);
    }

    pub(crate) fn refuse(&self, on: bool) {
        self.state.refusing.store(on, Ordering::SeqCst);
    }

    /// Closes the connection that was opened last.
    pub(crate) fn cut_last(&self) {
        let mut open = self.state.open.lock().unwrap();
        let ends = open.len().saturating_sub(2);
        for stream in open.drain(ends..) {
            let _closed_already = stream.shutdown(Shutdown::Both);
        }
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        for stream in self.state.open.lock().unwrap().drain(..) {
            let _closed_already = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::SeqCst);
        self.cut();
        let _wake = TcpStream::connect(self.addr);
    }
}

fn forward(client: TcpStream, server: SocketAddr, state: &Arc<State>) -> std::io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut open = state.open.lock().unwrap();
    open.push(client.try_clone()?);
    open.push(server.try_clone()?);
    drop(open);
    pump(client.try_clone()?, server.try_clone()?, Arc::clone(state), false);
    pump(server, client, Arc::clone(state), true);
    Ok(())
}

fn pump(mut from: TcpStream, mut to: TcpStream, state: Arc<State>, answers: bool) {
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            while state.stalled.load(Ordering::SeqCst) && !state.stopped.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if answers && state.swallowing.load(Ordering::SeqCst) {
                continue;
            }
            if to.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        let _closed_already = from.shutdown(Shutdown::Both);
        let _closed_already = to.shutdown(Shutdown::Both);
    });
}
