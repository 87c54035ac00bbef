//! One connection to the control port.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use onesided_protocol::control::{
    PREAMBLE_MAGIC, PURPOSE_CONTROL, PURPOSE_DATA, ToClient, ToServer,
};
use onesided_protocol::limits::{
    CONTROL_REQUEST_MAX_BYTES, SESSION_REQUEST_MAX_BYTES, TICKET_BYTES,
};
use onesided_protocol::rpc::{ErrorCode, RpcError};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tracing::field::display;

use super::frame::{self, FrameError};
use super::hello::{self, Greeted};
use super::verbs;
use crate::server::Core;
use crate::session::{Lost, NotAdmitted};

/// What a connection holds of the server's limits.
pub(super) struct Permits {
    /// Until it has said hello.
    pub(super) handshake: OwnedSemaphorePermit,
    /// While it is a control connection.
    pub(super) _connection: OwnedSemaphorePermit,
}

/// What the first bytes led to.
enum Opening {
    Greeted(Box<Greeted>),
    /// The connection is another's now, or nothing can be said on it.
    Done,
    Refused(RpcError),
}

/// Serves a connection from its first byte to its end.
pub(super) async fn serve(
    core: Arc<Core>,
    stream: TcpStream,
    permits: Permits,
    mut stop: watch::Receiver<bool>,
) {
    core.stats.connections.add(1);
    let serving = serve_until_end(&core, stream, permits);
    tokio::select! {
        () = serving => {}
        _ = stop.changed() => {}
    }
    core.stats.connections.sub(1);
}

async fn serve_until_end(core: &Arc<Core>, mut stream: TcpStream, permits: Permits) {
    // Answers are small and waited for.
    let _only_slower = stream.set_nodelay(true);
    let Permits { handshake, _connection } = permits;
    let patience = Duration::from_millis(core.config.handshake_timeout_ms);
    let mut purpose = [0; PREAMBLE_MAGIC.len() + 1];
    let opening = tokio::time::timeout(patience, async {
        let buffer = &mut purpose;
        match stream.read_exact(buffer).await {
            Ok(_) if buffer[..8] == PREAMBLE_MAGIC && buffer[8] == PURPOSE_CONTROL => {
                greet(core, &mut stream).await
            }
            Ok(_) if buffer[..8] == PREAMBLE_MAGIC && buffer[8] == PURPOSE_DATA => {
                let mut ticket = [0; TICKET_BYTES];
                match stream.read_exact(&mut ticket).await {
                    Ok(_) => Opening::Greeted(Box::new(Greeted::Data(ticket))),
                    Err(_) => Opening::Done,
                }
            }
            Ok(_) => Opening::Refused(not_ours(buffer)),
            Err(_) => Opening::Done,
        }
    })
    .await;
    let greeted = match opening {
        Ok(Opening::Greeted(greeted)) => *greeted,
        Ok(Opening::Done) => return,
        Ok(Opening::Refused(error)) => return refuse(core, stream, error).await,
        Err(_) => {
            let text = format!("no hello within {} ms", patience.as_millis());
            return refuse(core, stream, RpcError::new(ErrorCode::Malformed, text)).await;
        }
    };
    match greeted {
        Greeted::Data(ticket) => adopt(core, stream, &ticket),
        Greeted::Control { welcome, session, control } => {
            let welcome = ToClient::Welcome(welcome);
            if frame::write(&mut stream, &welcome).await.is_err() {
                return;
            }
            drop(handshake);
            verbs::Connection { core: Arc::clone(core), session, control }.serve(stream).await;
        }
    }
}

async fn greet(core: &Arc<Core>, stream: &mut TcpStream) -> Opening {
    let mut buffer = Vec::new();
    match frame::read(stream, &mut buffer, CONTROL_REQUEST_MAX_BYTES).await {
        Ok(first) => match hello::answer(core, first, stream.peer_addr().ok()) {
            Ok(greeted) => Opening::Greeted(Box::new(greeted)),
            Err(error) => Opening::Refused(error),
        },
        Err(FrameError::Closed | FrameError::Broken(_)) => Opening::Done,
        Err(error) => Opening::Refused(RpcError::new(ErrorCode::Malformed, error.to_string())),
    }
}

fn not_ours(first: &[u8]) -> RpcError {
    let shown = first.escape_ascii();
    let text = format!(
        "this is a onesided server; a connection to it begins with `onesided` and its purpose, not \
         with `{shown}`"
    );
    RpcError::new(ErrorCode::Malformed, text)
}

async fn refuse(core: &Core, stream: TcpStream, error: RpcError) {
    core.stats.refused_hellos.add(1);
    if let Some(suppressed) = core.log_limit.allow() {
        let peer = stream.peer_addr().ok().map(display);
        tracing::warn!(peer, %error, suppressed, "connection refused");
    }
    frame::write_last(stream, &ToClient::Failed(error)).await;
}

/// Gives a data connection to the tcp fabric.
fn adopt(core: &Core, stream: TcpStream, ticket: &[u8; TICKET_BYTES]) {
    let peer = stream.peer_addr().ok();
    let Some(tcp) = &core.tcp else {
        return refuse_data(core, peer, "the tcp fabric is not offered");
    };
    let context = match core.gate.redeem(ticket) {
        Ok(context) => context,
        // Control and data connection of a client that lived shortly are read in any order.
        Err(late @ NotAdmitted::SessionOver) => {
            let peer = peer.map(display);
            return tracing::debug!(peer, reason = %late, "data connection closed");
        }
        Err(refused) => return refuse_data(core, peer, &refused.to_string()),
    };
    let adopted: io::Result<()> = stream.into_std().and_then(|stream| tcp.adopt(stream, context));
    if let Err(error) = adopted {
        core.sessions.disconnected(context);
        refuse_data(core, peer, &error.to_string());
    }
}

fn refuse_data(core: &Core, peer: Option<SocketAddr>, reason: &str) {
    if let Some(suppressed) = core.log_limit.allow() {
        tracing::warn!(peer = peer.map(display), reason, suppressed, "data connection refused");
    }
}

impl verbs::Connection {
    /// Answers frames in order until the connection or the session ends.
    pub(super) async fn serve(mut self, mut stream: TcpStream) {
        // It grows with the first report of accesses, if there are any.
        let mut buffer = Vec::new();
        loop {
            let frame = tokio::select! {
                frame = frame::read(&mut stream, &mut buffer, SESSION_REQUEST_MAX_BYTES) => frame,
                lost = self.control.lost() => return farewell(stream, lost).await,
            };
            let message = match frame {
                Ok(frame) => ToServer::decode(frame).map_err(|error| error.to_string()),
                Err(FrameError::Closed | FrameError::Broken(_)) => return,
                Err(error) => Err(error.to_string()),
            };
            let message = match message {
                Ok(message) => message,
                Err(text) => {
                    self.core.stats.malformed_control.add(1);
                    let error = RpcError::new(ErrorCode::Malformed, text);
                    return refuse(&self.core, stream, error).await;
                }
            };
            let last = matches!(message, ToServer::Goodbye | ToServer::Hello(_));
            let answer = self.answer(message).await;
            if last {
                return frame::write_last(stream, &answer).await;
            }
            if frame::write(&mut stream, &answer).await.is_err() {
                return;
            }
        }
    }
}

async fn farewell(stream: TcpStream, lost: Lost) {
    let text = match lost {
        Lost::Ended => "the session is over: no heartbeat within its lease; connect again",
        Lost::Superseded => "the session was resumed on another connection",
    };
    // Not an answer to anything: a client that is alive reads it instead of its next answer.
    let error = RpcError::new(ErrorCode::Unauthorized, text);
    frame::write_last(stream, &ToClient::Failed(error)).await;
}
