//! Targets, one after the other.

use anyhow::{Context, Result, ensure};
use onesided::UpdateMode;

use super::args::TargetArgs;
use crate::run::phase::{self, Plan};
use crate::target::{self, Embedded, Options, Target};

/// Where the server is, if nothing is said.
const DEFAULT_URL: &str = "onesided://127.0.0.1:7411";
/// What reports call a server that was started for the run.
const EMBEDDED: &str = "--embedded";

/// What is to be opened.
#[derive(Clone)]
pub(super) struct Wanted {
    /// Where; [`EMBEDDED`] if it is to be started.
    pub(super) url: String,
    options: Options,
}

/// A target, and its server if that is the run's own. The target goes first when it is dropped.
pub(super) struct Opened {
    /// Connected.
    pub(super) target: Box<dyn Target>,
    _server: Option<Embedded>,
}

impl Wanted {
    /// The URL, and the fabric that was asked for.
    pub(super) fn name(&self) -> String {
        match self.options.fabric {
            Some(fabric) => format!("{} ({fabric:?})", self.url).to_lowercase(),
            None => self.url.clone(),
        }
    }

    /// Connects, asks what it is, and lets go. A server that is to be started is not: nothing
    /// comes before it.
    pub(super) fn probe(&self, plan: &Plan) -> Result<()> {
        if self.url == EMBEDDED {
            return Ok(());
        }
        let target = target::open(&self.url, &self.options)?;
        phase::check(&*target, plan)?;
        target.describe().with_context(|| self.url.clone())?;
        Ok(())
    }

    /// Refuses a key that it does not take.
    pub(super) fn check_key(&self, key: &[u8]) -> Result<()> {
        target::check_key(&self.url, key)
    }

    /// Whether it answers with what was written to it.
    pub(super) fn keeps_values(&self) -> bool {
        !self.url.starts_with("null:")
    }

    /// Connects, to a server that is started if need be.
    pub(super) fn open(&self) -> Result<Opened> {
        let server = match self.url.as_str() {
            EMBEDDED => Some(Embedded::start(&self.options)?),
            _ => None,
        };
        let url = server.as_ref().map_or(self.url.as_str(), Embedded::url);
        Ok(Opened { target: target::open(url, &self.options)?, _server: server })
    }
}

/// All that was typed: onesided once for each fabric.
///
/// # Errors
/// When `--server-pid` is of use to none of them.
pub(super) fn wanted(args: &TargetArgs, options: &Options) -> Result<Vec<Wanted>> {
    if let Some(pid) = args.server_pid {
        server_pid(pid, &args.target)?;
    }
    // A server's own table `default` has no order, so that scans need another one.
    let usual_table = match args.update {
        _ if options.ordered => "ordered",
        UpdateMode::Cas => "cas",
        UpdateMode::Rpc => "default",
    };
    let options = Options {
        rdma: args.rdma,
        rdma_device: args.rdma_device.clone(),
        table: args.table.clone().unwrap_or_else(|| usual_table.to_owned()),
        registered: args.registered,
        cache_bytes: args.cache_bytes,
        prefill: args.prefill,
        server_pid: args.server_pid,
        update: args.update,
        ..options.clone()
    };
    let mut urls: Vec<&str> = args.target.iter().map(String::as_str).collect();
    match (args.embedded, urls.is_empty()) {
        (true, _) => urls.insert(0, EMBEDDED),
        (false, true) => urls.push(DEFAULT_URL),
        (false, false) => {}
    }
    let fabrics: Vec<_> = args.fabric.iter().copied().map(Some).collect();
    let mut all = vec![];
    for url in urls {
        let is_onesided = url == EMBEDDED || url.starts_with("onesided:");
        let fabrics = if is_onesided && !fabrics.is_empty() { &fabrics[..] } else { &[None] };
        all.extend(fabrics.iter().map(|&fabric| Wanted {
            url: url.to_owned(),
            options: Options { fabric, ..options.clone() },
        }));
    }
    Ok(all)
}

/// Only memcached's usage is looked up by process; a wrong one would silently tell nothing.
fn server_pid(pid: u32, urls: &[String]) -> Result<()> {
    let is_memcached = |url: &String| url.starts_with("memcached");
    ensure!(
        urls.iter().any(is_memcached),
        "--server-pid {pid}: only memcached needs it, and no target is; leave it out"
    );
    let path = format!("/proc/{pid}/comm");
    let name = std::fs::read_to_string(path)
        .with_context(|| format!("--server-pid {pid}: no such process on this host"))?;
    let name = name.trim_end();
    ensure!(name == "memcached", "--server-pid {pid} is `{name}`, not memcached");
    Ok(())
}
