//! Regions: registered before anybody asks, once, as one piece or not at all, and never after they
//! were given up; what is not offered is counted.

use std::sync::Arc;

use onesided_fabric::verbs::Limits;
use onesided_fabric::{BufferPool, Memory, RegionId, Rights};

use crate::rig::{REGION_BYTES, Server, attach, has_device, reads_well};

#[test]
fn regions_are_registered_ahead_once_and_not_when_they_were_given_up() {
    if !has_device() {
        return;
    }
    let server = Server::start(Limits::default());
    let made = || server.figure("registrations_made");
    let memory = |region| Arc::clone(&server.gate.regions.lock()[&region].0);
    let register =
        |memory: &Memory| server.listener.register(0, RegionId(1), memory, Rights::ReadOnly);
    let before = made();
    for _ in 0..3 {
        register(&memory(1)).expect("registered");
    }
    assert_eq!(made(), before + 1);
    let peer = server.connect(1, Limits::default());
    attach(&peer, 1);
    reads_well(&peer, &BufferPool::new(), 7);

    let given_up = Memory::private(REGION_BYTES).expect("memory");
    given_up.discard().expect("given up");
    let refused = register(&given_up).expect_err("registered for nobody");
    assert!(refused.to_string().contains("given back"), "{refused}");
    let (bytes, end) = (server.figure("registered_bytes"), memory(1));
    end.discard().expect("given up");
    assert_eq!(server.figure("registered_bytes"), bytes - REGION_BYTES as u64);
    register(&end).expect_err("registered again");
}

#[test]
fn a_region_that_is_too_long_for_the_device_is_refused_and_counted() {
    if !has_device() {
        return;
    }
    let max_bytes = REGION_BYTES as u64;
    let server = Server::start(Limits { registration_max_bytes: max_bytes, ..Limits::default() });
    let long = Arc::new(Memory::private(REGION_BYTES + 4096).expect("memory"));
    let refused = server.listener.register(0, RegionId(3), &long, Rights::ReadOnly);
    let refused = refused.expect_err("too long").to_string();
    assert!(refused.contains("max_mr_size") && refused.contains("1048576"), "{refused}");
    server.gate.regions.lock().insert(3, (long, Rights::ReadOnly));
    let peer = server.connect(1, Limits::default());
    assert_eq!(server.figure("regions_refused"), 0);
    for region in [3, 77] {
        assert!(peer.endpoint.attach(RegionId(region), &[]).is_err(), "{region}");
    }
    // Neither harms the connection.
    for region in [1, 2] {
        attach(&peer, region);
    }
    reads_well(&peer, &BufferPool::new(), 7);
    assert_eq!(server.figure("regions_refused"), 2);
    assert_eq!(*server.seen.ends.lock(), []);
}
