//! Set-up messages over the session's Unix socket (SEQPACKET: a message arrives whole or not at
//! all), and the descriptors that come with them. Integers are little-endian.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::ring::Geometry;
use crate::work::{RegionId, Rights};

const MAGIC: [u8; 4] = *b"1shm";
const VERSION: u32 = 1;
/// Longest message of either direction.
pub(super) const MAX_BYTES: usize = 512;
/// Most descriptors that come with one message.
const MAX_FDS: usize = 4;

const HELLO: u8 = 1;
const REGION: u8 = 2;
const WELCOME: u8 = 3;
const REFUSED: u8 = 4;
const OFFER: u8 = 5;
const NO_OFFER: u8 = 6;

/// From the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Hello { ticket: [u8; 32] },
    Region { region: RegionId },
}

/// From the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Tell {
    /// Comes with session, bell, flag and, unless its length is 0, staging memory.
    Welcome {
        geometry: Geometry,
        slot: usize,
        bell_bytes: usize,
        staging_bytes: usize,
    },
    Refused(String),
    /// Comes with the region's memory.
    Offer {
        region: RegionId,
        rights: Rights,
        len_bytes: usize,
    },
    NoOffer {
        region: RegionId,
    },
}

impl Ask {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { ticket } => {
                let mut bytes = vec![HELLO];
                bytes.extend_from_slice(&MAGIC);
                bytes.extend_from_slice(&VERSION.to_le_bytes());
                bytes.extend_from_slice(ticket);
                bytes
            }
            Self::Region { region } => with_u32s(REGION, &[region.0]),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        match kind {
            HELLO => {
                let (magic, rest) = rest.split_first_chunk::<4>()?;
                let (version, rest) = rest.split_first_chunk::<4>()?;
                let right = *magic == MAGIC && u32::from_le_bytes(*version) == VERSION;
                let ticket = rest.try_into().ok()?;
                right.then_some(Self::Hello { ticket })
            }
            REGION => {
                let [region] = u32s(rest)?;
                Some(Self::Region { region: RegionId(region) })
            }
            _ => None,
        }
    }
}

impl Tell {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome { geometry, slot, bell_bytes, staging_bytes } => {
                let mut bytes = with_u32s(
                    WELCOME,
                    &[
                        geometry.credits as u32,
                        geometry.max_message_bytes as u32,
                        *slot as u32,
                        *bell_bytes as u32,
                    ],
                );
                bytes.extend_from_slice(&(*staging_bytes as u64).to_le_bytes());
                bytes
            }
            Self::Refused(text) => {
                let mut bytes = vec![REFUSED];
                bytes.extend_from_slice(&text.as_bytes()[..text.len().min(MAX_BYTES - 1)]);
                bytes
            }
            Self::Offer { region, rights, len_bytes } => {
                let mut bytes =
                    with_u32s(OFFER, &[region.0, u32::from(*rights == Rights::ReadWrite)]);
                bytes.extend_from_slice(&(*len_bytes as u64).to_le_bytes());
                bytes
            }
            Self::NoOffer { region } => with_u32s(NO_OFFER, &[region.0]),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        match kind {
            WELCOME => {
                let [credits, max_message, slot, bell, low, high] = u32s(rest)?;
                let geometry =
                    Geometry { credits: credits as usize, max_message_bytes: max_message as usize };
                geometry.is_sane().then_some(Self::Welcome {
                    geometry,
                    slot: slot as usize,
                    bell_bytes: bell as usize,
                    staging_bytes: join(low, high),
                })
            }
            REFUSED => Some(Self::Refused(String::from_utf8_lossy(rest).into_owned())),
            OFFER => {
                let [region, rights, low, high] = u32s(rest)?;
                let rights = if rights == 1 { Rights::ReadWrite } else { Rights::ReadOnly };
                Some(Self::Offer { region: RegionId(region), rights, len_bytes: join(low, high) })
            }
            NO_OFFER => {
                let [region] = u32s(rest)?;
                Some(Self::NoOffer { region: RegionId(region) })
            }
            _ => None,
        }
    }
}

fn join(low: u32, high: u32) -> usize {
    (u64::from(low) | u64::from(high) << 32) as usize
}

fn with_u32s(kind: u8, words: &[u32]) -> Vec<u8> {
    let mut bytes = vec![kind];
    for word in words {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Exactly `N` words, or nothing.
fn u32s<const N: usize>(bytes: &[u8]) -> Option<[u32; N]> {
    let (words, rest) = bytes.as_chunks::<4>();
    let words: &[[u8; 4]; N] = words.try_into().ok()?;
    rest.is_empty().then(|| words.map(u32::from_le_bytes))
}

/// A socket of the right kind.
pub(super) fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends one message with descriptors, without waiting.
pub(super) fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let iov = [IoSlice::new(bytes)];
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(socket, &iov, &mut control, flags))?;
    Ok(())
}

/// Receives one message without descriptors (any that come are closed by the kernel). Empty: the
/// peer has closed.
pub(super) fn receive_plain(socket: &OwnedFd, into: &mut [u8]) -> Result<usize, Errno> {
    let flags = RecvFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut *into, flags)).map(|(n, _)| n)
}

/// Receives one message and its descriptors.
pub(super) fn receive(socket: &OwnedFd, into: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        let mut iov = [IoSliceMut::new(into)];
        rustix::net::recvmsg(socket, &mut iov, &mut control, flags)
    })?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((received.bytes, fds))
}

/// Sleeps until the socket has something, or the time is over (then false).
pub(super) fn readable(socket: &OwnedFd, timeout: std::time::Duration) -> Result<bool, Errno> {
    use rustix::event::{PollFd, PollFlags};
    let timeout = rustix::event::Timespec::try_from(timeout).ok();
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Err(Errno::INTR) => Ok(false),
        other => other.map(|n| n > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_and_cuts_do_not() {
        let geometry = Geometry { credits: 64, max_message_bytes: 4352 };
        let asks = [Ask::Hello { ticket: [7; 32] }, Ask::Region { region: RegionId(u32::MAX) }];
        for ask in asks {
            let bytes = ask.encode();
            assert!((0..bytes.len()).all(|n| Ask::decode(&bytes[..n]).is_none()));
            assert_eq!(Ask::decode(&bytes), Some(ask));
        }
        let tells = [
            Tell::Welcome { geometry, slot: 9, bell_bytes: 4096, staging_bytes: 5 << 32 },
            Tell::Offer { region: RegionId(3), rights: Rights::ReadWrite, len_bytes: 64 << 20 },
            Tell::NoOffer { region: RegionId(3) },
        ];
        for tell in tells {
            let bytes = tell.encode();
            assert!((0..bytes.len()).all(|n| Tell::decode(&bytes[..n]).is_none()));
            assert_eq!(Tell::decode(&bytes), Some(tell));
        }
        let long = Tell::Refused("x".repeat(5000)).encode();
        assert_eq!(long.len(), MAX_BYTES);
        assert!(matches!(Tell::decode(&long), Some(Tell::Refused(_))));
    }

    #[test]
    fn absurd_geometry_is_refused() {
        for (credits, max_message_bytes) in [(0, 64), (4097, 64), (1, 0), (1, 1 << 21)] {
            let geometry = Geometry { credits, max_message_bytes };
            let tell = Tell::Welcome { geometry, slot: 0, bell_bytes: 0, staging_bytes: 0 };
            assert_eq!(Tell::decode(&tell.encode()), None);
        }
    }
}
