//! What this host has: devices, ports, GIDs, and the addresses that lead to them.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use super::choose::{DeviceView, Link, PortView};
use super::ffi::cm::{Channel, Id};
use super::ffi::device::Device;
use super::ffi::error::VerbsError;
use super::ffi::sys;

/// Local addresses that are looked at, at most.
const MAX_ADDRESSES: usize = 256;

/// An address of this host that the connection manager binds to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LocalAddress {
    /// With the interface, for a link-local one; its port is 0.
    pub(crate) addr: SocketAddr,
}

impl LocalAddress {
    pub(crate) fn ip(&self) -> IpAddr {
        self.addr.ip()
    }
}

/// An address, and the device and port that it leads to.
pub(crate) type Bound = (LocalAddress, Arc<Device>, u8);

/// All devices of this host, also those that cannot be opened.
///
/// # Errors
/// When the libraries or the kernel's support are missing, or there is no device.
pub(crate) fn devices(bound: &[Bound]) -> Result<Vec<DeviceView>, VerbsError> {
    let (opened, failed) = Device::open_all()?;
    let mut views: Vec<DeviceView> = opened.iter().map(|device| view(device, bound)).collect();
    for error in failed {
        let name = match &error {
            VerbsError::Open { device, .. } => device.clone(),
            _ => "?".to_owned(),
        };
        views.push(DeviceView { name, ports: vec![], problem: Some(error.to_string()) });
    }
    Ok(views)
}

/// The devices that addresses lead to, which are open already: opening costs a connection more than
/// all the rest.
pub(crate) fn devices_of(bound: &[Bound]) -> Vec<DeviceView> {
    let mut devices: Vec<&Arc<Device>> = vec![];
    for (_, device, _) in bound {
        if !devices.iter().any(|known| Arc::ptr_eq(known, device)) {
            devices.push(device);
        }
    }
    devices.into_iter().map(|device| view(device, bound)).collect()
}

/// Which of this host's addresses lead to which device: asked of the connection manager, which
/// knows IPoIB, VLANs and namespaces.
///
/// # Errors
/// When the connection manager or the list of addresses is missing.
pub(crate) fn addresses(channel: &Arc<Channel>) -> Result<Vec<Bound>, VerbsError> {
    let mut found = vec![];
    for addr in local_addresses()?.into_iter().take(MAX_ADDRESSES) {
        let id = Id::new(channel)?;
        if id.bind(addr).is_err() {
            continue;
        }
        if let Some(device) = id.device()? {
            found.push((LocalAddress { addr }, device, id.port()));
        }
    }
    Ok(found)
}

fn local_addresses() -> Result<Vec<SocketAddr>, VerbsError> {
    let interfaces = if_addrs::get_if_addrs().map_err(|source| VerbsError::Call {
        verb: "getifaddrs",
        source,
        hint: String::new(),
    })?;
    let mut addresses = vec![];
    for interface in interfaces.iter().filter(|interface| !interface.is_loopback()) {
        addresses.push(match interface.ip() {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                let scope = interface.index.unwrap_or(0);
                SocketAddr::V6(SocketAddrV6::new(v6, 0, 0, scope))
            }
            ip => SocketAddr::new(ip, 0),
        });
    }
    Ok(addresses)
}

fn view(device: &Device, bound: &[Bound]) -> DeviceView {
    let name = device.name().to_owned();
    let ports = device.attr().and_then(|attr| {
        let gids = device.gids()?;
        (1..=attr.phys_port_cnt).map(|number| port(device, number, &gids, bound)).collect()
    });
    match ports {
        Ok(ports) => DeviceView { name, ports, problem: None },
        Err(error) => DeviceView { name, ports: vec![], problem: Some(error.to_string()) },
    }
}

fn port(
    device: &Device,
    number: u8,
    gids: &[super::Gid],
    bound: &[Bound],
) -> Result<PortView, VerbsError> {
    let attr = device.port(number)?;
    let link = match attr.link_layer.into() {
        sys::IBV_LINK_LAYER_ETHERNET if device.is_iwarp() => Link::Iwarp,
        sys::IBV_LINK_LAYER_ETHERNET => Link::Ethernet,
        _ => Link::InfiniBand,
    };
    let here = |(_, of, at): &&Bound| of.name() == device.name() && *at == number;
    Ok(PortView {
        number,
        active: attr.state == sys::IBV_PORT_ACTIVE,
        state: state(attr.state),
        link,
        mtu_bytes: 128 << attr.active_mtu.min(5),
        max_mtu_bytes: 128 << attr.max_mtu.min(5),
        rate: u32::from(attr.active_width) * u32::from(attr.active_speed),
        gids: gids.iter().filter(|gid| gid.port == number).copied().collect(),
        addresses: bound.iter().filter(here).map(|(address, ..)| address.ip()).collect(),
    })
}

fn state(state: u32) -> &'static str {
    match state {
        sys::IBV_PORT_DOWN => "DOWN",
        sys::IBV_PORT_INIT => "INIT",
        sys::IBV_PORT_ARMED => "ARMED",
        sys::IBV_PORT_ACTIVE => "ACTIVE",
        sys::IBV_PORT_ACTIVE_DEFER => "ACTIVE_DEFER",
        _ => "unknown",
    }
}
