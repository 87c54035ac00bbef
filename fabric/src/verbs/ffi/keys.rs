//! What devices name memory by: registrations, made once and kept beside the memory.

use std::sync::Arc;

use super::error::VerbsError;
use super::flight::Target;
use super::pd::{Access, Mr, Pd};
use crate::buffer::Buffer;
use crate::mem::Memory;
use crate::registrations::Span;

/// A chunk of buffers, for this side's requests.
struct Ours(Mr<()>);
/// A region that peers may only READ.
struct Readable(Mr<()>);
/// What one peer may READ and WRITE.
struct Lent(Mr<()>);
/// A region for everything.
struct Writable(Mr<()>);

/// What requests in this domain name a buffer by; 0 for one without bytes.
///
/// # Errors
/// When it cannot be registered: most often the limit on locked memory.
#[inline]
pub(crate) fn lkey(pd: &Arc<Pd>, buffer: &Buffer) -> Result<u32, VerbsError> {
    match buffer.known_key(pd.number()) {
        Some(key) => Ok(key),
        None => lkey_at_first(pd, buffer),
    }
}

#[inline(never)]
fn lkey_at_first(pd: &Arc<Pd>, buffer: &Buffer) -> Result<u32, VerbsError> {
    let key = ours(pd, buffer)?.map_or(0, |ours| ours.0.lkey());
    buffer.keep_key(pd.number(), key);
    Ok(key)
}

/// What peers name the first byte of a lendable buffer by; `None` for another one.
///
/// # Errors
/// As [`lkey`].
pub(crate) fn lent(pd: &Arc<Pd>, buffer: &Buffer) -> Result<Option<Target>, VerbsError> {
    let ours = if buffer.is_lendable() { ours(pd, buffer)? } else { None };
    Ok(ours.map(|ours| Target { addr: buffer.addr(), rkey: ours.0.rkey() }))
}

#[inline]
fn ours<'b>(pd: &Arc<Pd>, buffer: &'b Buffer) -> Result<Option<&'b Ours>, VerbsError> {
    let make = |span: Span| {
        let access = if buffer.is_lendable() { Access::Lent } else { Access::Local };
        // SAFETY: the chunk drops its registrations before it is unmapped. Its blocks are
        // referred to only through their buffers, which a posted request owns.
        let mr = unsafe { Mr::new(pd, span.addr, span.len_bytes, access, ()) };
        mr.map(Ours)
    };
    buffer.registered(pd.key(), make)
}

/// What peers name memory by.
///
/// # Errors
/// When it cannot be registered: most often the limit on locked memory; or it was given up.
pub(crate) fn target(pd: &Arc<Pd>, memory: &Memory, access: Access) -> Result<Target, VerbsError> {
    let make = |span: Span| {
        // Giving up waits for registrations that have begun: none comes after it, or the pages
        // that were given back would be pinned again, for nobody.
        if memory.is_discarded() {
            let text = "the memory was given back to the system: look again where the data is";
            return Err(VerbsError::Choice(text.to_owned()));
        }
        // SAFETY: the memory drops its registrations before it is unmapped, and nobody makes
        // references into it but to atomics.
        unsafe { Mr::new(pd, span.addr, span.len_bytes, access, ()) }
    };
    let of = |mr: &Mr<()>| Target { addr: mr.addr(), rkey: mr.rkey() };
    let key = pd.key();
    match access {
        Access::RemoteAll => memory.registered(key, |s| make(s).map(Writable), |w| of(&w.0)),
        Access::RemoteWrite => memory.registered(key, |s| make(s).map(Lent), |lent| of(&lent.0)),
        _ => memory.registered(key, |s| make(s).map(Readable), |readable| of(&readable.0)),
    }
}
