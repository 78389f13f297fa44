//! What fuzzers found worth keeping.

use std::path::Path;

fn replay(name: &str, play: impl Fn(&[u8]) + std::panic::RefUnwindSafe) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut count = 0;
    for entry in std::fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display())) {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let played = std::panic::catch_unwind(|| play(&bytes));
        assert!(played.is_ok(), "{}", path.display());
        count += 1;
    }
    assert!(count >= 5, "{count} inputs in {}", corpus.display());
}

/// Goal:   parsers survive every input that fuzzing found, and write what they read.
/// Method: the corpus.
#[test]
fn decoders() {
    for decoder in kaml_fuzz::DECODERS {
        replay(decoder.0, |data| kaml_fuzz::decode(decoder, data));
    }
}

/// Goal:   the target survives every conversation that fuzzing found, keeps to the protocol, and keeps nothing of those who
///         left.
/// Method: the corpus.
#[test]
fn conversation() {
    replay("conversation", kaml_fuzz::conversation);
}
