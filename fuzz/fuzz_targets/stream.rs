#![no_main]

#[path = "../../tests/no_panic/bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::stream(data));
