//! Targets, one after the other.

use anyhow::Result;

use super::args::TargetArgs;
use crate::target::{self, Options, Target};

/// What is to be opened.
#[derive(Clone)]
pub(super) struct Wanted {
    /// Where.
    pub(super) url: String,
    options: Options,
}

impl Wanted {
    /// Connects.
    pub(super) fn open(&self) -> Result<Box<dyn Target>> {
        target::open(&self.url, &self.options)
    }
}

/// All that was typed: onesided once for each fabric.
pub(super) fn wanted(args: &TargetArgs, options: &Options) -> Vec<Wanted> {
    let options = Options {
        rdma: args.rdma,
        rdma_device: args.rdma_device.clone(),
        table: args.table.clone(),
        registered: args.registered,
        cache_bytes: args.cache_bytes,
        prefill: args.prefill,
        server_pid: args.server_pid,
        ..options.clone()
    };
    let mut all = vec![];
    for url in &args.target {
        let is_onesided = url.starts_with("onesided:");
        let wanted =
            |fabric| Wanted { url: url.clone(), options: Options { fabric, ..options.clone() } };
        match args.fabric.as_slice() {
            fabrics @ [_, ..] if is_onesided => {
                all.extend(fabrics.iter().map(|fabric| wanted(Some(*fabric))));
            }
            _ => all.push(wanted(None)),
        }
    }
    all
}
