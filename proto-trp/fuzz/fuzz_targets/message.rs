//! Fuzzes [`proto_trp_fuzz::message`].
#![no_main]

libfuzzer_sys::fuzz_target!(|octets: &[u8]| proto_trp_fuzz::message(octets));
