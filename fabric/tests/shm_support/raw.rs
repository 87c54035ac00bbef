//! A peer that speaks the set-up protocol by hand, so that it can break it, and that keeps the
//! descriptors it gets.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use onesided_fabric::{Memory, Rights};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use super::ticket;

/// Version byte and boot id of a descriptor; the socket's name follows.
const NAME_AT: usize = 37;

pub(crate) struct Raw(pub(crate) OwnedFd);

impl Raw {
    pub(crate) fn connect(blob: &[u8]) -> rustix::io::Result<Self> {
        let address = SocketAddrUnix::new_abstract_name(&blob[NAME_AT..])?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &address)?;
        Ok(Self(socket))
    }

    pub(crate) fn say(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)
    }

    /// Blocks for the next message; empty when the server closed.
    pub(crate) fn hear(&self) -> rustix::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let mut bytes = [0; 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut iov = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let n = rustix::net::recvmsg(&self.0, &mut iov, &mut control, flags)?.bytes;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        Ok((bytes[..n].to_vec(), fds))
    }

    /// A proper session: its memories in the order session, bell, flag, staging.
    pub(crate) fn session(blob: &[u8], context: u64) -> (Self, Vec<OwnedFd>) {
        let raw = Self::connect(blob).expect("a listener");
        raw.say(&hello(&ticket(context))).expect("sent");
        let (bytes, fds) = raw.hear().expect("an answer");
        assert_eq!(bytes.first(), Some(&3), "welcome");
        (raw, fds)
    }

    pub(crate) fn region(&self, id: u32) -> OwnedFd {
        let mut ask = vec![2];
        ask.extend_from_slice(&id.to_le_bytes());
        self.say(&ask).expect("sent");
        let (bytes, mut fds) = self.hear().expect("an answer");
        assert_eq!(bytes.first(), Some(&5), "offered");
        fds.pop().expect("a descriptor")
    }
}

pub(crate) fn hello(ticket: &[u8; 32]) -> Vec<u8> {
    [&[1][..], b"1shm", &1u32.to_le_bytes(), ticket].concat()
}

/// Maps all of a memfd.
pub(crate) fn map(fd: &OwnedFd, rights: Rights) -> std::io::Result<Memory> {
    let len = rustix::fs::fstat(fd)?.st_size;
    Memory::foreign(fd.try_clone()?, usize::try_from(len).expect("a length"), rights)
}
