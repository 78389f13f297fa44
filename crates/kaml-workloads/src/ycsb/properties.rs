//! Java property files, the format of YCSB's workloads.
//!
//! Lives here:       reading them as `java.util.Properties` does: comments, separators, continued lines, escapes.
//! Lives elsewhere:  what the properties mean (`settings`).

use std::collections::BTreeMap;

/// Names and values; of a name that exists twice, the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    values: BTreeMap<String, String>,
}

/// Not a property file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PropertiesError {
    /// An escape that means no character.
    #[error("line {line}: \\u must be followed by the four hexadecimal digits of a character")]
    Escape {
        /// Counted from 1; of a continued line, its first.
        line: usize,
    },
}

impl Properties {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Properties, PropertiesError> {
        let mut properties = Properties::default();
        for (line, content) in logical_lines(text) {
            let (name, value) = split(&content);
            let unescape = |text| unescape(text).ok_or(PropertiesError::Escape { line });
            properties.values.insert(unescape(name)?, unescape(value)?);
        }
        Ok(properties)
    }

    /// Sets a property, as `-p name=value` does in YCSB.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.values.insert(name.into(), value.into());
    }

    /// A value, without the white space around it.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(|value| value.trim())
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }
}

/// Lines with content, continued ones joined, each with the number of its first.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let joined = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines = Vec::new();
    let mut natural = joined.split('\n').enumerate();
    while let Some((at, line)) = natural.next() {
        let line = line.trim_start_matches(is_blank);
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut content = line.to_owned();
        while ends_with_escape(&content) {
            content.pop();
            match natural.next() {
                Some((_, next)) => content.push_str(next.trim_start_matches(is_blank)),
                None => break,
            }
        }
        lines.push((at + 1, content));
    }
    lines
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\x0c')
}

/// Whether a backslash at the end continues the line: not if it is itself escaped.
fn ends_with_escape(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Name and value, both still escaped.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let ends = |c: char| {
        let end = !escaped && (is_blank(c) || c == '=' || c == ':');
        escaped = !escaped && c == '\\';
        end
    };
    let (name, rest) = line.split_at(line.find(ends).unwrap_or(line.len()));
    let rest = rest.trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (name, rest.trim_start_matches(is_blank))
}

/// Characters for escapes. Two `\u` may be the halves of one character, so the text goes through UTF-16 as in Java.
fn unescape(text: &str) -> Option<String> {
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        let c = if c == '\\' { characters.next() } else { None }.map_or(Ok(c), Err);
        match c {
            Ok(plain) => units.extend_from_slice(plain.encode_utf16(&mut [0; 2])),
            Err('u') => units.push(hexadecimal(&mut characters)?),
            Err('t') => units.push(u16::from(b'\t')),
            Err('n') => units.push(u16::from(b'\n')),
            Err('r') => units.push(u16::from(b'\r')),
            Err('f') => units.push(0x0c),
            Err(other) => units.extend_from_slice(other.encode_utf16(&mut [0; 2])),
        }
    }
    String::from_utf16(&units).ok()
}

fn hexadecimal(characters: &mut std::str::Chars<'_>) -> Option<u16> {
    (0..4).try_fold(0u16, |value, _| Some(value << 4 | characters.next()?.to_digit(16)? as u16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        Properties::parse(text).unwrap().values.into_iter().collect()
    }

    /// Goal:   everything that Java reads in a property file is read alike.
    /// Method: one line for each rule of `java.util.Properties.load`.
    #[test]
    fn java_rules_hold() {
        let one = |text: &str| pairs(text).into_iter().next().unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        for text in ["a=b", "a = b", "  a:b", "a b", "a\t:  b", "#c\n!c\n\n a=b", "a=\\\n   b", "\\u0061=\\u0062"] {
            assert_eq!(one(text), pair("a", "b"), "{text:?}");
        }
        assert_eq!(one("a"), pair("a", ""));
        assert_eq!(one("a b=c"), pair("a", "b=c"));
        assert_eq!(one("a\\=b\\:c\\ d=e"), pair("a=b:c d", "e"));
        assert_eq!(one("a=x\\ty\\\\"), pair("a", "x\ty\\"));
        assert_eq!(one("a=b\\\\\nc=d"), pair("a", "b\\"));
        assert_eq!(one("a=1\\\n#2"), pair("a", "1#2"));
        assert_eq!(one("a=\\ud83d\\ude00"), pair("a", "\u{1f600}"));
        assert_eq!(pairs("a=1\r\nb=2\ra=3").len(), 2);
        assert_eq!(Properties::parse("x=1\n\na=\\u12"), Err(PropertiesError::Escape { line: 3 }));
        assert_eq!(Properties::parse("a=\\ud83d"), Err(PropertiesError::Escape { line: 1 }));
    }

    fn escape(text: &str) -> String {
        text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
    }

    proptest! {
        /// Goal:   no text whatever makes the parser fail in another way than documented.
        /// Method: random text, rich in characters that mean something.
        #[test]
        fn any_text_is_taken_or_refused(text in "([\\\\#!=: \t\r\nu0-9a-f]|\\PC){0,200}") {
            let _ = Properties::parse(&text);
        }

        /// Goal:   any name and value can be written and comes back.
        /// Method: random pairs, escaped; compare.
        #[test]
        fn what_is_escaped_comes_back(name in "\\PC{1,20}", value in "(?s).{0,40}") {
            let parsed = pairs(&format!("# first\n{} : {}\nlast=1", escape(&name), escape(&value)));
            prop_assert!(parsed.contains(&(name, value)));
        }
    }
}
