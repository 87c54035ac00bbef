//! A process that was given memory to write: whether it can still do so.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The process at the other end of a socket of this host. What it has mapped it can write, whatever
/// became of the socket, until it has ended; also while it is stopped.
///
/// Processes that it forked have what it had mapped, and are not known.
pub struct PeerProcess {
    pid: i32,
    pidfd: OwnedFd,
}

impl fmt::Debug for PeerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerProcess").field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl PeerProcess {
    /// Who connected this socket.
    ///
    /// # Errors
    /// It cannot be watched: it is in a container of its own, whose processes this one does not
    /// see, or the system does not allow it.
    pub(crate) fn of(socket: impl AsFd) -> std::io::Result<Self> {
        Self::watch(rustix::net::sockopt::socket_peercred(socket)?.pid)
    }

    fn watch(pid: Pid) -> std::io::Result<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { pid: pid.as_raw_nonzero().get(), pidfd })
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it has ended for certain.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready == 1)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_known_to_have_ended_when_it_has() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
        let pid = Pid::from_child(&child);
        let process = PeerProcess::watch(pid).expect("a child");
        assert!(!process.has_ended());
        child.kill().expect("it is there");
        child.wait().expect("it ends");
        assert!(process.has_ended());
        let me = PeerProcess::watch(rustix::process::getpid()).expect("this process");
        assert!(!me.has_ended());
        assert!(PeerProcess::watch(pid).is_err(), "it was waited for: nobody is left to watch");
    }
}
