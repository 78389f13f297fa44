//! What fuzzers drive.
//!
//! Lives here:       one function for each fuzzer; it takes any bytes and panics only for a bug.
//! Lives elsewhere:  the fuzzers that find bytes (`fuzzers`, `run`), the bytes worth keeping (`corpus`), which a test replays.

mod conversation;
mod decoders;

pub use conversation::conversation;
pub use decoders::{DECODERS, Decoder, decode};
