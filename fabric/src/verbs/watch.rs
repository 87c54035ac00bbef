//! The one thread of a process that listens to devices, and to the connection manager about
//! connections that this process has asked for.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::ffi::cm::{Channel, Event, Happened};
use super::ffi::device::Device;
use super::ffi::error::VerbsError;
use super::ffi::events::{Affair, DeviceEvent};
use super::ffi::farewell;

/// Events of one source between two looks at the others.
const EVENTS_AT_ONCE: usize = 64;
/// Pause after the system had no descriptor or memory to wait with.
const PAUSE: Duration = Duration::from_millis(100);

/// Who wants to know what happens to a device.
pub(super) trait Concerned: Send + Sync {
    /// It happened. Must not block.
    fn device_event(&self, event: &DeviceEvent);
}

/// Who wants to know what happens to one connection, after it was established.
pub(super) trait Connection: Send + Sync {
    /// It happened. Must not block.
    fn cm_event(&self, event: &Event);
}

/// The process's watcher.
pub(super) struct Watcher {
    pub(super) channel: Arc<Channel>,
    /// By the id's token.
    mailboxes: Mutex<HashMap<u64, Arc<Mailbox>>>,
    devices: Mutex<Vec<Watched>>,
    /// Ends the thread's sleep: there is a new device to look at.
    wake: OwnedFd,
}

struct Watched {
    device: Weak<Device>,
    concerned: Vec<Weak<dyn Concerned>>,
}

/// The process's watcher, started at the first call.
///
/// # Errors
/// When the libraries, the connection manager, or a thread are missing. Asked again it tries
/// again.
pub(super) fn watcher() -> Result<&'static Arc<Watcher>, VerbsError> {
    static WATCHER: OnceLock<Arc<Watcher>> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = STARTING.lock();
    if let Some(watcher) = WATCHER.get() {
        return Ok(watcher);
    }
    let watcher = Watcher::start()?;
    Ok(WATCHER.get_or_init(|| watcher))
}

/// What happens to one id, for who waits for it.
#[derive(Default)]
pub(super) struct Mailbox {
    state: Mutex<Mail>,
    arrived: Condvar,
}

#[derive(Default)]
struct Mail {
    waiting: VecDeque<Event>,
    then: Option<Weak<dyn Connection>>,
}

impl Mailbox {
    /// The next event, or `None` after `until`.
    pub(super) fn next(&self, until: Instant) -> Option<Event> {
        let mut mail = self.state.lock();
        loop {
            if let Some(event) = mail.waiting.pop_front() {
                return Some(event);
            }
            if self.arrived.wait_until(&mut mail, until).timed_out() {
                return mail.waiting.pop_front();
            }
        }
    }

    /// From now on `connection` hears of all events, those that wait included.
    pub(super) fn pass_on(&self, connection: Weak<dyn Connection>) {
        let mut mail = self.state.lock();
        if let Some(connection) = connection.upgrade() {
            mail.waiting.drain(..).for_each(|event| connection.cm_event(&event));
        }
        mail.then = Some(connection);
    }

    fn put(&self, event: Event) {
        let mut mail = self.state.lock();
        match mail.then.clone() {
            None => {
                mail.waiting.push_back(event);
                self.arrived.notify_all();
            }
            Some(connection) => {
                drop(mail);
                if let Some(connection) = connection.upgrade() {
                    connection.cm_event(&event);
                }
            }
        }
    }
}

/// Keeps a [`Mailbox`] known to the watcher.
pub(super) struct Registered {
    watcher: Arc<Watcher>,
    token: u64,
    mailbox: Arc<Mailbox>,
}

impl std::ops::Deref for Registered {
    type Target = Mailbox;
    fn deref(&self) -> &Mailbox {
        &self.mailbox
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.watcher.mailboxes.lock().remove(&self.token);
    }
}

impl Watcher {
    fn start() -> Result<Arc<Self>, VerbsError> {
        let system = |source: std::io::Error| VerbsError::Call {
            verb: "starting the watcher of verbs",
            source,
            hint: "check limits on descriptors and threads".to_owned(),
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let watcher = Arc::new(Self {
            channel: Channel::new()?,
            mailboxes: Mutex::default(),
            devices: Mutex::default(),
            wake: wake.map_err(|errno| system(errno.into()))?,
        });
        let watched = Arc::clone(&watcher);
        std::thread::Builder::new()
            .name("verbs-watcher".to_owned())
            .spawn(move || watched.run())
            .map_err(system)?;
        Ok(watcher)
    }

    /// A mailbox for the events of the id with this token.
    pub(super) fn register(self: &Arc<Self>, token: u64) -> Registered {
        let mailbox = Arc::<Mailbox>::default();
        self.mailboxes.lock().insert(token, Arc::clone(&mailbox));
        Registered { watcher: Arc::clone(self), token, mailbox }
    }

    /// From now on `concerned` hears of what happens to the device.
    ///
    /// # Errors
    /// When the device's events cannot be watched.
    pub(super) fn watch(
        &self,
        device: &Arc<Device>,
        concerned: Weak<dyn Concerned>,
    ) -> Result<(), VerbsError> {
        let mut devices = self.devices.lock();
        let same =
            |watched: &&mut Watched| std::ptr::eq(watched.device.as_ptr(), &raw const **device);
        match devices.iter_mut().find(same) {
            Some(watched) => {
                watched.concerned.retain(|other| other.strong_count() > 0);
                watched.concerned.push(concerned);
            }
            None => {
                device.watch_events()?;
                let device = Arc::downgrade(device);
                devices.push(Watched { device, concerned: vec![concerned] });
            }
        }
        drop(devices);
        // Fails only when the counter is full, and then the thread is awake.
        let _full = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        Ok(())
    }

    fn run(&self) {
        let mut broken = false;
        loop {
            let devices = self.living_devices();
            let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
            fds.extend(
                devices
                    .iter()
                    .map(|device| PollFd::from_borrowed_fd(device.events_fd(), PollFlags::IN)),
            );
            if !broken {
                fds.push(PollFd::from_borrowed_fd(self.channel.fd(), PollFlags::IN));
            }
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the watcher of verbs cannot wait for a while");
                    std::thread::sleep(PAUSE);
                }
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if ready[0] {
                let _empty = rustix::io::read(&self.wake, &mut [0; 8]);
            }
            for (device, _) in devices.iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
                self.look_at(device);
            }
            if !broken && let Err(error) = self.deliver() {
                tracing::error!(%error, "no news of RDMA connections any more");
                broken = true;
            }
        }
    }

    /// The device whose own id has this token goes away.
    fn removed(&self, token: u64) {
        let devices = self.living_devices();
        if let Some(device) = devices.iter().find(|device| device.anchor_token() == Some(token)) {
            let name = "it was removed".to_owned();
            self.tell(device, &DeviceEvent { what: Affair::DeviceFatal, name });
        }
    }

    fn living_devices(&self) -> Vec<Arc<Device>> {
        let mut devices = self.devices.lock();
        devices.retain(|watched| watched.device.strong_count() > 0);
        devices.iter().filter_map(|watched| watched.device.upgrade()).collect()
    }

    fn deliver(&self) -> Result<(), VerbsError> {
        for _ in 0..EVENTS_AT_ONCE {
            let Some(event) = self.channel.next()? else { return Ok(()) };
            let mailbox = self.mailboxes.lock().get(&event.token).cloned();
            match mailbox {
                Some(mailbox) => mailbox.put(event),
                None if matches!(event.happened, Happened::DeviceRemoved) => {
                    self.removed(event.token);
                }
                None => tracing::debug!(?event, "of a connection that nobody waits for"),
            }
        }
        Ok(())
    }

    fn look_at(&self, device: &Arc<Device>) {
        for _ in 0..EVENTS_AT_ONCE {
            match device.next_event() {
                Ok(None) => return,
                Ok(Some(event)) => self.tell(device, &event),
                Err(error) => {
                    let name = format!("the device no longer answers: {error}");
                    self.tell(device, &DeviceEvent { what: Affair::DeviceFatal, name });
                    self.forget(device);
                    return;
                }
            }
        }
    }

    fn forget(&self, device: &Arc<Device>) {
        let gone = Arc::as_ptr(device);
        self.devices.lock().retain(|watched| !std::ptr::eq(watched.device.as_ptr(), gone));
    }

    fn tell(&self, device: &Arc<Device>, event: &DeviceEvent) {
        log(device.name(), event);
        if matches!(event.what, Affair::PortUp(_) | Affair::PortChanged(_)) {
            farewell::release_all();
        }
        let concerned: Vec<Arc<dyn Concerned>> = {
            let devices = self.devices.lock();
            let of_it =
                devices.iter().filter(|w| std::ptr::eq(w.device.as_ptr(), Arc::as_ptr(device)));
            of_it.flat_map(|w| w.concerned.iter().filter_map(Weak::upgrade)).collect()
        };
        concerned.iter().for_each(|concerned| concerned.device_event(event));
    }
}

fn log(device: &str, event: &DeviceEvent) {
    let name = &event.name;
    match event.what {
        Affair::PortDown(port) => tracing::warn!(
            device,
            port,
            "a port of the RDMA device went down ({name}): its connections end when their retries \
             do, and come back when it does"
        ),
        Affair::PortUp(port) => {
            tracing::info!(device, port, "a port of the RDMA device is up ({name})");
        }
        Affair::PortChanged(port) => {
            tracing::info!(device, port, "addresses of an RDMA port have changed ({name})");
        }
        Affair::DeviceFatal => {
            tracing::error!(device, "the RDMA device is lost ({name}): see the kernel's log");
        }
        Affair::CqFatal | Affair::SrqFatal(_) => {
            tracing::error!(device, "a queue of the RDMA device is broken ({name})");
        }
        Affair::QpFatal(qp_num) => {
            tracing::warn!(device, qp_num, "a queue pair is in error ({name})");
        }
        Affair::QpAccess(qp_num) => tracing::warn!(
            device,
            qp_num,
            "a peer has reached for memory that is not its own ({name}): its connection ends"
        ),
        Affair::SrqLow(_) => {
            tracing::debug!(device, "few receive buffers are left ({name})");
        }
        Affair::QpEstablished(_) | Affair::Harmless => tracing::debug!(device, "{name}"),
    }
}
