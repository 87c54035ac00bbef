//! Ctrl-C and SIGTERM: what was measured until then is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

/// What a shell adds to the number of the signal that ended a program.
const SHELL_BASE: u8 = 128;

/// The signal that came last, if one did.
#[derive(Clone, Default)]
pub(super) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// From here on signals are noted, and end nothing by themselves: a server that was started
    /// for the run is ended with it.
    pub(super) fn listen() -> Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_usize(signal, Arc::clone(&interrupt.0), signal as usize)
                .with_context(|| format!("listening to signal {signal}"))?;
        }
        Ok(interrupt)
    }

    /// Whether one came.
    pub(super) fn came(&self) -> bool {
        self.exit_code().is_some()
    }

    /// What to end with, if one came.
    pub(super) fn exit_code(&self) -> Option<u8> {
        let signal = u8::try_from(self.0.load(Ordering::Relaxed)).ok()?;
        (signal > 0).then(|| SHELL_BASE.saturating_add(signal))
    }
}
