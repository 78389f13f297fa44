//! Sizes as people write them: `512`, `64KiB`, `1.5G`, `20GB`.
//!
//! Lives here:       reading and showing sizes.
//!
//! `K M G T` and `KiB MiB GiB TiB` are powers of 1024, `kB MB GB TB` powers of 1000; letters may be of either case. Parts of a
//! byte are dropped: `1.1G` is what comes closest below.

/// Not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a size; write for example 512, 64KiB, 1.5G or 20GB")]
pub struct SizeError {
    text: String,
}

/// Reads a size in bytes.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let error = || SizeError { text: text.to_owned() };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number = number.replace('_', "");
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(error()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, "0"));
    let (whole, decimals) = (whole.parse::<u64>().map_err(|_| error())?, fraction.len() as u32);
    let fraction = u128::from(fraction.parse::<u64>().map_err(|_| error())?) * u128::from(factor);
    if factor == 1 && fraction > 0 {
        return Err(error()); // there are no parts of bytes
    }
    let fraction = fraction / 10u128.checked_pow(decimals).ok_or_else(error)?;
    whole.checked_mul(factor).and_then(|bytes| bytes.checked_add(fraction as u64)).ok_or_else(error)
}

/// Shows bytes with three digits: `1.50 GiB`.
pub fn show(bytes: u64) -> String {
    let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, factor)| bytes >= *factor) {
        Some((unit, factor)) => format!("{} {unit}", digits(bytes as f64 / factor as f64)),
        None => format!("{bytes} B"),
    }
}

/// Shows a count per second: `385 K/s`.
pub fn show_rate(per_s: f64) -> String {
    let (value, unit) = match per_s {
        v if v >= 1e6 => (v / 1e6, " M/s"),
        v if v >= 1e3 => (v / 1e3, " K/s"),
        v => (v, "/s"),
    };
    format!("{}{unit}", digits(value))
}

/// Shows nanoseconds: `36.4 µs`.
pub fn show_ns(ns: u64) -> String {
    let (value, unit) = match ns as f64 {
        v if v >= 1e9 => (v / 1e9, "s"),
        v if v >= 1e6 => (v / 1e6, "ms"),
        v if v >= 1e3 => (v / 1e3, "µs"),
        v => (v, "ns"),
    };
    format!("{} {unit}", digits(value))
}

/// Shows a count with thin groups: `12 345 678`.
pub fn show_count(count: u64) -> String {
    let text = count.to_string();
    let groups: Vec<&str> =
        text.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(" ")
}

/// Shows a number with at least three digits.
pub fn show_number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 { format!("{value}") } else { digits(value) }
}

/// Three digits of a number.
fn digits(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 0.1 || v <= 0.0 => format!("{v:.2}"),
        v => format!("{v:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   sizes are read as documented, and nothing else is taken for one.
    /// Method: one of each form; then rubbish, fractions of a byte, and overflow.
    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512 B", 512),
            ("64KiB", 65_536),
            ("64k", 65_536),
            ("1.5G", 3 << 29),
            ("20GB", 20_000_000_000),
            ("1_000", 1000),
            ("200g", 200 << 30),
            ("2TiB", 2 << 40),
            ("1.1G", 1_181_116_006),
            ("2.01kB", 2010),
            ("4.1GB", 4_100_000_000),
            ("0.5k", 512),
            ("1.0", 1),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "G", "-1", "1.5", "1x", "12 34", "1.2.3", "99999999999T", "NaN", "inf", ".5G", "1.G", "1.+5G", "+1"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    /// Goal:   what is shown is short and right.
    /// Method: values around the borders of units.
    #[test]
    fn numbers_are_shown() {
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(1536), "1.50 KiB");
        assert_eq!(show(200 << 30), "200 GiB");
        assert_eq!(show_rate(384_900.0), "385 K/s");
        assert_eq!(show_ns(36_420), "36.4 µs");
        assert_eq!(show_count(12_345_678), "12 345 678");
        assert_eq!(show_count(7), "7");
    }
}
