//! The checksum is the same whatever this processor has for it: protocol and fabric do not know
//! each other.

use onesided_protocol::LogAddr;
use onesided_protocol::checksum::ChecksumKey;

#[test]
fn this_processors_instructions_give_the_specified_value() {
    let Some(fold) = onesided_fabric::carryless_fold() else { return };
    let mut state = 7_u64;
    let mut draw = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        state ^ state >> 31
    };
    for round in 0..3000 {
        let (secret, addr) = (draw(), LogAddr::from_bits(draw() >> 22 | 1).expect("no null"));
        let (fast, specified) =
            (ChecksumKey::new(secret, Some(fold)), ChecksumKey::new(secret, None));
        let bytes: Vec<u8> = (0..8 + round % 300).map(|_| draw() as u8).collect();
        let (fast, specified) = (fast.checksum(addr, &bytes), specified.checksum(addr, &bytes));
        assert_eq!(fast, specified, "{} bytes", bytes.len());
    }
}
