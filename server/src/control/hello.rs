//! The first frame of a control connection: versions, token, session.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onesided_protocol::control::{PeerVersions, ToServer, Welcome};
use onesided_protocol::limits::{LAYOUT_VERSION, TICKET_BYTES, WIRE_VERSION_MAX, WIRE_VERSION_MIN};
use onesided_protocol::rpc::{ErrorCode, RpcError};

use crate::server::Core;
use crate::session::{Control, Session};

/// A peer that has said what it is.
pub(super) enum Greeted {
    /// A data connection and its ticket.
    Data([u8; TICKET_BYTES]),
    /// A client, welcome.
    Control { welcome: Box<Welcome>, session: Arc<Session>, control: Control },
}

/// Reads a hello and opens or resumes its session.
pub(super) fn answer(
    core: &Core,
    frame: &[u8],
    peer: Option<SocketAddr>,
) -> Result<Greeted, RpcError> {
    // First of all, and from bytes whose place never changes: another version's hello may have
    // fields that this one cannot read.
    let Some(versions) = PeerVersions::peek(frame) else {
        let text = "the first message of a control connection must be a hello";
        return Err(RpcError::new(ErrorCode::Malformed, text));
    };
    let wire = check_versions(versions)?;
    let malformed = |text: String| RpcError::new(ErrorCode::Malformed, text);
    let hello = match ToServer::decode(frame).map_err(|error| malformed(error.to_string()))? {
        ToServer::Hello(hello) => hello,
        _ => return Err(malformed("the first message must be a hello".to_owned())),
    };
    let tenant = core.tenants.of_token(&hello.token)?;
    let opened = core.sessions.open(tenant, hello.resume)?;
    let session = opened.session;
    let control = session.take_control(peer);
    let config = &core.config;
    let welcome = Welcome {
        wire,
        session: session.id,
        resume_key: session.resume_key,
        resumed: opened.resumed,
        applied_sequence: session.applied.load(Ordering::Acquire),
        incarnation: tenant.engine.incarnation(),
        clock_ns: tenant.engine.clock_ns(),
        catalog_epoch: tenant.engine.catalog_epoch(),
        lease_ms: config.session_lease_ms,
        heartbeat_ms: (config.session_lease_ms / 4).max(1),
        credits: config.credits,
        value_max_bytes: config.value_max_bytes as u32,
        ticket: opened.ticket,
        fabrics: core.offers(),
    };
    tracing::debug!(
        session = session.id,
        tenant = tenant.name(),
        peer = peer.map(display),
        resumed = opened.resumed,
        "session opened"
    );
    Ok(Greeted::Control { welcome: Box::new(welcome), session, control })
}

fn check_versions(peer: PeerVersions) -> Result<u16, RpcError> {
    let wire = peer.in_common();
    if let Some(wire) = wire
        && peer.layout == LAYOUT_VERSION
    {
        return Ok(wire);
    }
    let PeerVersions { wire_min, wire_max, layout } = peer;
    let text = format!(
        "the client speaks messages {wire_min} to {wire_max} and layout {layout}, this server \
         messages {WIRE_VERSION_MIN} to {WIRE_VERSION_MAX} and layout {LAYOUT_VERSION}: upgrade \
         the older one"
    );
    Err(RpcError::new(ErrorCode::Version, text))
}
