//! Keys as people write and read them: what is shown of a key means that key when it is released.

use crate::failure::Failure;
use clap::Args;
use kaml::{Key, KeyBuf, KeyKind};
use serde_json::{Map, Value, json};

/// A key on the command line.
#[derive(Args)]
pub struct KeyArgument {
    /// Key of 1 to 16 bytes (1024 in namespaces with keys `any` or `ordered`): text, or 0x and an even number of hexadecimal digits
    key: String,
    #[command(flatten)]
    form: KeyForm,
}

/// The same for a command that does not always need a key.
#[derive(Args)]
pub struct OptionalKey {
    /// Key of 1 to 16 bytes (1024 in namespaces with keys `any` or `ordered`): text, or 0x and an even number of hexadecimal digits
    key: Option<String>,
    #[command(flatten)]
    form: KeyForm,
}

impl OptionalKey {
    /// The key, if one is named.
    pub fn given(&self) -> Option<KeyArgument> {
        Some(KeyArgument { key: self.key.clone()?, form: self.form })
    }
}

/// How a key is written.
#[derive(Args, Clone, Copy)]
struct KeyForm {
    /// The key is in hexadecimal digits, even without 0x
    #[arg(long, requires = "key", conflicts_with_all = ["u64", "text"])]
    hex: bool,
    /// The key is text, even if it begins with 0x or is a number
    #[arg(long, requires = "key", conflicts_with = "u64")]
    text: bool,
    /// The key is a 64-bit integer
    #[arg(long, requires = "key")]
    u64: bool,
}

impl KeyArgument {
    /// The key for a namespace: in one of integers, decimal digits are taken for an integer.
    pub fn key(&self, kind: KeyKind) -> Result<KeyBuf, Failure> {
        if self.form.hex {
            return key(&parse_hex(&self.key)?);
        }
        if self.form.text {
            return key(self.key.as_bytes());
        }
        if self.form.u64 {
            let number = self.key.parse::<u64>();
            return number
                .map(|number| Key::from(number).into())
                .map_err(|error| Failure::Usage(format!("key `{}`: {error}", self.key)));
        }
        parse(&self.key, kind)
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.key
    }
}

/// The key that is written so without a flag.
fn parse(text: &str, kind: KeyKind) -> Result<KeyBuf, Failure> {
    if kind == KeyKind::U64
        && let Ok(number) = text.parse::<u64>()
    {
        return Ok(Key::from(number).into());
    }
    match text.strip_prefix("0x").map(parse_hex) {
        Some(Ok(bytes)) if !bytes.is_empty() && (kind != KeyKind::U64 || bytes.len() == 8) => key(&bytes),
        _ if kind == KeyKind::U64 => {
            let what =
                "is no 64-bit integer, which this namespace takes; 0x and 16 digits, --hex and --text take its 8 bytes";
            Err(Failure::Usage(format!("key `{text}` {what}")))
        }
        _ => key(text.as_bytes()),
    }
}

/// A key of bytes.
fn key(bytes: &[u8]) -> Result<KeyBuf, Failure> {
    KeyBuf::new(bytes).map_err(|error| Failure::Usage(error.to_string()))
}

/// The key of a record with versions.
pub fn short(key: &KeyBuf) -> Result<Key, Failure> {
    Key::new(key.as_bytes()).map_err(|error| Failure::Usage(error.to_string()))
}

/// Reads hexadecimal digits.
pub fn parse_hex(text: &str) -> Result<Vec<u8>, Failure> {
    let error = || Failure::Usage(format!("`{text}` is not an even number of hexadecimal digits"));
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(error());
    }
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| error());
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// For a line of a listing: an integer in a namespace of integers, else text if it is plain and means the same key when it is
/// released, else `0x…`, which always does.
pub fn show(key: &KeyBuf, kind: KeyKind) -> String {
    match (kind, key.as_u64(), std::str::from_utf8(key.as_bytes())) {
        (KeyKind::U64, Some(number), _) => number.to_string(),
        (_, _, Ok(text)) if is_plain(text) && parse(text, kind).is_ok_and(|again| again == *key) => text.to_owned(),
        _ => format!("0x{}", hex(key.as_bytes())),
    }
}

/// A value for a line of a listing: text that fits on a line as it is, else `0x…`.
pub fn show_value(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if !text.starts_with("0x") && !text.chars().any(char::is_control) => text.to_owned(),
        _ => format!("0x{}", hex(value)),
    }
}

/// Whether everybody sees what it is made of, and can type it: no flag of a command, no space at an end, no other space, no
/// control characters, none that are invisible or join the one before (of which there may be another spelling).
fn is_plain(text: &str) -> bool {
    let is_plain = |c: char| match c {
        ' ' | '"' | '\'' | '\\' => true,
        _ => !c.is_whitespace() && c.escape_debug().count() == 1,
    };
    text.chars().all(is_plain) && !text.starts_with(['-', ' ']) && !text.ends_with(' ')
}

/// The fields of a key in JSON: `key` for text, `key_u64` for integers, `key_hex` for other bytes.
pub fn to_json(key: &KeyBuf, kind: KeyKind) -> Map<String, Value> {
    let field = match (kind, key.as_u64(), std::str::from_utf8(key.as_bytes())) {
        (KeyKind::U64, Some(number), _) => ("key_u64", json!(number)),
        (_, _, Ok(text)) => ("key", json!(text)),
        _ => ("key_hex", json!(hex(key.as_bytes()))),
    };
    Map::from_iter([(field.0.to_owned(), field.1)])
}

/// The key of a JSON object with one of those fields; an error names the field.
pub fn from_json(object: &Map<String, Value>) -> Result<KeyBuf, String> {
    let fields: Vec<_> =
        ["key", "key_u64", "key_hex"].into_iter().filter_map(|name| object.get_key_value(name)).collect();
    let (name, value) = match fields[..] {
        [] => return Err("no key: needs one of `key` (text or integer), `key_u64`, `key_hex`".into()),
        [field] => field,
        [(first, _), (second, _), ..] => return Err(format!("fields {first:?} and {second:?}: one key is enough")),
    };
    let key = match (name.as_str(), value) {
        ("key", Value::String(text)) => KeyBuf::new(text.as_bytes()).map_err(|error| error.to_string()),
        ("key" | "key_u64", Value::Number(number)) => match number.as_u64() {
            Some(number) => Ok(Key::from(number).into()),
            None => Err(format!("{number} is no integer of 64 bits without a sign")),
        },
        ("key_hex", Value::String(digits)) => parse_hex(digits)
            .map_err(|error| error.to_string())
            .and_then(|bytes| KeyBuf::new(&bytes).map_err(|error| error.to_string())),
        ("key", _) => Err("must be text or an integer".into()),
        ("key_u64", _) => Err("must be an integer".into()),
        _ => Err("must be text of hexadecimal digits".into()),
    };
    key.map_err(|what| format!("field {name:?}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   a key survives JSON, whatever it is made of.
    /// Method: text, an integer, and bytes that are no text, there and back.
    #[test]
    fn keys_survive_json() {
        for (key, kind) in [
            (KeyBuf::new(b"hello").unwrap(), KeyKind::Bytes),
            (Key::from(1 << 60).into(), KeyKind::U64),
            (KeyBuf::new(&[0xff; 16]).unwrap(), KeyKind::Bytes),
            (KeyBuf::new(&[b'k'; 1000]).unwrap(), KeyKind::Any),
        ] {
            assert_eq!(from_json(&to_json(&key, kind)), Ok(key));
        }
    }

    /// Goal:   what is shown of any key means that key when it is released, and text is shown as text.
    /// Method: every key of two bytes, and odd ones, in both kinds of namespaces; what some of them look like.
    #[test]
    fn what_is_shown_can_be_given_back() {
        let odd = ["0x", "0x0", "0x00", "0xgg", "0X00", "-x", " a", "a ", "a b", "a\tb", "7", "+7", "007", "\u{a0}"];
        let other = ["Zürich", "日本", "e\u{301}", "a\u{200b}b", "\u{202e}ab", "naïve \"q\"", "12345678", "0x00000000"];
        let pairs = (0..=u16::MAX).map(|pair| pair.to_be_bytes().to_vec());
        let keys = pairs.chain(odd.iter().chain(&other).map(|text| text.as_bytes().to_vec()));
        let comes_back = |key: KeyBuf, kind: KeyKind| {
            let shown = show(&key, kind);
            assert_eq!(parse(&shown, kind).ok(), Some(key), "{shown}");
            assert!(!shown.starts_with('-') && shown.trim() == shown, "{shown}");
        };
        for bytes in keys {
            comes_back(KeyBuf::new(&bytes).unwrap(), KeyKind::Bytes);
            if let Ok(eight) = bytes.try_into() {
                comes_back(Key::from(u64::from_be_bytes(eight)).into(), KeyKind::U64);
            }
        }
        let shown = |text: &str| show(&KeyBuf::new(text.as_bytes()).unwrap(), KeyKind::Bytes);
        for text in ["Zürich", "日本", "a b", "7", "0x0", "0xgg", "naïve \"q\""] {
            assert_eq!(shown(text), text);
        }
        for text in ["0x00", "-x", " a", "a\tb", "\u{a0}", "e\u{301}", "a\u{200b}b", "\u{202e}ab"] {
            assert!(shown(text).starts_with("0x"), "{text}");
        }
        assert_eq!(show(&Key::from(7).into(), KeyKind::U64), "7");
    }

    /// Goal:   a typing error is no key of a namespace of integers.
    /// Method: eight letters, too few digits, half a byte; eight bytes in hexadecimal digits are one.
    #[test]
    fn integers_are_no_text() {
        for text in ["abcdefgh", "0x07", "0x000000000000000", "-1", "18446744073709551616", ""] {
            assert!(parse(text, KeyKind::U64).is_err(), "{text}");
        }
        assert_eq!(parse("0x0000000000000007", KeyKind::U64).ok(), Some(Key::from(7).into()));
    }

    /// Goal:   rubbish is refused with words.
    /// Method: no key, two keys, an empty key, half a byte, a negative number.
    #[test]
    fn bad_keys_are_refused() {
        for text in [
            "{}",
            r#"{"key":"a","key_hex":"00"}"#,
            r#"{"key":""}"#,
            r#"{"key_hex":"abc"}"#,
            r#"{"key_hex":"é0"}"#,
            r#"{"key_u64":-1}"#,
        ] {
            let Ok(Value::Object(object)) = serde_json::from_str(text) else { panic!("{text}") };
            assert!(from_json(&object).is_err(), "{text}");
        }
    }
}
