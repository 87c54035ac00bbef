//! Devices and ports.

use std::fs;
use std::sync::Arc;

use super::{Finding, Status};
use crate::verbs::choose::{DeviceView, Link, PortView, is_link_local};
use crate::verbs::ffi::device::{Device, GidKind};
use crate::verbs::ffi::pd::Pd;
use crate::verbs::ffi::sys;

/// What can be said of all devices that were seen.
pub(super) fn findings(views: &[DeviceView], missing: Status) -> Vec<Finding> {
    let mut findings = vec![];
    for view in views {
        match &view.problem {
            Some(problem) => findings.push(Finding::bad(
                missing,
                &view.name,
                problem.as_str(),
                "check the rights of /dev/infiniband/uverbs*, and in a container that it was \
                 passed in",
            )),
            None => {
                let ports = view.ports.iter().map(|port| one_port(&view.name, port, missing));
                findings.extend(ports);
            }
        }
    }
    if let Ok((opened, _)) = Device::open_all() {
        for device in &opened {
            findings.extend(abilities(device));
        }
    }
    let others = unknown_to_the_library(views);
    if !others.is_empty() {
        findings.push(Finding::bad(
            missing,
            "providers",
            format!("the kernel has {}, which the library does not know", others.join(", ")),
            "install the package with its provider (ibverbs-providers; for some cards the \
             vendor's)",
        ));
    }
    findings
}

/// Devices of the kernel for which the library has no driver.
fn unknown_to_the_library(views: &[DeviceView]) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/sys/class/infiniband") else { return vec![] };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !views.iter().any(|view| view.name == *name)).collect()
}

fn one_port(device: &str, port: &PortView, missing: Status) -> Finding {
    let subject = format!("{device} port {}", port.number);
    let link = match port.link {
        Link::InfiniBand => "InfiniBand",
        Link::Ethernet => "Ethernet (RoCE)",
        Link::Iwarp => "Ethernet (iWARP)",
    };
    let gids = port.gids.iter().map(|gid| {
        let kind = match gid.kind {
            GidKind::Ib => "IB",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        };
        format!("{}: {} {kind}", gid.index, gid.ip().to_canonical())
    });
    let gids: Vec<String> = gids.take(16).collect();
    let gids = if gids.is_empty() { "none".to_owned() } else { gids.join(", ") };
    let addresses: Vec<String> = port.addresses.iter().map(ToString::to_string).collect();
    let found = format!(
        "{link}, {}, MTU {} of {} bytes; addresses: {}; GIDs: {gids}",
        port.state,
        port.mtu_bytes,
        port.max_mtu_bytes,
        if addresses.is_empty() { "none".to_owned() } else { addresses.join(", ") },
    );
    let bad = |status, advice: &str| Finding::bad(status, &subject, &found, advice);
    if !port.active {
        return bad(
            missing,
            "bring the link up: `ip link set DEV up`, cable, switch, subnet manager",
        );
    }
    if port.addresses.is_empty() && port.gids.is_empty() {
        return bad(
            missing,
            "its GID table is empty: it is of another network namespace (`rdma system`), or its \
             interface has no address",
        );
    }
    if port.addresses.is_empty() {
        return bad(missing, "give its interface an IP address (InfiniBand: of ib_ipoib)");
    }
    if port.addresses.iter().all(|address| is_link_local(*address)) {
        return bad(
            Status::Warning,
            "only hosts of the same link reach it: give it a routable address",
        );
    }
    let has_v2 = port.gids.iter().any(|gid| gid.kind == GidKind::RoceV2);
    if port.link == Link::Ethernet && !has_v2 {
        return bad(Status::Warning, "RoCE v1 is not routed: enable RoCE v2 if the card has it");
    }
    if port.mtu_bytes < 1024 {
        return bad(
            Status::Warning,
            "raise the interface's MTU (1500 gives 1024, 4200 gives 4096)",
        );
    }
    Finding::ok(subject, found)
}

fn abilities(device: &Arc<Device>) -> Vec<Finding> {
    let name = device.name();
    let attr = match device.attr() {
        Ok(attr) => attr,
        Err(error) => {
            let advice = "the device is going away, or its driver is broken: see the kernel's log";
            return vec![Finding::bad(Status::Warning, name, error.to_string(), advice)];
        }
    };
    let limits = format!(
        "{} queue pairs, {} completion queues of {}, {} regions{}, {} shared receive queues of {}, \
         {} READs at once for each",
        attr.max_qp,
        attr.max_cq,
        attr.max_cqe,
        attr.max_mr,
        // Most devices have no bound of their own.
        if attr.max_mr_size >> 50 > 0 {
            String::new()
        } else {
            format!(" of at most {} MiB", attr.max_mr_size >> 20)
        },
        attr.max_srq,
        attr.max_srq_wr,
        attr.max_qp_rd_atom,
    );
    let limits = if attr.max_srq > 0 {
        Finding::ok(format!("{name} limits"), limits)
    } else {
        let advice = "it has no shared receive queues, which onesided needs: use another device";
        Finding::warning(format!("{name} limits"), limits, advice)
    };
    vec![limits, atomics(name, attr.atomic_cap), paging(device), dmabuf(device)]
}

fn atomics(name: &str, capability: sys::ibv_atomic_cap) -> Finding {
    let subject = format!("{name} atomics");
    match capability {
        sys::IBV_ATOMIC_GLOB => Finding::ok(subject, "atomic also against the processor"),
        sys::IBV_ATOMIC_HCA => Finding::ok(
            subject,
            "atomic among the device's own: a server changes such words through the device",
        ),
        _ => Finding::warning(
            subject,
            "none",
            "tables that clients write, and counters, need them: use RPC tables on this device",
        ),
    }
}

fn paging(device: &Device) -> Finding {
    let subject = format!("{} on-demand paging", device.name());
    let has = device.attr_ex().is_some_and(|attr| attr.odp_caps.general_caps & 1 == 1);
    let found = if has { "yes; not used: memory is pinned" } else { "no; not needed" };
    Finding::ok(subject, found)
}

fn dmabuf(device: &Arc<Device>) -> Finding {
    let subject = format!("{} dma-buf", device.name());
    let can = Pd::new(device).ok().and_then(|pd| pd.can_register_dmabuf());
    let found = match can {
        Some(true) => "yes: memory of GPUs can be registered",
        Some(false) => "no: values reach a GPU through the host's memory",
        None => "no: the library is too old for it",
    };
    Finding::ok(subject, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Gid;

    fn port(addresses: &[&str], kind: GidKind) -> PortView {
        let addresses: Vec<std::net::IpAddr> =
            addresses.iter().map(|text| text.parse().expect(text)).collect();
        let gids = addresses.iter().zip(0..).map(|(address, index)| {
            let bytes = match address {
                std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                std::net::IpAddr::V6(v6) => v6.octets(),
            };
            Gid { port: 1, index, bytes, kind }
        });
        PortView {
            number: 1,
            active: true,
            state: "ACTIVE",
            link: Link::Ethernet,
            mtu_bytes: 1024,
            max_mtu_bytes: 4096,
            rate: 1,
            gids: gids.collect(),
            addresses,
        }
    }

    #[test]
    fn each_weakness_of_a_port_has_its_advice() {
        let good = port(&["10.0.0.1", "fe80::1"], GidKind::RoceV2);
        let judge = |port: &PortView| one_port("x0", port, Status::Error);
        let fine = judge(&good);
        assert_eq!((fine.status, fine.advice), (Status::Ok, None));
        assert!(fine.found.contains("0: 10.0.0.1 RoCE v2") && fine.found.contains("MTU 1024"));
        let cases = [
            (PortView { active: false, state: "DOWN", ..good.clone() }, Status::Error, "link up"),
            (port(&[], GidKind::RoceV2), Status::Error, "namespace"),
            (PortView { addresses: vec![], ..good.clone() }, Status::Error, "IP address"),
            (port(&["fe80::1"], GidKind::RoceV2), Status::Warning, "routable address"),
            (port(&["10.0.0.1"], GidKind::RoceV1), Status::Warning, "RoCE v1"),
            (PortView { mtu_bytes: 512, ..good.clone() }, Status::Warning, "MTU"),
        ];
        for (port, status, advice) in cases {
            let finding = judge(&port);
            assert_eq!(finding.status, status, "{finding:?}");
            let text = finding.advice.expect("advice");
            assert!(text.contains(advice), "{text}");
        }
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_named() {
        let problem = Some("cannot be opened: Permission denied".to_owned());
        let view = DeviceView { name: "mlx5_0".to_owned(), ports: vec![], problem };
        let found = findings(&[view], Status::Error);
        assert_eq!((found[0].subject.as_str(), found[0].status), ("mlx5_0", Status::Error));
    }

    #[test]
    fn without_atomics_some_tables_cannot_be() {
        assert_eq!(atomics("x0", sys::IBV_ATOMIC_NONE).status, Status::Warning);
        assert_eq!(atomics("x0", sys::IBV_ATOMIC_HCA).status, Status::Ok);
    }
}
