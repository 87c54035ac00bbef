//! Shared by the tests.
#![allow(dead_code, reason = "each test binary uses a part")]

/// Bytes of hex digits; blanks and line ends between them are for the reader, and so is what
/// follows a # in a line.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .lines()
        .filter_map(|line| line.split('#').next())
        .flat_map(str::bytes)
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| char::from(byte).to_digit(16).expect("a hex digit") as u8)
        .collect();
    assert!(digits.len().is_multiple_of(2), "half a byte in {text:?}");
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Asserts that bytes are what the hex says, and shows both in hex if not.
#[track_caller]
pub(crate) fn assert_hex(what: &str, bytes: &[u8], golden: &str) {
    let show =
        |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    assert!(bytes == hex(golden), "{what}\n   is {}\n want {}", show(bytes), show(&hex(golden)));
}

/// The bytes that the XXH3 vectors of docs/PROTOCOL.md are over: byte i is 7 i + 3, cut to 8
/// bits.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + 3) as u8).collect()
}
