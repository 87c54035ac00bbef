//! Values: in the message, or in the session's staging memory (rendezvous).
//!
//! The server READs a large value from where the client has put it, and WRITEs a large answer to
//! where the client has asked for it, before the answer that says so on the same endpoint.

use std::collections::VecDeque;

use onesided_fabric::{BufferPool, Opcode, RegionId, RemoteAddr, WorkRequest};
use onesided_protocol::rpc::{ErrorCode, FOUND_HEAD_BYTES, Landing, Op, Payload, RpcError};

use super::Call;

/// An answer's id, and what stands before its value.
pub(super) const ANSWER_OVERHEAD_BYTES: usize = 8 + FOUND_HEAD_BYTES;
/// The session's staging memory, seen from the server.
pub(super) const STAGING: RegionId = RegionId(0);

impl Call<'_> {
    /// Calls `then` with the value, wherever it lies.
    pub(super) fn with_value<T>(
        &self,
        value: Payload<'_>,
        pool: &BufferPool,
        then: impl FnOnce(&[u8]) -> Result<T, RpcError>,
    ) -> Result<T, RpcError> {
        let len_bytes = value.len_bytes();
        match value {
            Payload::Inline(bytes) => {
                self.within_limit(len_bytes)?;
                then(bytes)
            }
            Payload::Staged { offset_bytes, .. } => {
                self.check(offset_bytes, len_bytes)?;
                if len_bytes == 0 {
                    return then(&[]);
                }
                self.copied_bytes.set(self.copied_bytes.get() + len_bytes as u64);
                let mut buffer = pool.get(len_bytes);
                let remote = RemoteAddr { region: STAGING, offset_bytes };
                match self.peer.endpoint.read_bytes_now(remote, &mut buffer) {
                    Some(Ok(())) => then(&buffer),
                    Some(Err(error)) => Err(bad_descriptor(error.to_string())),
                    // Fetched before, but for what is beyond the bound of one request.
                    None => Err(bad_descriptor(format!(
                        "the values of this request have more bytes than the staging memory, \
                         {}: send several requests",
                        self.peer.staging_bytes
                    ))),
                }
            }
            // Fetched before, but for where nothing is fetched, and beyond the bound.
            Payload::Lent { .. } => {
                self.within_limit(len_bytes)?;
                let kind = self.peer.caps.kind;
                Err(bad_descriptor(format!(
                    "{len_bytes} bytes of a lent buffer: over {kind} values of that length go \
                     inside the message or through the staging memory"
                )))
            }
        }
    }

    /// Whether a descriptor may be followed.
    pub(super) fn check(&self, offset_bytes: u64, len_bytes: usize) -> Result<(), RpcError> {
        self.within_limit(len_bytes)?;
        self.within_staging(offset_bytes, len_bytes)
    }

    pub(super) fn within_limit(&self, len_bytes: usize) -> Result<(), RpcError> {
        let max_bytes = self.dispatcher.value_max_bytes;
        if len_bytes <= max_bytes {
            return Ok(());
        }
        let text = format!(
            "the value has {len_bytes} bytes; this server's limit is {max_bytes} (value_max)"
        );
        Err(RpcError::new(ErrorCode::TooLarge, text))
    }

    fn within_staging(&self, offset_bytes: u64, len_bytes: usize) -> Result<(), RpcError> {
        let staging_bytes = self.peer.staging_bytes as u64;
        if staging_bytes == 0 {
            let kind = self.peer.caps.kind;
            let text = format!("{kind} has no staging memory: send the value inside the message");
            return Err(bad_descriptor(text));
        }
        match offset_bytes.checked_add(len_bytes as u64) {
            Some(end) if end <= staging_bytes => Ok(()),
            _ => Err(bad_descriptor(format!(
                "{len_bytes} bytes at {offset_bytes} are outside the {staging_bytes} bytes of the \
                 session's staging memory"
            ))),
        }
    }

    /// How a GET's value travels: inside the message if it has `room_bytes` for it, else to the
    /// landing, beside `landed_bytes` of others.
    pub(super) fn way(
        &self,
        op: &Op<'_>,
        len_bytes: usize,
        room_bytes: usize,
        landed_bytes: usize,
    ) -> Result<Way, RpcError> {
        if len_bytes <= room_bytes {
            return Ok(Way::Inline);
        }
        let landing = match op {
            Op::Get { landing, .. } => *landing,
            _ => None,
        };
        match landing {
            // The landings of one request do not overlap, so that they fit together: one that
            // repeats a landing makes the server hold no more than that.
            Some(Landing { offset_bytes, len_bytes: most_bytes })
                if most_bytes as usize >= len_bytes
                    && landed_bytes + len_bytes <= self.peer.staging_bytes.max(len_bytes) =>
            {
                self.within_staging(offset_bytes, len_bytes)?;
                Ok(Way::To(RemoteAddr { region: STAGING, offset_bytes }))
            }
            // What a client parses: the length alone.
            _ => Err(RpcError::new(ErrorCode::NeedsLanding, len_bytes.to_string())),
        }
    }
}

/// How a GET's value travels.
pub(super) enum Way {
    /// Inside the message.
    Inline,
    /// By a WRITE to there, before the answer.
    To(RemoteAddr),
}

pub(super) fn land(
    remote: RemoteAddr,
    value: &[u8],
    pool: &BufferPool,
    out: &mut VecDeque<WorkRequest>,
) -> Payload<'static> {
    let op = Opcode::Write { remote, from: pool.copy_of(value) };
    // The answer follows it in order, and a failure ends the endpoint.
    out.push_back(WorkRequest { id: 0, signaled: false, op });
    Payload::Staged { offset_bytes: remote.offset_bytes, len_bytes: value.len() as u32 }
}

fn bad_descriptor(text: String) -> RpcError {
    RpcError::new(ErrorCode::BadDescriptor, text)
}
