//! Fuzzes conversations with the target; see `run`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kaml_fuzz::conversation(data));
