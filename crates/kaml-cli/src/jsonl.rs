//! Lines of JSON Lines as records.
//!
//! Lives here:       reading one line, and what is wrong with it: each fault has a message of its own, which names the field.
//! Lives elsewhere:  keys and values of an object (`keys`, `commands::record`), files and batches (`commands::import`).

use crate::commands::record::value_from_json;
use crate::keys;
use kaml::{KeyBuf, KeyKind};
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::fmt::{Formatter, Result as Formatted};
use std::string::FromUtf8Error;

/// The record that a line contains, if a namespace of such keys takes it.
pub fn record(line: &str, is_first: bool, keys: KeyKind) -> Result<(KeyBuf, Vec<u8>), String> {
    if let Some(rest) = line.strip_prefix('\u{feff}') {
        let other = if is_first { "" } else { " in the middle of the file" };
        let _ = rest;
        return Err(format!("begins with a byte order mark (U+FEFF){other}; JSON has none, remove it"));
    }
    let object = object(line)?;
    let key = keys::from_json(&object)?;
    let value = value_from_json(&object)?;
    if keys == KeyKind::U64 && key.as_u64().is_none() {
        return Err(format!("key `{key}` is not a 64-bit integer, which this namespace takes"));
    }
    let (bytes, max) = (key.as_bytes().len(), keys.bytes_max());
    if bytes > max {
        return Err(format!(
            "a key of {bytes} bytes; this namespace takes 1 to {max} (make it with --keys any or ordered for more)"
        ));
    }
    Ok((key, value))
}

/// What is wrong with a line that is no UTF-8.
pub fn not_utf8(error: &FromUtf8Error) -> String {
    match error.as_bytes() {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            "begins with a byte order mark of UTF-16; JSON Lines are UTF-8, convert the file".into()
        }
        bytes => {
            let at = error.utf8_error().valid_up_to();
            format!("byte 0x{:02x} in column {} is no UTF-8", bytes[at], at + 1)
        }
    }
}

/// The one object of a line.
fn object(line: &str) -> Result<Map<String, Value>, String> {
    let field = RefCell::new(None);
    let mut json = serde_json::Deserializer::from_str(line);
    let object = Object { field: &field }.deserialize(&mut json).map_err(|error| told(&error, field.take()))?;
    json.end().map_err(|error| format!("text after the object, in column {}", error.column()))?;
    Ok(object)
}

/// The error of the reader, in words, with its field.
fn told(error: &serde_json::Error, field: Option<String>) -> String {
    let text = error.to_string();
    let what = match text.split_once(" at line ") {
        Some((what, _)) => what,
        None => &text,
    };
    let column = match error.column() {
        0 => String::new(),
        column => format!(", in column {column}"),
    };
    let place = field.map(|name| format!("field {name:?}: ")).unwrap_or_default();
    if what.contains("surrogate") || what.contains("hex escape") {
        return format!("{place}half of a surrogate pair is no character{column}; value_base64 takes any bytes");
    }
    if what.starts_with("invalid type") && place.is_empty() {
        return format!("not a JSON object{column}");
    }
    match what {
        "EOF while parsing a value" if place.is_empty() => "not a JSON object".into(),
        "expected value" | "expected ident" if place.is_empty() => "not a JSON object".into(),
        _ if error.is_eof() => format!("{place}ends in the middle of the object{column}"),
        _ => format!("{place}{what}{column}"),
    }
}

/// Reads an object in which no name occurs twice; `field` is the one that is being read.
struct Object<'a> {
    field: &'a RefCell<Option<String>>,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Map<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, formatter: &mut Formatter<'_>) -> Formatted {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            self.field.replace(Some(name.clone()));
            if object.contains_key(&name) {
                return Err(A::Error::custom("occurs twice"));
            }
            let value = fields.next_value()?;
            object.insert(name, value);
            self.field.take();
        }
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        record(line, true, KeyKind::Bytes).unwrap_err()
    }

    /// Goal:   each fault of a line has a message of its own, which names the field; lines without one are read.
    /// Method: byte order marks, halves of surrogate pairs, text after the object, names that exist twice, wrong types,
    ///         objects that end early, in keys and in values.
    #[test]
    fn each_fault_has_its_words() {
        for (line, words) in [
            ("\u{feff}{\"key\":\"a\",\"value\":\"b\"}", "begins with a byte order mark (U+FEFF)"),
            (r#"{"key":"a","value":"\ud800"}"#, "field \"value\": half of a surrogate pair"),
            (r#"{"key":"a","value":"\ud800\u0041"}"#, "field \"value\": half of a surrogate pair"),
            (r#"{"key":"a","value":"\udc00x"}"#, "field \"value\": half of a surrogate pair"),
            (r#"{"key":"\udbff","value":"b"}"#, "field \"key\": half of a surrogate pair"),
            (r#"{"key":"a","value":"b"} x"#, "text after the object, in column 25"),
            (r#"{"key":"a","value":"b"}{"key":"c","value":"d"}"#, "text after the object, in column 24"),
            (r#"{"key":"a","key":"b","value":"c"}"#, "field \"key\": occurs twice"),
            (r#"{"key":"a","value":"b","value":"b"}"#, "field \"value\": occurs twice"),
            (r#"{"key":"a","x":1,"x":1,"value":"b"}"#, "field \"x\": occurs twice"),
            (r#"{"key":"a","value":"b""#, "ends in the middle of the object"),
            (r#"{"key":"a","value":"b"#, "field \"value\": ends in the middle of the object"),
            (r#"{"key":"a","value":"\x"}"#, "field \"value\": invalid escape"),
            ("[1]", "not a JSON object"),
            ("7", "not a JSON object"),
            ("rubbish", "not a JSON object"),
            (r#"{"key":1.5,"value":"b"}"#, "field \"key\": "),
            (r#"{"key":null,"value":"b"}"#, "field \"key\": "),
            (r#"{"key_u64":-1,"value":"b"}"#, "field \"key_u64\": "),
            (r#"{"key_u64":"1","value":"b"}"#, "field \"key_u64\": "),
            (r#"{"key_hex":"abc","value":"b"}"#, "field \"key_hex\": "),
            (r#"{"key":"","value":"b"}"#, "field \"key\": "),
            (r#"{"key":"a","key_hex":"00","value":"b"}"#, "fields \"key\" and \"key_hex\""),
            (r#"{"value":"b"}"#, "no key"),
            (r#"{"key":"a","value":7}"#, "field \"value\": "),
            (r#"{"key":"a","value_base64":"?"}"#, "field \"value_base64\": "),
            (r#"{"key":"a","value":"b","value_base64":""}"#, "fields \"value\" and \"value_base64\""),
            (r#"{"key":"a"}"#, "no value"),
        ] {
            let said = said(line);
            assert!(said.contains(words), "{line}: {said}");
        }
        for line in [
            r#" {"key":"a","value":"😀","more":[1,{"a":1}]} "#,
            r#"{"key_hex":"00","value_base64":""}"#,
            "{\"key\":\"a\",\"value\":\"b\"}\r",
        ] {
            assert!(record(line, true, KeyKind::Bytes).is_ok(), "{line}");
        }
    }

    /// Goal:   bytes that are no UTF-8 are named with their column, UTF-16 by its name.
    /// Method: a byte in the middle, both byte order marks.
    #[test]
    fn other_encodings_are_named() {
        let said = |bytes: &[u8]| not_utf8(&String::from_utf8(bytes.to_vec()).unwrap_err());
        assert_eq!(said(b"{\"key\xff"), "byte 0xff in column 6 is no UTF-8");
        assert!(said(b"\xff\xfe{\0").contains("UTF-16") && said(b"\xfe\xff\0{").contains("UTF-16"));
    }
}
