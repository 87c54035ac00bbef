//! What the peer may do by a queue pair: everything, as the connection manager makes it, until this
//! side limits it to what the peer was told of.
//!
//! Two threads set it, in any order: the one that accepts limits it as soon as the connection
//! stands, and before it comes to that the peer may have asked for a region and been answered.

use super::ffi::pd::PeerRights;

/// What one peer was allowed. Whoever has it also has the queue pair to himself.
#[derive(Debug)]
pub(super) struct Granted {
    rights: PeerRights,
    is_limited: bool,
}

impl Granted {
    /// Nothing yet, and no limit to it.
    pub(super) fn new() -> Self {
        Self { rights: PeerRights::NONE, is_limited: false }
    }

    /// Whether the peer may do no more than it was allowed.
    #[cfg(test)]
    pub(super) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// From now on the peer may do no more than `least` and what it was allowed before: `set` tells
    /// the device. If that fails there is no limit.
    pub(super) fn limit<E>(
        &mut self,
        least: PeerRights,
        set: impl FnOnce(PeerRights) -> Result<(), E>,
    ) -> Result<(), E> {
        self.rights = self.rights.and(least);
        set(self.rights)?;
        self.is_limited = true;
        Ok(())
    }

    /// The peer may do `more`: `set` tells the device, where there is a limit that forbids it.
    pub(super) fn allow<E>(
        &mut self,
        more: PeerRights,
        set: impl FnOnce(PeerRights) -> Result<(), E>,
    ) -> Result<(), E> {
        let rights = self.rights.and(more);
        if self.is_limited && rights != self.rights {
            set(rights)?;
        }
        self.rights = rights;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::ffi::pd::Access;

    const READ: PeerRights = Access::RemoteRead.of_peer();
    const ALL: PeerRights = Access::RemoteAll.of_peer();

    /// What the device has at last; `None` if it was never told.
    fn after(steps: &[fn(&mut Granted, &mut Option<PeerRights>)]) -> Option<PeerRights> {
        let (mut granted, mut device) = (Granted::new(), None);
        steps.iter().for_each(|step| step(&mut granted, &mut device));
        device
    }

    fn tell(device: &mut Option<PeerRights>) -> impl FnOnce(PeerRights) -> Result<(), ()> {
        |rights| {
            *device = Some(rights);
            Ok(())
        }
    }

    fn limit(granted: &mut Granted, device: &mut Option<PeerRights>) {
        granted.limit(READ, tell(device)).expect("told");
    }

    fn allow_all(granted: &mut Granted, device: &mut Option<PeerRights>) {
        granted.allow(ALL, tell(device)).expect("told");
    }

    fn no_limit(granted: &mut Granted, _: &mut Option<PeerRights>) {
        granted.limit(READ, |_| Err(())).expect_err("refused");
    }

    /// A peer that was quicker than the thread that accepts keeps what it was told of.
    #[test]
    fn what_was_allowed_before_the_limit_stays_allowed() {
        assert_eq!(after(&[allow_all]), None, "it has everything");
        assert_eq!(after(&[allow_all, limit]), Some(ALL));
        assert_eq!(after(&[limit, allow_all]), Some(ALL));
        assert_eq!(after(&[limit]), Some(READ));
    }

    #[test]
    fn without_a_limit_the_device_is_told_nothing() {
        assert_eq!(after(&[no_limit, allow_all]), None);
    }

    #[test]
    fn what_the_device_refuses_is_tried_again() {
        let mut granted = Granted::new();
        granted.limit(READ, |_| Ok::<(), ()>(())).expect("told");
        granted.allow(ALL, |_| Err(())).expect_err("refused");
        let mut device = None;
        allow_all(&mut granted, &mut device);
        assert_eq!(device, Some(ALL));
    }
}
