//! The thread that waits for completions on behalf of futures that cannot: it sleeps while there
//! are none, and ticks while somebody has a deadline.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::core::{Connection, TICK};
use crate::link::Link;

/// While the send queue is full somebody looks this often: room has no completion on every fabric.
const BLOCKED_WAIT: Duration = Duration::from_millis(1);

/// Starts it; it ends when the link is shut down.
pub(crate) fn start(link: Arc<Link>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("onesided-reactor".to_owned()).spawn(move || {
        link.shared().ticker.set_thread(std::thread::current());
        run(&link);
    })
}

fn run(link: &Link) {
    let mut next_tick = Instant::now() + TICK;
    while !link.is_shut_down() {
        let ticker = &link.shared().ticker;
        let is_left = link.go_on_with_what_is_left();
        // Who waits for a credit needs completions, too: those of requests that nobody waits for.
        let wanted =
            |connection: &Arc<Connection>| connection.needs_reactor() || ticker.is_needed();
        let current = link.current();
        let look_again = current.as_ref().and_then(|connection| connection.look_after_commits());
        let connection = current.filter(wanted);
        match &connection {
            Some(connection) if connection.is_alive() => {
                let blocked = connection.has_blocked();
                let wait = if blocked { BLOCKED_WAIT } else { TICK };
                connection.drive(look_again.unwrap_or(wait), || false);
                if blocked {
                    connection.wake_blocked();
                }
                if !connection.needs_reactor() {
                    connection.hand_over();
                }
            }
            _ if look_again.is_some() || ticker.is_needed() || is_left => {
                std::thread::park_timeout(look_again.unwrap_or(TICK));
            }
            _ => std::thread::park(),
        }
        let now = Instant::now();
        if now >= next_tick {
            next_tick = now + TICK;
            ticker.tick();
            if let Some(connection) = connection {
                connection.wake_expired(now);
            }
        }
    }
    link.forget_what_is_left();
    link.shared().ticker.tick();
}
