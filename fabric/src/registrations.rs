//! What devices know a piece of this process's memory as, found without a lock.
//!
//! A device reads and writes only memory that was registered with one of its protection domains.
//! Registering costs a system call and pins the pages, so it is done once for each big piece of
//! memory and domain, at first use, and kept beside the memory: whoever posts a work request finds
//! the key in a list of one or two elements.

use std::any::Any;
use std::fmt;
use std::sync::OnceLock;

use parking_lot::Mutex;

/// A range of this process's memory, by number: only the module that calls the device's library
/// makes a pointer of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// Address of the first byte.
    pub addr: u64,
    /// Length.
    pub len_bytes: usize,
}

/// The registrations of one piece of memory, one for each protection domain that needed one. They
/// are dropped before the memory is unmapped, and not before.
#[derive(Default)]
pub(crate) struct Registrations {
    first: Link,
    /// Held while one is made, so that none is made twice.
    making: Mutex<()>,
}

type Link = OnceLock<Box<Node>>;

struct Node {
    domain: usize,
    registration: Box<dyn Any + Send + Sync>,
    next: Link,
}

impl Registrations {
    /// The registration with `domain`, made by `make` if there is none yet. Who meets one being
    /// made waits for it; what exists is found without a lock.
    pub(crate) fn get_or_make<T: Any + Send + Sync, E>(
        &self,
        domain: usize,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&T, E> {
        if let Ok(found) = self.find(domain) {
            return Ok(found);
        }
        let _making = self.making.lock();
        let end = match self.find(domain) {
            Ok(found) => return Ok(found),
            Err(end) => end,
        };
        let registration = Box::new(make()?);
        let node = end.get_or_init(|| Box::new(Node { domain, registration, next: Link::new() }));
        let Some(made) = node.registration.downcast_ref() else {
            unreachable!("only who holds the lock sets the end of the list");
        };
        Ok(made)
    }

    /// The registration, or the end of the list that has none.
    #[inline]
    fn find<T: Any>(&self, domain: usize) -> Result<&T, &Link> {
        let mut link = &self.first;
        while let Some(node) = link.get() {
            if node.domain == domain
                && let Some(found) = node.registration.downcast_ref()
            {
                return Ok(found);
            }
            link = &node.next;
        }
        Err(link)
    }

    /// Does what must not happen to memory that a device knows, unless one does; `None` then.
    pub(crate) fn if_none<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let _making = self.making.lock();
        self.first.get().is_none().then(act)
    }
}

impl fmt::Debug for Registrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut link = &self.first;
        let domains = std::iter::from_fn(|| {
            let node = link.get()?;
            link = &node.next;
            Some(node.domain)
        });
        f.debug_list().entries(domains).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn each_domain_registers_once_and_finds_its_own() {
        let registrations = Registrations::default();
        assert_eq!(registrations.if_none(|| 5), Some(5));
        let refused: Result<&usize, &str> = registrations.get_or_make(1, || Err("no memory"));
        assert_eq!(refused, Err("no memory"));
        for round in 0..3 {
            for domain in 1..4 {
                let mut made = false;
                let found = registrations.get_or_make(domain, || {
                    made = true;
                    Ok::<_, ()>(domain * 10)
                });
                assert_eq!((found, made), (Ok(&(domain * 10)), round == 0));
            }
        }
        // Another type of the same domain is another registration.
        assert_eq!(registrations.get_or_make(1, || Ok::<_, ()>('x')), Ok(&'x'));
        assert_eq!(registrations.get_or_make(1, || Ok::<usize, _>(7)), Ok::<_, ()>(&10));
        assert_eq!(format!("{registrations:?}"), "[1, 2, 3, 1]");
        assert_eq!(registrations.if_none(|| 5), None);
    }

    #[test]
    fn threads_that_race_make_one() {
        let registrations = Registrations::default();
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for domain in 0..50 {
                        let make = || Ok::<_, ()>(made.fetch_add(1, Ordering::Relaxed));
                        let first = registrations.get_or_make(domain, make).copied();
                        assert_eq!(registrations.get_or_make(domain, make).copied(), first);
                    }
                });
            }
        });
        assert_eq!(made.into_inner(), 50);
    }
}
