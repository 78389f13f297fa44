//! Keys as people write and read them.

use crate::failure::Failure;
use clap::Args;
use kaml::{Key, KeyKind};
use serde_json::{Map, Value, json};

/// A key on the command line.
#[derive(Args)]
pub struct KeyArgument {
    /// Key of 1 to 16 bytes, as text
    key: String,
    /// The key is written in hexadecimal digits
    #[arg(long, conflicts_with = "u64")]
    hex: bool,
    /// The key is a 64-bit integer
    #[arg(long)]
    u64: bool,
}

impl KeyArgument {
    /// The key for a namespace: in one of integers, decimal digits are taken for an integer.
    pub fn key(&self, kind: KeyKind) -> Result<Key, Failure> {
        if self.hex {
            return key(&parse_hex(&self.key)?);
        }
        if self.u64 {
            let number = self.key.parse::<u64>();
            return number.map(Key::from).map_err(|error| Failure::Usage(format!("key `{}`: {error}", self.key)));
        }
        match (kind, self.key.parse::<u64>()) {
            (KeyKind::U64, Ok(number)) => Ok(number.into()),
            _ => key(self.key.as_bytes()),
        }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.key
    }
}

/// A key of bytes.
pub fn key(bytes: &[u8]) -> Result<Key, Failure> {
    Key::new(bytes).map_err(|error| Failure::Usage(error.to_string()))
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

/// For a line of a listing: an integer in a namespace of integers, else text if it is printable, else `0x…`.
pub fn show(key: &Key, kind: KeyKind) -> String {
    match (kind, key.as_u64()) {
        (KeyKind::U64, Some(number)) => number.to_string(),
        _ => key.to_string(),
    }
}

/// The fields of a key in JSON: `key` for text, `key_u64` for integers, `key_hex` for other bytes.
pub fn to_json(key: &Key, kind: KeyKind) -> Map<String, Value> {
    let field = match (kind, key.as_u64(), std::str::from_utf8(key.as_bytes())) {
        (KeyKind::U64, Some(number), _) => ("key_u64", json!(number)),
        (_, _, Ok(text)) => ("key", json!(text)),
        _ => ("key_hex", json!(hex(key.as_bytes()))),
    };
    Map::from_iter([(field.0.to_owned(), field.1)])
}

/// The key of a JSON object with one of those fields.
pub fn from_json(object: &Map<String, Value>) -> Result<Key, String> {
    let found = ["key", "key_u64", "key_hex"].map(|name| object.get(name));
    match found {
        [Some(Value::String(text)), None, None] => Key::new(text.as_bytes()).map_err(|error| error.to_string()),
        [Some(Value::Number(number)), None, None] | [None, Some(Value::Number(number)), None] => {
            number.as_u64().map(Key::from).ok_or_else(|| format!("{number} is not a 64-bit key"))
        }
        [None, None, Some(Value::String(text))] => {
            let bytes = parse_hex(text).map_err(|error| error.to_string())?;
            Key::new(&bytes).map_err(|error| error.to_string())
        }
        _ => Err("needs one of `key`, `key_u64`, `key_hex`".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   a key survives JSON, whatever it is made of.
    /// Method: text, an integer, and bytes that are no text, there and back.
    #[test]
    fn keys_survive_json() {
        for (key, kind) in [
            (Key::new(b"hello").unwrap(), KeyKind::Bytes),
            (Key::from(1 << 60), KeyKind::U64),
            (Key::new(&[0xff; 16]).unwrap(), KeyKind::Bytes),
        ] {
            assert_eq!(from_json(&to_json(&key, kind)), Ok(key));
        }
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
