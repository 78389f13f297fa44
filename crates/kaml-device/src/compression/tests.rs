use super::*;
use proptest::prelude::*;

const METHODS: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

fn random(bytes: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn text(bytes: usize) -> Vec<u8> {
    (0..).flat_map(|n: u32| format!("{{\"id\":{n},\"name\":\"user {}\"}}", n * 7).into_bytes()).take(bytes).collect()
}

fn packed(method: Compression, value: &[u8]) -> Vec<u8> {
    let mut packed = vec![1; 7];
    assert!(pack(method, value, value.len(), &mut packed), "{method} of {} bytes", value.len());
    packed
}

/// Goal:   a value comes back as it was, whatever its length, and takes no more than it may.
/// Method: text from 100 bytes to beyond 64 KiB, where LZ4 changes its table; one buffer for all.
#[test]
fn values_come_back() {
    let mut value = Vec::new();
    for method in METHODS {
        for bytes in [100, 1024, 4096, 65_534, 65_535, 65_536, 1 << 20, 300] {
            let text = text(bytes);
            let packed = packed(method, &text);
            assert!(packed.len() < bytes, "{method}: {} of {bytes}", packed.len());
            assert_eq!(unpacked_bytes(&packed), Some(bytes as u64));
            assert_eq!(unpack(&packed, &mut value), Ok(()), "{method} of {bytes} bytes");
            assert!(value == text, "{method} of {bytes} bytes");
            let mut other = Vec::new();
            assert!(pack(method, &text, packed.len() + 64, &mut other) && other == packed);
            assert!(!pack(method, &text, packed.len() - 1, &mut other), "it has room for less");
        }
    }
    assert!(!pack(Compression::None, b"anything", 8, &mut value));
}

/// Goal:   what cannot be compressed is not, and is recognized by a part of it.
/// Method: random bytes, base64, text and zeroes.
#[test]
fn random_bytes_are_recognized() {
    for seed in 1..200 {
        for bytes in [512, 1024, 5000, 100_000] {
            let random = random(bytes, seed);
            assert!(looks_random(&random), "seed {seed}, {bytes} bytes");
            let letters: Vec<u8> = random.iter().map(|byte| b'0' + byte % 64).collect();
            assert!(!looks_random(&letters), "seed {seed}, {bytes} bytes");
        }
    }
    assert!(!looks_random(&text(1024)) && !looks_random(&[0; 600]));
    let few = random(511, 1);
    assert!(!looks_random(&few), "too little to be sure");
    let mut into = Vec::new();
    for method in METHODS {
        assert!(!pack(method, &random(1024, 9), 1024, &mut into), "{method}");
    }
}

/// Goal:   what claims to be longer than it can be reserves no memory.
/// Method: a few bytes that state a gigabyte; an unknown method; nothing.
#[test]
fn claims_are_bounded() {
    let mut value = Vec::new();
    let footer = |method: u32| ((1u32 << 30) - 1) | method << 30;
    for (method, what) in [(0, "unknown"), (1, "longer"), (2, "longer"), (3, "unknown")] {
        let claim = [&[0; 60], &footer(method).to_le_bytes()[..]].concat();
        let refused = unpack(&claim, &mut value).expect_err("nobody stored that");
        assert!(refused.contains(what), "method {method}: {refused}");
        assert!(value.capacity() < 1 << 20);
    }
    assert!(unpack(b"", &mut value).is_err() && unpack(b"abc", &mut value).is_err());
}

/// Goal:   names and numbers lead to the method that they are of.
/// Method: all of them, and others.
#[test]
fn methods_have_names() {
    for method in Compression::ALL {
        assert_eq!(method.to_string().parse(), Ok(method));
        assert_eq!(Compression::of_code(method.code()), Some(method));
    }
    let error = "gzip".parse::<Compression>().unwrap_err().to_string();
    assert!(error.contains("gzip") && error.contains("zstd"), "{error}");
    assert_eq!(Compression::of_code(3), None);
}

proptest! {
    /// Goal:   no bytes make the decoder panic or return something that is not as long as it states.
    /// Method: random bytes; compressed values with a byte changed or cut off.
    #[test]
    fn hostile_bytes_are_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        method in 1u32..3,
        len in 0u32..100_000,
        damage in any::<(u16, u8, bool)>(),
    ) {
        let mut value = Vec::new();
        let claim = [&bytes[..], &(len | method << 30).to_le_bytes()].concat();
        for hostile in [&bytes, &claim] {
            let stated = unpacked_bytes(hostile);
            if unpack(hostile, &mut value).is_ok() {
                prop_assert_eq!(stated, Some(value.len() as u64));
            }
        }
        for method in METHODS {
            let mut whole = packed(method, &text(700));
            let at = usize::from(damage.0) % whole.len();
            if damage.2 { whole.truncate(at) } else { whole[at] ^= damage.1 }
            let stated = unpacked_bytes(&whole);
            if unpack(&whole, &mut value).is_ok() {
                prop_assert_eq!(stated, Some(value.len() as u64));
            }
        }
    }

    /// Goal:   any value comes back, or is not compressed.
    /// Method: random values of few different bytes.
    #[test]
    fn any_value_comes_back(value in proptest::collection::vec(0u8..6, 0..3000)) {
        let (mut packed, mut back) = (Vec::new(), Vec::new());
        for method in METHODS {
            if pack(method, &value, value.len(), &mut packed) {
                prop_assert_eq!(unpack(&packed, &mut back), Ok(()));
                prop_assert_eq!(&back, &value);
            }
        }
    }
}
