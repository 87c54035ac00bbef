#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| onesided_fuzz::answer(bytes));
