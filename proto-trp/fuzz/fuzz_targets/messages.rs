//! Fuzzes [`proto_trp_fuzz::messages`].
#![no_main]

libfuzzer_sys::fuzz_target!(|octets: &[u8]| proto_trp_fuzz::messages(octets));
