#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ssntp_test_support::bodies::client_handshake(data));
