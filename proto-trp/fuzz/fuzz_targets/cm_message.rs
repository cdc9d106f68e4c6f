//! Fuzzes [`proto_trp_fuzz::cm_message`].
#![no_main]

libfuzzer_sys::fuzz_target!(|octets: &[u8]| proto_trp_fuzz::cm_message(octets));
