//! Cases of backends that have SEND and RECV only.

use std::collections::VecDeque;

use onesided_fabric::{AttachError, Opcode, PostError, RegionId};

use crate::rig::{End, Rig, at, signaled};

pub(crate) fn one_sided_operations_are_refused_with_their_reason(rig: &mut Rig) {
    let i = rig.connect();
    let endpoint = rig.endpoint(End::Client(i));
    assert!(!endpoint.caps().one_sided && !endpoint.caps().reads_now);
    let refused = endpoint.attach(RegionId(1), &[]).unwrap_err();
    assert!(matches!(refused, AttachError::NotOneSided), "{refused}");
    assert!(endpoint.read_now(at(1, 0), &mut [0; 8]).is_none());
    assert!(endpoint.read_bytes_now(at(1, 0), &mut [0; 8]).is_none());
    let ops = [
        rig.read(1, 0, 8),
        rig.write(1, 0, &[1]),
        Opcode::CompareSwap { remote: at(1, 0), expected: 0, new: 1 },
        Opcode::FetchAdd { remote: at(1, 0), add: 1 },
    ];
    for op in ops {
        let mut chain = VecDeque::from([rig.send(0, b"before"), signaled(5, op)]);
        let refused = endpoint.post(&mut chain).unwrap_err();
        assert!(matches!(refused, PostError::NotOneSided), "{refused}");
        assert_eq!((chain.len(), chain[0].id), (1, 5), "the offending one is at the front");
        assert_eq!(&rig.next_message(End::Server(i))[..], b"before");
    }
}
