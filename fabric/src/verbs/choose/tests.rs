//! Made-up hosts.

use std::net::Ipv6Addr;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect(text)
}

fn gid(index: u32, text: &str, kind: GidKind) -> Gid {
    let bytes = match ip(text) {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    Gid { port: 1, index, bytes, kind }
}

/// An Ethernet port with v1 and v2 GIDs of each address, as cards have them.
fn roce(addresses: &[&str]) -> PortView {
    let kinds = [GidKind::RoceV1, GidKind::RoceV2];
    let pairs = addresses.iter().flat_map(|text| kinds.map(|kind| (*text, kind)));
    let gids = pairs.enumerate().map(|(i, (text, kind))| gid(i as u32, text, kind)).collect();
    PortView {
        number: 1,
        active: true,
        state: "ACTIVE",
        link: Link::Ethernet,
        mtu_bytes: 1024,
        max_mtu_bytes: 4096,
        rate: 100,
        gids,
        addresses: addresses.iter().map(|text| ip(text)).collect(),
    }
}

fn infiniband(addresses: &[&str]) -> PortView {
    let gids = vec![gid(0, "fe80::5054:ff:fe77:1", GidKind::Ib)];
    let addresses = addresses.iter().map(|text| ip(text)).collect();
    PortView { link: Link::InfiniBand, gids, addresses, ..roce(&[]) }
}

fn device(name: &str, ports: Vec<PortView>) -> DeviceView {
    DeviceView { name: name.to_owned(), ports, problem: None }
}

fn first(devices: &[DeviceView], options: &Options) -> Choice {
    choose(devices, options).expect("a choice").remove(0)
}

fn refusal(devices: &[DeviceView], options: &Options) -> String {
    choose(devices, options).expect_err("no choice").to_string()
}

#[test]
fn routable_addresses_come_before_link_local_ones() {
    let host = [device("rxe0", vec![roce(&["fe80::1", "fd77::1", "169.254.3.4", "10.77.0.1"])])];
    let choice = first(&host, &Options::default());
    assert_eq!((choice.device.as_str(), choice.port), ("rxe0", 1));
    let best_first = ["10.77.0.1", "fd77::1", "169.254.3.4", "fe80::1"].map(ip);
    assert_eq!(choice.addresses, best_first);
}

#[test]
fn a_host_with_ipv6_only_will_do() {
    let host = [device("mlx5_0", vec![roce(&["fe80::1", "2001:db8::1"])])];
    assert_eq!(first(&host, &Options::default()).addresses[0], ip("2001:db8::1"));
    let host = [device("mlx5_0", vec![roce(&["fe80::1"])])];
    assert_eq!(first(&host, &Options::default()).addresses, [ip("fe80::1")]);
}

#[test]
fn version_2_comes_before_version_1() {
    let mut port = roce(&["10.0.0.1", "10.0.0.2"]);
    port.gids
        .retain(|gid| gid.kind == GidKind::RoceV1 || gid.ip().to_canonical() == ip("10.0.0.2"));
    let host = [device("mlx4_0", vec![port])];
    assert_eq!(first(&host, &Options::default()).addresses, [ip("10.0.0.2"), ip("10.0.0.1")]);
}

#[test]
fn a_port_with_a_routable_address_wins_then_the_faster_one() {
    let slow = device("slow", vec![PortView { rate: 10, ..roce(&["10.0.0.1"]) }]);
    let fast = device("fast", vec![roce(&["10.0.1.1"])]);
    let fastest = device("local", vec![PortView { rate: 400, ..roce(&["fe80::1"]) }]);
    let all = choose(&[fastest, slow, fast], &Options::default()).expect("choices");
    let names: Vec<&str> = all.iter().map(|choice| choice.device.as_str()).collect();
    assert_eq!(names, ["fast", "slow", "local"], "all of them, for peers that reach only one");
}

#[test]
fn the_family_does_not_decide_between_ports() {
    let v6 = device("v6", vec![PortView { rate: 200, ..roce(&["2001:db8::1"]) }]);
    let v4 = device("v4", vec![roce(&["10.0.0.1"])]);
    assert_eq!(first(&[v4, v6], &Options::default()).device, "v6");
}

#[test]
fn infiniband_goes_by_the_address_of_its_interface_and_never_by_gid() {
    let host = [device("mlx5_0", vec![infiniband(&["192.168.9.1"])])];
    assert_eq!(first(&host, &Options::default()).addresses, [ip("192.168.9.1")]);
    let by_gid = Options { gid_index: Some(0), ..Options::default() };
    assert!(refusal(&host, &by_gid).contains("LID"), "{}", refusal(&host, &by_gid));
    let without = [device("mlx5_0", vec![infiniband(&[])])];
    assert!(refusal(&without, &Options::default()).contains("IPoIB"));
}

#[test]
fn what_was_asked_for_is_taken_or_named() {
    let ports = vec![roce(&["10.0.0.1", "fd77::1"]), PortView { number: 2, ..roce(&["10.0.2.1"]) }];
    let host = [device("mlx5_0", ports), device("mlx5_1", vec![roce(&["10.1.0.1"])])];
    let base = Options::default;

    let by_device = Options { device: Some("mlx5_1".to_owned()), ..base() };
    assert_eq!(first(&host, &by_device).addresses, [ip("10.1.0.1")]);
    let by_port = Options { port: Some(2), ..base() };
    assert_eq!(first(&host, &by_port).addresses, [ip("10.0.2.1")]);
    let by_gid = Options { gid_index: Some(3), device: Some("mlx5_0".to_owned()), ..base() };
    assert_eq!(first(&host, &by_gid).addresses, [ip("fd77::1")]);
    let by_address = Options { address: Some(ip("fd77::1")), ..base() };
    assert_eq!(first(&host, &by_address).addresses, [ip("fd77::1")]);

    let text = refusal(&host, &Options { device: Some("mlx5_7".to_owned()), ..base() });
    assert!(text.contains("`mlx5_7`") && text.contains("mlx5_0, mlx5_1"), "{text}");
    let text = refusal(&host, &Options { port: Some(3), ..base() });
    assert!(text.contains("as was asked for"), "{text}");
    let v1 = Options { gid_index: Some(0), ..base() };
    assert!(refusal(&host, &v1).contains("RoCE v1"), "{}", refusal(&host, &v1));
    let text = refusal(&host, &Options { gid_index: Some(9), ..base() });
    assert!(text.contains("it has no GID 9"), "{text}");
    assert!(text.contains("mlx5_0 port 1 index 3: fd77::1 RoCE v2"), "the table: {text}");
    let text = refusal(&host, &Options { address: Some(ip("10.9.9.9")), ..base() });
    assert!(text.contains("10.9.9.9"), "{text}");
}

#[test]
fn each_way_of_having_no_port_is_named() {
    let down = PortView { active: false, state: "DOWN", ..roce(&["10.0.0.1"]) };
    let text = refusal(&[device("mlx5_0", vec![down])], &Options::default());
    assert!(text.contains("mlx5_0 port 1") && text.contains("DOWN"), "{text}");

    let text = refusal(&[device("rxe0", vec![roce(&[])])], &Options::default());
    assert!(text.contains("GID table is empty") && text.contains("namespace"), "{text}");
    assert!(text.contains("GIDs of this host: none"), "{text}");

    let gids = vec![gid(0, "fe80::1", GidKind::RoceV2)];
    let port = PortView { gids, ..roce(&[]) };
    let text = refusal(&[device("rxe0", vec![port])], &Options::default());
    assert!(text.contains("no address of this host"), "{text}");

    let problem = Some("cannot be opened: Permission denied".to_owned());
    let closed = DeviceView { problem, ..device("mlx5_0", vec![]) };
    let text = refusal(std::slice::from_ref(&closed), &Options::default());
    assert!(text.contains("mlx5_0: cannot be opened: Permission denied"), "{text}");
    let other = device("mlx5_1", vec![roce(&["10.0.0.1"])]);
    assert_eq!(first(&[closed, other], &Options::default()).device, "mlx5_1");
}

#[test]
fn link_local_is_told_from_routable() {
    for text in ["fe80::1", "169.254.0.1", "febf::1"] {
        assert!(is_link_local(ip(text)), "{text}");
    }
    for text in ["fd77::1", "10.0.0.1", "fec0::1"] {
        assert!(!is_link_local(ip(text)), "{text}");
    }
    assert!(!is_link_local(IpAddr::V6(Ipv6Addr::LOCALHOST)));
}
