//! What a supervisor is told: systemd's protocol, datagrams to the socket that `NOTIFY_SOCKET`
//! names. Without one nothing happens.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// A supervisor that wants to be told.
#[derive(Debug)]
pub struct Supervisor {
    socket: UnixDatagram,
    /// Within this long it wants to hear that all is well.
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// The one of this process's environment, if there is one.
    ///
    /// # Errors
    /// The system's, if there is one and it cannot be reached.
    pub fn of_environment() -> io::Result<Option<Self>> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        // The watchdog may be meant for another process of the unit.
        let pid = std::env::var("WATCHDOG_PID").ok();
        let is_ours = pid.is_none_or(|pid| pid == std::process::id().to_string());
        let usec = std::env::var("WATCHDOG_USEC").ok().filter(|_| is_ours);
        let usec = usec.and_then(|usec| usec.parse().ok()).filter(|usec| *usec > 0);
        let watchdog = usec.map(Duration::from_micros);
        Self::connect(name.as_bytes(), watchdog).map(Some)
    }

    /// A path, or an abstract name after `@`.
    fn connect(name: &[u8], watchdog: Option<Duration>) -> io::Result<Self> {
        let addr = match name.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&addr)?;
        // Who does not listen does not stop the server.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, watchdog })
    }

    /// How often [`Self::is_well`] is due: twice within what the supervisor waits.
    #[must_use]
    pub fn interval(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| (watchdog / 2).max(Duration::from_millis(1)))
    }

    /// Clients can connect.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// The end has begun.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// All is well.
    pub fn is_well(&self) {
        self.tell("WATCHDOG=1");
    }

    fn tell(&self, text: &str) {
        if let Err(error) = self.socket.send(text.as_bytes()) {
            tracing::debug!(%error, "the supervisor was not told");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_by_datagrams() {
        let name = format!("onesided-supervised-{}", std::process::id());
        let addr = SocketAddr::from_abstract_name(&name).expect("a name");
        let listener = UnixDatagram::bind_addr(&addr).expect("bound");
        let at = format!("@{name}");
        let second = Duration::from_secs(1);
        let supervisor = Supervisor::connect(at.as_bytes(), Some(second)).expect("connects");
        assert_eq!(supervisor.interval(), Some(second / 2));
        supervisor.ready("up");
        supervisor.is_well();
        supervisor.stopping();
        let mut told = Vec::new();
        for _ in 0..3 {
            let mut text = [0; 100];
            let len = listener.recv(&mut text).expect("a datagram");
            told.push(String::from_utf8_lossy(&text[..len]).into_owned());
        }
        assert_eq!(told, ["READY=1\nSTATUS=up", "WATCHDOG=1", "STOPPING=1"]);
        assert!(Supervisor::connect(b"/nothing/there", None).is_err());
    }
}
