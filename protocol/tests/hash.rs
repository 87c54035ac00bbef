//! Hash, placement and checksum by value. The expected numbers come from other implementations
//! (the Python package `xxhash` 3.x over the reference C code; for short checksums the
//! specification in Python, one bit at a time), not from what is used here.

mod common;

use common::pattern;
use onesided_protocol::LogAddr;
use onesided_protocol::checksum::{CHECKSUM_MASK, entry_checksum};
use onesided_protocol::hash::{KeyHash, top_bits};

/// Length of the pattern; XXH3-64 of it with seed 0; with seed 0x0123456789ABCDEF.
const HASHES: [(usize, u64, u64); 14] = [
    (0, 0x2d06_8005_38d3_94c2, 0xcc1c_a35a_1b08_9c5c),
    (1, 0x13e6_08bc_156d_efed, 0x741a_549e_c5c1_ddf0),
    (3, 0xa908_8dda_485b_481c, 0xd1c4_95b1_36b5_cbb0),
    (4, 0x6d92_53b1_6c8b_1ed3, 0x3c6a_3c9a_dc39_a804),
    (8, 0x6053_9db6_3047_1163, 0x5c53_63c8_008e_62da),
    (9, 0xfeff_6683_61d7_23a8, 0x3f99_cfca_8372_0a42),
    (16, 0xb8c8_59b0_f030_b585, 0x5fd5_1fc1_02af_6f6b),
    (17, 0x714a_0440_8e79_b80f, 0x3095_0a9d_13f8_427b),
    (64, 0x287e_b1fa_9e4b_e2c1, 0x70c0_a642_d266_917a),
    (128, 0x6742_5a03_6502_61bf, 0xfa02_9fbe_b651_6b5f),
    (129, 0xc664_bf33_11c6_abc4, 0x5a0c_0ca8_5e1e_65d7),
    (240, 0x6455_6dc6_b462_a6cf, 0xaec1_cacd_f9ed_cfd2),
    (241, 0x8bea_dd3a_8874_fe17, 0x7c89_685c_f1ec_b411),
    (1000, 0x6c4f_14bd_97bd_9e82, 0xdc23_7797_51d1_83b1),
];

#[test]
fn key_hashes() {
    for (len, unseeded, seeded) in HASHES {
        assert_eq!(KeyHash::of(0, &pattern(len)).0, unseeded, "{len} bytes, seed 0");
        assert_eq!(KeyHash::of(0x0123_4567_89AB_CDEF, &pattern(len)).0, seeded, "{len} bytes");
    }
}

/// Length of the pattern; checksum with secret 0xFEEDFACECAFEBEEF at address 0xC00010.
const CHECKSUMS: [(usize, u64); 12] = [
    (0, 0x0fae_5095_f654_5b67),
    (1, 0x2d08_fe83_d821_f2cb),
    (8, 0x3aef_bbc2_b4da_e1c6),
    (16, 0x1229_45ed_341e_fa65),
    (17, 0x2df3_8c62_8106_430c),
    (64, 0x10e0_b0e4_e289_25c2),
    (128, 0x326c_20bb_883b_b12f),
    (129, 0x16ff_a6f6_c0b9_ddf8),
    (240, 0x11fe_bffb_ce80_cbaa),
    (241, 0x21bc_17db_b42f_24a4),
    (248, 0x1ffa_5177_f6b7_45b1),
    (1000, 0x1a34_5d19_a613_819e),
];

#[test]
fn entry_checksums() {
    for (len, checksum) in CHECKSUMS {
        let own = entry_checksum(0xFEED_FACE_CAFE_BEEF, LogAddr::new(3, 256), &pattern(len));
        assert_eq!(own, checksum, "{len} bytes");
        assert_eq!(own & !CHECKSUM_MASK, 0, "62 bits");
    }
}

/// The worked example of docs/PROTOCOL.md.
#[test]
fn placement() {
    let hash = KeyHash::of(0x0123_4567_89AB_CDEF, b"hello");
    assert_eq!(hash.0, 0x8e25_786e_203e_5d15);
    assert_eq!(hash.prefix(), 0x8e25_786e);
    assert_eq!(hash.directory_index(0), 0);
    assert_eq!(hash.directory_index(5), 17);
    assert_eq!(hash.bucket(), 64);
    assert_eq!(hash.fingerprint(), 0x1d15);
}

#[test]
fn hash_parts_share_no_bits() {
    let parts = |bit: u32| {
        let hash = KeyHash(1 << bit);
        let directory = hash.directory_index(22) != 0;
        (directory, hash.bucket() != 0, hash.fingerprint() != 0)
    };
    for bit in 0..64 {
        let expected = match bit {
            42..=63 => (true, false, false),
            23..=31 => (false, true, false),
            0..=13 => (false, false, true),
            _ => (false, false, false),
        };
        assert_eq!(parts(bit), expected, "bit {bit}");
    }
}

#[test]
fn top_bits_of_any_depth() {
    assert_eq!(top_bits(u32::MAX, 0), 0);
    assert_eq!(top_bits(0x8000_0000, 1), 1);
    assert_eq!(top_bits(0xFFFF_FFFE, 31), 0x7FFF_FFFF);
    assert_eq!(top_bits(0x1234_5678, 32), 0x1234_5678);
    assert_eq!(top_bits(0x1234_5678, 255), 0x1234_5678, "more bits than there are");
}
