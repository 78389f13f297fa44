//! Times to live on the command line: `500ms`, `90s`, `15m`, `1h`, `7d`.
//!
//! Lives here:       reading them, showing them, and what a served device cannot do.
//! Lives elsewhere:  what expires (`kaml`).

use crate::failure::Failure;
use crate::place::Place;
use kaml::Device;
use std::time::Duration;

/// The units and their milliseconds, the longest one first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// A whole number and a unit; none if the text is something else.
pub fn time(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*millis).map(Duration::from_millis)
}

/// A time to live.
pub fn parse(text: &str) -> Result<Duration, String> {
    match time(text) {
        Some(Duration::ZERO) => Err("a time to live is at least 1ms".to_owned()),
        Some(time) => Ok(time),
        None => {
            Err(format!("`{text}` is no time to live: write a whole number and ms, s, m, h or d, such as 90s or 7d"))
        }
    }
}

/// In the longest unit that fits.
pub fn show(millis: u64) -> String {
    let fits = UNITS.iter().find(|(_, unit)| millis.is_multiple_of(*unit));
    fits.map_or_else(|| format!("{millis}ms"), |(name, unit)| format!("{}{name}", millis / unit))
}

/// The device itself, which alone knows of `what`.
pub fn local<'a>(place: &'a dyn Place, what: &str) -> Result<&'a Device, Failure> {
    let remedy = || Failure::Usage(format!("{what} is not possible over the network; run it where the device is"));
    place.local().ok_or_else(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   times are read with every unit, shown as they were written, and refused if they are none.
    /// Method: one of each.
    #[test]
    fn times_are_read() {
        for (text, millis) in
            [("500ms", 500), ("90s", 90_000), ("15m", 900_000), ("1h", 3_600_000), ("7d", 604_800_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)));
            assert_eq!(show(millis), text);
        }
        assert_eq!(show(3_600_001), "3600001ms");
        for wrong in ["", "5", "h", "1.5h", "-1s", "1y", "0s", "1 h", "99999999999999999d"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
