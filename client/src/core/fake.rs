//! For tests: an endpoint that does with what is posted what the test says.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onesided_fabric::{
    AccessError, AttachError, Caps, Completion, CompletionQueue, Endpoint, FabricKind, Outcome,
    PostError, RegionId, RemoteAddr, Wait, WorkRequest,
};
use onesided_protocol::control::{FabricName, TableInfo, TableOptions, Welcome};
use onesided_protocol::layout::catalog::DirectoryWord;
use parking_lot::Mutex;

use super::connection::Connection;
use super::polled::tests::welcome;
use crate::options::Options;

/// What the endpoint makes of a chain; what completes goes to the queue.
pub(crate) trait Post:
    Fn(&mut VecDeque<WorkRequest>, &Due) -> Result<(), PostError> + Send + Sync
{
}

impl<P> Post for P where
    P: Fn(&mut VecDeque<WorkRequest>, &Due) -> Result<(), PostError> + Send + Sync
{
}

/// Requests that may be unanswered.
pub(crate) const CREDITS: usize = 4;

struct Fake<P> {
    post: P,
    due: Arc<Due>,
}

/// A connection over such an endpoint, without threads.
pub(crate) fn connection(options: Options, post: impl Post + 'static) -> Arc<Connection> {
    let (endpoint, due) = fake(post);
    let welcome = Welcome { credits: CREDITS as u32, ..welcome() };
    Connection::from_parts(endpoint, due, welcome, None, options)
}

/// The one after `lost`, of the same session.
pub(crate) fn again(lost: &Connection, post: impl Post + 'static) -> Arc<Connection> {
    let (endpoint, due) = fake(post);
    lost.again(endpoint, due, Welcome { resumed: true, ..welcome() })
}

/// What such a connection's server says of a table.
pub(crate) fn table_info(updates_over: Option<FabricName>) -> TableInfo {
    TableInfo {
        id: 1,
        slot: 0,
        hash_seed: 1,
        secret: 1,
        directory: DirectoryWord(0),
        options: TableOptions::default(),
        updates_over,
    }
}

fn fake(post: impl Post + 'static) -> (Arc<dyn Endpoint>, Arc<Due>) {
    let due = Arc::new(Due::default());
    (Arc::new(Fake { post, due: Arc::clone(&due) }), due)
}

impl<P> fmt::Debug for Fake<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fake")
    }
}

impl<P: Post> Endpoint for Fake<P> {
    fn caps(&self) -> Caps {
        let (kind, max_message_bytes) = (FabricKind::Sim, 64 << 10);
        Caps { kind, one_sided: true, reads_now: false, max_message_bytes, send_depth: 64 }
    }

    fn post(&self, chain: &mut VecDeque<WorkRequest>) -> Result<(), PostError> {
        (self.post)(chain, &self.due)
    }

    fn attach(&self, _: RegionId, _: &[u8]) -> Result<(), AttachError> {
        Ok(())
    }

    fn read_now(&self, _: RemoteAddr, _: &mut [u64]) -> Option<Result<(), AccessError>> {
        None
    }

    fn read_bytes_now(&self, _: RemoteAddr, _: &mut [u8]) -> Option<Result<(), AccessError>> {
        None
    }

    fn close(&self) {}

    fn is_closed(&self) -> bool {
        false
    }
}

/// What completes, and when.
#[derive(Default)]
pub(crate) struct Due(Mutex<Vec<(Instant, Completion)>>);

impl Due {
    /// `outcome` comes of request `id` after so long.
    pub(crate) fn put(&self, after: Duration, id: u64, outcome: Outcome) {
        self.0.lock().push((Instant::now() + after, Completion { context: 0, id, outcome }));
    }
}

impl CompletionQueue for Due {
    fn poll(&self, out: &mut Vec<Completion>, max: usize) -> usize {
        let (mut due, now) = (self.0.lock(), Instant::now());
        let before = out.len();
        let come = due.extract_if(.., |(at, _)| *at <= now).take(max);
        out.extend(come.map(|(_, completion)| completion));
        out.len() - before
    }

    fn wait(&self, timeout: Duration) -> Wait {
        std::thread::sleep(timeout.min(Duration::from_millis(1)));
        Wait::Ready
    }

    fn wake(&self) {}
}
