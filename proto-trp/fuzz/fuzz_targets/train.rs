//! Fuzzes [`proto_trp_fuzz::train`].
#![no_main]

libfuzzer_sys::fuzz_target!(|octets: &[u8]| proto_trp_fuzz::train(octets));
