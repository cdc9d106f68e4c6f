//! Fuzzes [`proto_trp_fuzz::datagram`].
#![no_main]

libfuzzer_sys::fuzz_target!(|octets: &[u8]| proto_trp_fuzz::datagram(octets));
