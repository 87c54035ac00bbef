//! What a client knows of a table over one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use onesided_protocol::control::{Retired, TableInfo, TableOptions};
use onesided_protocol::rules::{Rule, holds};

use crate::core::Connection;
use crate::read;
use crate::stats::Counts;
use crate::update::{self, Extents, Updates};

/// A table as one connection knows it.
pub(crate) struct OpenTable {
    pub(crate) connection: Arc<Connection>,
    pub(crate) info: TableInfo,
    pub(crate) view: read::TableView,
    pub(crate) counts: Arc<Counts>,
    /// For a table whose entries this client replaces itself.
    pub(crate) updates: Option<Updates>,
    stale: AtomicBool,
    /// Places of counters that were asked for before this epoch count no more.
    cells_epoch: AtomicU64,
    /// In seconds, as far as is known; 0: none.
    default_ttl_s: AtomicU32,
    /// What answers to GETs by RPC have been long of late, in bytes.
    value_bytes: AtomicUsize,
}

impl OpenTable {
    pub(crate) fn new(
        connection: Arc<Connection>,
        info: TableInfo,
        counts: &Arc<Counts>,
        before: Option<&Self>,
    ) -> Self {
        let view = read::TableView::new(&connection, &info);
        let counts = Arc::clone(counts);
        let (stale, value_bytes) = (AtomicBool::new(false), AtomicUsize::new(0));
        let cells_epoch = AtomicU64::new(0);
        let default_ttl_s = AtomicU32::new(info.options.default_ttl_s);
        let extents = before.and_then(|before| before.leases(&info));
        let updates = Updates::of(&connection, &info, extents);
        Self {
            connection,
            info,
            view,
            counts,
            updates,
            stale,
            cells_epoch,
            default_ttl_s,
            value_bytes,
        }
    }

    /// What the next connection goes on with, if it is the same table there.
    fn leases(&self, info: &TableInfo) -> Option<Arc<Extents>> {
        let updates = self.updates.as_ref().filter(|_| self.info.id == info.id)?;
        Some(Arc::clone(&updates.extents))
    }

    /// Whether operations may use it.
    #[inline(always)]
    pub(crate) fn is_usable(&self) -> bool {
        self.connection.is_alive() && !self.stale.load(Ordering::Relaxed)
    }

    /// Whether this session may change words of the table's counters one-sidedly, over the fabric
    /// that it uses.
    #[inline]
    pub(crate) fn updates_one_sidedly(&self) -> bool {
        update::may_update(&self.connection, &self.info)
    }

    /// How long values live where nothing else is said, in seconds; 0: for ever.
    pub(crate) fn default_ttl_s(&self) -> u32 {
        self.default_ttl_s.load(Ordering::Relaxed)
    }

    /// The options of a table are these now.
    pub(crate) fn learn(&self, table: u32, options: &TableOptions) {
        if table == self.info.id {
            self.default_ttl_s.store(options.default_ttl_s, Ordering::Relaxed);
        }
    }

    /// One GET of so many is told to the server; 0 = none.
    pub(crate) fn sample_every(&self) -> u32 {
        match self.info.options.evict {
            true => self.connection.options().access_sample_every,
            false => 0,
        }
    }

    /// How long a value is, by those that came last.
    pub(crate) fn foreseen_value_bytes(&self) -> usize {
        self.value_bytes.load(Ordering::Relaxed)
    }

    /// A value was so long; shorter ones are believed slowly.
    pub(crate) fn foresee_value_bytes(&self, len_bytes: usize) {
        let before = self.foreseen_value_bytes();
        self.value_bytes.store(len_bytes.max(before - before.div_ceil(8)), Ordering::Relaxed);
    }

    /// The server does not know it any more: the name must be looked up again.
    pub(crate) fn mark_stale(&self) {
        self.stale.store(true, Ordering::Relaxed);
    }

    /// Which places of counters count: those that were asked for when it was this already.
    #[inline]
    pub(crate) fn cells_epoch(&self) -> u64 {
        self.cells_epoch.load(Ordering::Relaxed)
    }

    /// No operation that begins from now on looks at what was retired in this epoch. Whether one
    /// did until now.
    pub(crate) fn forget(&self, retired: Retired, epoch: u64) -> bool {
        match retired {
            Retired::Table(id) if id == self.info.id => !self.stale.swap(true, Ordering::Relaxed),
            Retired::Table(_) => false,
            Retired::Region(id) => self.view.forget_region(id),
            Retired::Cells(id) => {
                id == self.info.id
                    && holds(Rule::RetiredIsForgotten)
                    && self.cells_epoch.fetch_max(epoch, Ordering::Relaxed) < epoch
            }
        }
    }
}
