#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ssntp_test_support::bodies::join(data));
