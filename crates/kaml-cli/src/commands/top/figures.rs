//! What `kaml top` shows, computed from one state or two.
//!
//! Lives here:       rates, latencies of an interval, shares.
//! Lives elsewhere:  how it looks (`view`).
//! May be called by: `top`.
//!
//! A state is JSON that another version of KAML may have made, so a figure that is missing is not shown.

use serde_json::Value;

/// A device at a moment, and what has happened since the moment before, or since it was opened.
pub struct Figures<'a> {
    now: &'a Value,
    before: Option<&'a Value>,
}

/// Commands of one kind.
pub struct Commands {
    pub count: u64,
    pub per_second: Option<f64>,
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
}

impl<'a> Figures<'a> {
    /// The second state is the one before.
    pub fn of(now: &'a Value, before: Option<&'a Value>) -> Figures<'a> {
        // A device that was opened again has counted from 0.
        let count = |state: &Value| state.pointer("/stats/put_count").and_then(Value::as_u64);
        Figures { now, before: before.filter(|before| count(before) <= count(now)) }
    }

    /// A number of the state.
    pub fn number(&self, at: &str) -> Option<u64> {
        self.now.pointer(at)?.as_u64()
    }

    /// Whether something is so.
    pub fn is(&self, at: &str) -> bool {
        self.now.pointer(at).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A text of the state.
    pub fn text(&self, at: &str) -> &str {
        self.now.pointer(at).and_then(Value::as_str).unwrap_or_default()
    }

    /// A list of the state.
    pub fn list(&self, at: &str) -> &[Value] {
        self.now.pointer(at).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// A number that need not be whole.
    pub fn ratio(&self, at: &str) -> Option<f64> {
        self.now.pointer(at)?.as_f64()
    }

    fn seconds(&self) -> Option<f64> {
        let time = |state: &Value| state.pointer("/time_ms").and_then(Value::as_u64);
        let ms = time(self.now)?.checked_sub(time(self.before?)?)?;
        (ms > 0).then_some(ms as f64 / 1e3)
    }

    /// How much a counter has grown in each second.
    pub fn per_second(&self, at: &str) -> Option<f64> {
        let grown = self.number(at)?.checked_sub(self.before?.pointer(at)?.as_u64()?)?;
        Some(grown as f64 / self.seconds()?)
    }

    /// How many commands of a host there were in each second.
    pub fn of_host(&self, host: &Value) -> Option<f64> {
        let same = |other: &&Value| ["name", "controller"].iter().all(|field| other.get(field) == host.get(field));
        let before = self.before?.pointer("/hosts")?.as_array()?.iter().find(same)?;
        let count = |of: &Value| of.get("command_count").and_then(Value::as_u64);
        Some(count(host)?.checked_sub(count(before)?)? as f64 / self.seconds()?)
    }

    /// Commands by their counter and their histogram.
    pub fn commands(&self, counter: &str, histogram: &str) -> Option<Commands> {
        let count = self.number(counter)?;
        let per_second = self.per_second(counter);
        let [p50_ns, p99_ns] = [0.5, 0.99].map(|share| self.quantile(histogram, share));
        Some(Commands { count, per_second, p50_ns, p99_ns })
    }

    /// The latency below which a share of the commands is, estimated within its bucket.
    fn quantile(&self, histogram: &str, share: f64) -> Option<u64> {
        let numbers = |state: &Value, field: &str| -> Option<Vec<u64>> {
            state.pointer(histogram)?.get(field)?.as_array()?.iter().map(Value::as_u64).collect()
        };
        let bounds = numbers(self.now, "bounds_ns")?;
        let mut counts = numbers(self.now, "counts")?;
        if let Some(before) = self.before.and_then(|before| numbers(before, "counts")) {
            counts.iter_mut().zip(before).for_each(|(count, before)| *count = count.saturating_sub(before));
        }
        quantile(&bounds, &counts, share)
    }
}

/// The value below which a share of the counted ones is, if there are any.
fn quantile(bounds: &[u64], counts: &[u64], share: f64) -> Option<u64> {
    let total: u64 = counts.iter().sum();
    let wanted = share * total as f64;
    let mut below = 0.0;
    for (at, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let after = below + *count as f64;
        if after >= wanted {
            let low = at.checked_sub(1).and_then(|at| bounds.get(at)).copied().unwrap_or(0);
            let high = bounds.get(at).copied().unwrap_or(low);
            return Some(low + ((high - low) as f64 * (wanted - below) / *count as f64) as u64);
        }
        below = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Goal:   rates and latencies are those of the interval; a device that was opened again shows what has happened since.
    #[test]
    fn rates_of_an_interval() {
        let state = |ms: u64, puts: u64, counts: [u64; 3]| {
            json!({"time_ms": ms, "stats": {"put_count": puts},
                   "latency": {"put": {"bounds_ns": [1000, 2000], "counts": counts, "sum_ns": 1}}})
        };
        let (before, now) = (state(1000, 100, [100, 0, 0]), state(3000, 300, [100, 200, 0]));
        let commands =
            |now, before| Figures::of(now, before).commands("/stats/put_count", "/latency/put").expect("it is known");
        let puts = commands(&now, Some(&before));
        assert_eq!((puts.per_second, puts.p50_ns, puts.p99_ns), (Some(100.0), Some(1500), Some(1990)));
        let puts = commands(&before, Some(&now));
        assert_eq!((puts.count, puts.per_second, puts.p50_ns), (100, None, Some(500)));
        assert_eq!(quantile(&[1000], &[0, 7], 0.5), Some(1000), "above all bounds");
        assert_eq!(quantile(&[1000], &[0, 0], 0.5), None);
        assert!(Figures::of(&json!({}), None).commands("/stats/put_count", "/latency/put").is_none());
    }
}
