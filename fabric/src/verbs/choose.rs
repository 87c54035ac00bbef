//! Which device, port and addresses to use: pure functions of what the host has.
//!
//! An address decides everything here: the connection manager finds device, port and GID by it,
//! over InfiniBand (an IPoIB interface's), RoCE and iWARP alike. Names of interfaces decide
//! nothing.

mod text;

use std::cmp::Reverse;
use std::fmt::Write;
use std::net::IpAddr;

use super::ffi::device::{Gid, GidKind};
use super::ffi::error::VerbsError;

/// What was asked for; what is `None` is chosen. As text: `auto`, an address of this host, or
/// `NAME[:PORT[:GID_INDEX]]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Name of the device, such as `mlx5_0`.
    pub device: Option<String>,
    /// Port of the device, from 1.
    pub port: Option<u8>,
    /// Number in the port's GID table.
    pub gid_index: Option<u32>,
    /// This host's address to use.
    pub address: Option<IpAddr>,
}

impl Options {
    fn is_automatic(&self) -> bool {
        *self == Self::default()
    }
}

/// How packets of a port travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// Ethernet: iWARP, over TCP.
    Iwarp,
}

/// A port, as far as choosing goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortView {
    /// From 1.
    pub number: u8,
    /// Whether packets can go through it now.
    pub active: bool,
    /// The state's name.
    pub state: &'static str,
    /// How its packets travel.
    pub link: Link,
    /// Largest packet, as it is set up.
    pub mtu_bytes: u32,
    /// Largest packet that the port can do.
    pub max_mtu_bytes: u32,
    /// Speed, in units of no meaning but their order.
    pub rate: u32,
    /// Its GID table.
    pub gids: Vec<Gid>,
    /// This host's addresses that the connection manager binds to it.
    pub addresses: Vec<IpAddr>,
}

/// A device, as far as choosing goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceView {
    /// Its name.
    pub name: String,
    /// Its ports; empty if it cannot be opened.
    pub ports: Vec<PortView>,
    /// Why it cannot be used, if so.
    pub problem: Option<String>,
}

/// What was chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Name of the device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// This host's addresses there, best first, at least one.
    pub addresses: Vec<IpAddr>,
}

/// All ports that will do, best first.
///
/// # Errors
/// When none will: what was asked for, and why each port was passed over.
pub fn choose(devices: &[DeviceView], options: &Options) -> Result<Vec<Choice>, VerbsError> {
    let mut found = vec![];
    let mut passed = String::new();
    for device in devices {
        if options.device.as_ref().is_some_and(|wanted| *wanted != device.name) {
            continue;
        }
        if let Some(problem) = &device.problem {
            let _infallible = write!(passed, "\n  {}: {problem}", device.name);
        }
        for port in &device.ports {
            match look_at(port, options) {
                Ok(addresses) => found.push((rank(port, &addresses), device, port, addresses)),
                Err(why) => {
                    let _infallible =
                        write!(passed, "\n  {} port {}: {why}", device.name, port.number);
                }
            }
        }
    }
    if found.is_empty() {
        return Err(nothing(devices, options, &passed));
    }
    found.sort_by_key(|(rank, ..)| Reverse(*rank));
    let choice = |(_, device, port, addresses): (_, &DeviceView, &PortView, _)| Choice {
        device: device.name.clone(),
        port: port.number,
        addresses,
    };
    Ok(found.into_iter().map(choice).collect())
}

/// The addresses of a port that will do, best first, or why there is none.
fn look_at(port: &PortView, options: &Options) -> Result<Vec<IpAddr>, String> {
    if options.port.is_some_and(|wanted| wanted != port.number) {
        return Err("not the port that was asked for".to_owned());
    }
    if !port.active {
        return Err(format!(
            "its state is {}, not ACTIVE: is the cable in, the link up?",
            port.state
        ));
    }
    let mut addresses = port.addresses.clone();
    if let Some(index) = options.gid_index {
        let wanted = gid_address(port, index)?;
        addresses.retain(|address| *address == wanted);
        if addresses.is_empty() {
            return Err(format!("GID {index} is {wanted}, which is no address of this host"));
        }
    }
    if let Some(wanted) = options.address {
        addresses.retain(|address| *address == wanted);
        if addresses.is_empty() {
            return Err(format!("it does not have the address {wanted}"));
        }
    }
    if addresses.is_empty() {
        return Err(no_address(port));
    }
    addresses.sort_by_key(|address| Reverse(grade(port, *address)));
    addresses.dedup();
    Ok(addresses)
}

fn no_address(port: &PortView) -> String {
    match (port.link, port.gids.is_empty()) {
        (Link::InfiniBand, _) => "no IP address: the connection manager finds InfiniBand hosts by \
            the addresses of IPoIB interfaces (`ip link`: ib0; load ib_ipoib, give it an address)"
            .to_owned(),
        (_, true) => "its GID table is empty: in a network namespace or container only interfaces \
            that are in it count (`rdma system`, `ip link set DEV netns`)"
            .to_owned(),
        (_, false) => "no address of this host leads to it: give its interface an address \
            (`ip address add`)"
            .to_owned(),
    }
}

/// The address of an entry of the GID table.
fn gid_address(port: &PortView, index: u32) -> Result<IpAddr, String> {
    let gid = port.gids.iter().find(|gid| gid.index == index);
    let gid = gid.ok_or_else(|| format!("it has no GID {index}"))?;
    match (port.link, gid.kind) {
        (Link::InfiniBand, _) => {
            Err("over InfiniBand an address chooses the path, by LID: do not \
            give a GID index"
                .to_owned())
        }
        (_, GidKind::RoceV1) => Err(format!(
            "GID {index} is of RoCE v1: choose one of v2, or let the kernel use v1 (configfs \
             rdma_cm/*/ports/*/default_roce_mode)"
        )),
        _ => Ok(gid.ip().to_canonical()),
    }
}

/// How good an address is: more is better.
fn grade(port: &PortView, address: IpAddr) -> u8 {
    let of_it = port.gids.iter().filter(|gid| gid.ip().to_canonical() == address);
    let has_v2 = port.link != Link::Ethernet || of_it.clone().any(|g| g.kind == GidKind::RoceV2);
    u8::from(has_v2) * 4 + u8::from(!is_link_local(address)) * 2 + u8::from(address.is_ipv4())
}

/// Whether an address means something on its own link only.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// How good a port is: more is better; the first of equals stays first.
fn rank(port: &PortView, addresses: &[IpAddr]) -> (u8, u32) {
    // IPv4 or not says nothing about the port.
    let best = addresses.first().map_or(0, |address| grade(port, *address) >> 1);
    (best, port.rate)
}

fn nothing(devices: &[DeviceView], options: &Options, passed: &str) -> VerbsError {
    if let Some(wanted) = &options.device
        && !devices.iter().any(|device| device.name == *wanted)
    {
        let there: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        return VerbsError::NoSuchDevice { wanted: wanted.clone(), there };
    }
    let asked = if options.is_automatic() { "" } else { " as was asked for" };
    let table = gid_table(devices);
    VerbsError::Choice(format!("no port of an RDMA device can be used{asked}:{passed}\n{table}"))
}

/// All GIDs of a host, one a line.
#[must_use]
pub fn gid_table(devices: &[DeviceView]) -> String {
    let mut table = "GIDs of this host:".to_owned();
    let before = table.len();
    for device in devices {
        for port in &device.ports {
            for gid in &port.gids {
                let kind = match gid.kind {
                    GidKind::Ib => "IB",
                    GidKind::RoceV1 => "RoCE v1",
                    GidKind::RoceV2 => "RoCE v2",
                };
                let ip = gid.ip().to_canonical();
                let (name, number, index) = (&device.name, port.number, gid.index);
                let _infallible =
                    write!(table, "\n  {name} port {number} index {index}: {ip} {kind}");
            }
        }
    }
    if table.len() == before {
        table += " none";
    }
    table
}

#[cfg(test)]
mod tests;
