//! The same over shared memory.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use onesided_fabric::shm::{self, Connected};
use onesided_fabric::{Buffer, BufferPool, Completion, Opcode, Outcome, WorkRequest};
use onesided_protocol::control::FabricName;
use onesided_protocol::rpc::{Op, Payload, Reply, Request, RpcError};
use onesided_server::Server;

use super::{Control, PATIENCE, put_payload, reply};

/// A client over shm.
pub struct Shm {
    pub control: Control,
    pub connected: Connected,
    pub pool: BufferPool,
    pub table: u32,
    pub next_id: u64,
}

impl Shm {
    pub fn open(server: &Server) -> Self {
        Self::with(Control::open(server.addr()))
    }

    /// The same session again; this connection ends.
    pub fn resume(self, server: &Server) -> Self {
        let Self { control, connected, .. } = self;
        drop(connected);
        let resumed = Control::resume(server.addr(), &control.welcome);
        assert!(resumed.welcome.resumed);
        Self::with(resumed)
    }

    fn with(mut control: Control) -> Self {
        let table = control.table("default");
        let offers = &control.welcome.fabrics;
        let offer = offers.iter().find(|offer| offer.kind == FabricName::Shm).expect("shm");
        let connected =
            shm::connect(&offer.blob, &control.welcome.ticket, 5, PATIENCE).expect("connects");
        Self { control, connected, pool: BufferPool::new(), table, next_id: 1 }
    }

    pub fn request(&mut self, sequence: u64, op: Op<'_>) -> WorkRequest {
        let id = self.next_id;
        self.next_id += 1;
        let mut bytes = Vec::new();
        Request { id, sequence, table: self.table, op }.encode(&mut bytes);
        WorkRequest { id, signaled: false, op: Opcode::Send { message: self.pool.copy_of(&bytes) } }
    }

    pub fn next(&mut self) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        let mut completions: Vec<Completion> = Vec::new();
        loop {
            if self.connected.cq.poll(&mut completions, 1) > 0 {
                return completions.remove(0).outcome;
            }
            assert!(Instant::now() < deadline, "no completion");
            self.connected.cq.wait(Duration::from_millis(100));
        }
    }

    pub fn receive(&mut self) -> Buffer {
        match self.next() {
            Outcome::Received(message) => message,
            other => panic!("{other:?}"),
        }
    }

    pub fn call_bytes(&mut self, sequence: u64, op: Op<'_>) -> Buffer {
        let request = self.request(sequence, op);
        self.connected.endpoint.post(&mut VecDeque::from([request])).expect("posts");
        self.receive()
    }

    pub fn call(&mut self, sequence: u64, op: Op<'_>) -> Result<Reply<'static>, RpcError> {
        reply(&self.call_bytes(sequence, op))
    }

    /// Puts by way of the staging memory.
    pub fn put_staged(&mut self, sequence: u64, key: &[u8], value: &[u8], at: u64) -> bool {
        let staging = self.connected.staging.as_ref().expect("staging");
        staging.write_bytes(at as usize, value).expect("fits");
        let payload = Payload::Staged { offset_bytes: at, len_bytes: value.len() as u32 };
        self.call(sequence, put_payload(key, payload)).is_ok()
    }

    pub fn is_closed(&mut self) -> bool {
        matches!(self.next(), Outcome::Disconnected(_))
    }
}
