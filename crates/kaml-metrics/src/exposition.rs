//! The Prometheus text format, version 0.0.4.
//!
//! Lives here:       writing the metrics of a state.
//! Lives elsewhere:  which there are (`catalog`).

use crate::catalog::{METRICS, Metric, Source};
use crate::state::State;
use serde_json::Value;
use std::fmt::Write;

/// A text that is being written. Writing to memory cannot fail.
struct Text(String);

impl State {
    /// All metrics as Prometheus text. A metric that is not known of this device is left out.
    pub fn prometheus(&self) -> String {
        let state = serde_json::to_value(self).unwrap_or_default();
        let mut text = Text(String::with_capacity(16 << 10));
        METRICS.iter().for_each(|metric| text.metric(metric, &state));
        text.0
    }
}

impl Text {
    fn metric(&mut self, metric: &Metric, state: &Value) {
        let before = self.0.len();
        let (name, kind) = (metric.name, metric.kind.name());
        let _ = write!(self.0, "# HELP {name} {}\n# TYPE {name} {kind}\n", metric.help);
        let head = self.0.len();
        self.samples(metric, state);
        if self.0.len() == head {
            self.0.truncate(before);
        }
    }

    fn samples(&mut self, metric: &Metric, state: &Value) {
        let name = metric.name;
        match metric.source {
            Source::One(at) => self.sample(name, &[], state.pointer(at)),
            Source::Nanoseconds(at) => {
                let seconds = state.pointer(at).and_then(Value::as_f64).map(|ns| Value::from(ns / 1e9));
                self.sample(name, &[], seconds.as_ref());
            }
            Source::Each(list, value, labels) => {
                for element in elements(state, list) {
                    // Without a pointer it is the element that counts.
                    let value = if value.is_empty() { Some(&Value::Bool(true)) } else { element.pointer(value) };
                    self.sample(name, &labels_of(element, labels), value);
                }
            }
            Source::EachOfEach([outer, inner], value, [of_outer, of_inner]) => {
                for one in elements(state, outer) {
                    for other in elements(one, inner) {
                        let labels = [labels_of(one, &[of_outer]), labels_of(other, &[of_inner])].concat();
                        self.sample(name, &labels, other.pointer(value));
                    }
                }
            }
            Source::Labels(at, labels) => {
                if let Some(found) = state.pointer(at) {
                    self.sample(name, &labels_of(found, labels), Some(&Value::Bool(true)));
                }
            }
            Source::Buckets(at) => self.buckets(name, state.pointer(at)),
        }
    }

    fn sample(&mut self, name: &str, labels: &[(&str, String)], value: Option<&Value>) {
        let number = match value {
            Some(Value::Bool(is)) => u8::from(*is).to_string(),
            Some(Value::Number(number)) => number.to_string(),
            _ => return,
        };
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"{}\"", if at == 0 { '{' } else { ',' }, escape(text));
        }
        let _ = writeln!(self.0, "{} {number}", if labels.is_empty() { "" } else { "}" });
    }

    fn buckets(&mut self, name: &str, histogram: Option<&Value>) {
        let Some(histogram) = histogram else { return };
        let numbers = |at| elements(histogram, at).map(|value| value.as_u64().unwrap_or(0));
        let mut total = 0;
        let bounds = numbers("/bounds_ns").map(|ns| (ns as f64 / 1e9).to_string()).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(numbers("/counts")) {
            total += count;
            let _ = writeln!(self.0, "{name}_bucket{{le=\"{bound}\"}} {total}");
        }
        let sum = histogram.get("sum_ns").and_then(Value::as_u64).unwrap_or(0) as f64 / 1e9;
        let _ = write!(self.0, "{name}_sum {sum}\n{name}_count {total}\n");
    }
}

/// The elements of an array; none if there is no array.
fn elements<'a>(of: &'a Value, at: &str) -> impl Iterator<Item = &'a Value> {
    of.pointer(at).and_then(Value::as_array).into_iter().flatten()
}

/// Labels that exist and are not empty, which is the same to a monitor.
fn labels_of<'a>(of: &Value, labels: &[(&'a str, &str)]) -> Vec<(&'a str, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let found = labels.iter().filter_map(|(label, at)| Some((*label, text(of.pointer(at)?))));
    found.filter(|(_, text)| !text.is_empty()).collect()
}

/// The value of a label: names may have quotation marks and line breaks in them.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Detail;
    use kaml::{CreateOptions, Device};
    use std::collections::BTreeSet;

    /// Every JSON pointer that a metric is read from, with the array that it is an element of.
    fn pointers() -> BTreeSet<String> {
        let of_labels = |at: &str, labels: &[(&str, &str)]| -> Vec<String> {
            labels.iter().map(|(_, label)| format!("{at}{label}")).collect()
        };
        let of = |metric: &Metric| match metric.source {
            Source::One(at) | Source::Nanoseconds(at) | Source::Buckets(at) => vec![at.to_owned()],
            Source::Each(list, value, labels) => [of_labels(list, labels), vec![format!("{list}{value}")]].concat(),
            Source::EachOfEach([outer, inner], value, [_, (_, label)]) => {
                vec![format!("{outer}{inner}{value}"), format!("{outer}{inner}{label}")]
            }
            Source::Labels(at, labels) => of_labels(at, labels),
        };
        METRICS.iter().flat_map(of).collect()
    }

    /// Goal:   everything that is known of a device is in a metric: a field that is added to what `kaml info` prints must get one.
    /// Method: the fields of `DeviceInfo`, `Stats`, the activity and the snapshots, against what the metrics are read from.
    #[test]
    fn everything_is_in_a_metric() {
        let device = Device::in_memory(&CreateOptions::new(64 << 20)).expect("memory does not fail");
        let state = serde_json::to_value(State::of(&device, Detail::Figures)).expect("it is JSON");
        let known = pointers();
        // Their counts are in the histograms.
        let elsewhere =
            ["/stats/put_latency", "/stats/get_latency", "/stats/block_count", "/activity/merging_namespace"];
        let lists = ["/activity/collection", "/activity/logs", "/activity/collection/victim"];
        for part in ["/device", "/stats", "/snapshots", "/activity", "/activity/collection"] {
            for field in state.pointer(part).and_then(Value::as_object).expect("it has fields").keys() {
                let at = format!("{part}/{field}");
                let is_known = known.contains(&at) || elsewhere.contains(&at.as_str()) || lists.contains(&at.as_str());
                assert!(is_known, "{at} is in no metric: add one to catalog.rs and to docs/metrics.md");
            }
        }
    }

    /// Goal:   a metric has a sample if and only if its figure exists; names of all kinds become labels that can be read back.
    #[test]
    fn labels_and_missing_figures() {
        let parts = State::of_parts(serde_json::json!({"path": "a\"b\\c\nd"}), Value::Null, &[]);
        let text = parts.prometheus();
        assert!(text.contains("kaml_device_info{path=\"a\\\"b\\\\c\\nd\"} 1\n"), "{text}");
        assert!(!text.contains("kaml_puts_total") && !text.contains("kaml_put_duration"), "{text}");
    }
}
