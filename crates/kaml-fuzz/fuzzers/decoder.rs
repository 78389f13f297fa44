//! Fuzzes the parser that `KAML_DECODER` names; see `run`.
#![no_main]

use kaml_fuzz::{DECODERS, Decoder, decode};
use std::sync::LazyLock;

static DECODER: LazyLock<Decoder> = LazyLock::new(|| {
    let name = std::env::var("KAML_DECODER").unwrap_or_default();
    let found = DECODERS.into_iter().find(|(decoder, _)| *decoder == name);
    found.unwrap_or_else(|| panic!("KAML_DECODER is `{name}`, no parser's name"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| decode(*DECODER, data));
