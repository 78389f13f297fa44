//! The text that Prometheus reads, and the page that lists it.

use kaml::{Batch, BlockOptions, CreateOptions, Device, KeyKind, NamespaceKind, NamespaceOptions};
use kaml_metrics::{Detail, Host, METRICS, MetricKind, State};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

/// A device with namespaces of several kinds and some work done, and a host with an awkward name.
fn state() -> State {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let users = device.create_namespace("users \"\\", &NamespaceOptions::default()).unwrap();
    let ordered = NamespaceOptions::records(KeyKind::Ordered);
    device.create_namespace("ordered", &ordered).unwrap();
    let disk = BlockOptions { block_bytes: 4096, unit_bytes: 4096, block_count: 1000 };
    device.create_namespace("disk", &NamespaceOptions::new(NamespaceKind::Blocks(disk))).unwrap();
    for key in 0..100u64 {
        let mut batch = Batch::new();
        batch.put(users, key, &[1; 1000]);
        device.write(&batch).unwrap();
        device.get(users, key).unwrap().unwrap();
    }
    let host = Host {
        name: "nqn.2026-11.example:a\"\n".into(),
        controller: 1,
        peer: "192.0.2.1:4711".into(),
        queue_count: 2,
        command_count: 17,
        connected_seconds: 5,
    };
    State::of(&device, Detail::Figures).with_hosts(vec![host])
}

/// Labels, and the value. The label without a name is what follows the name of the metric.
type Sample = (BTreeMap<String, String>, f64);

/// The samples of each metric, with labels, as a strict reader sees them. Panics where the text breaks a rule of the format.
fn read(text: &str) -> BTreeMap<String, Vec<Sample>> {
    assert!(text.ends_with('\n'));
    let (mut samples, mut current) = (BTreeMap::<String, Vec<_>>::new(), String::new());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(!help.is_empty() && !samples.contains_key(name), "{line}");
            let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            current = name.to_owned();
            samples.insert(current.clone(), Vec::new());
            continue;
        }
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let suffixes = ["", "_bucket", "_sum", "_count"];
        assert!(suffixes.iter().any(|suffix| format!("{current}{suffix}") == name), "{line} is not under its head");
        let mut labels = BTreeMap::new();
        let mut rest = rest;
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                let (label, after) = rest.split_once("=\"").unwrap();
                let (mut value, mut chars) = (String::new(), after.char_indices());
                let end = loop {
                    match chars.next().unwrap() {
                        (at, '"') => break at,
                        (_, '\\') => value.push(match chars.next().unwrap().1 {
                            'n' => '\n',
                            c @ ('"' | '\\') => c,
                            c => panic!("\\{c} in {line}"),
                        }),
                        (_, c) => value.push(c),
                    }
                };
                assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
                rest = &after[end + 1..];
                match rest.strip_prefix(',') {
                    Some(more) => rest = more,
                    None => break,
                }
            }
            rest = rest.strip_prefix('}').unwrap();
        }
        let value: f64 = rest.strip_prefix(' ').unwrap().parse().unwrap();
        let of = samples.get_mut(&current).unwrap();
        labels.insert("".into(), name[current.len()..].to_owned());
        assert!(!of.iter().any(|(other, _)| *other == labels), "{line} comes twice");
        of.push((labels, value));
    }
    samples
}

/// Goal:   the text follows the format; each metric of a device that is served is in it once, with a help and a type; values are right.
/// Method: a device after 100 puts and gets, its text read by a strict reader of the test's own, and by `promtool` where it is installed.
#[test]
fn text_follows_the_format() {
    let text = state().prometheus();
    let samples = read(&text);
    let value = |name: &str| samples[name][0].1;
    assert_eq!((value("kaml_puts_total"), value("kaml_gets_total"), value("kaml_stopped")), (100.0, 100.0, 0.0));
    assert_eq!(value("kaml_host_written_bytes_total"), 100_000.0);
    assert_eq!(samples["kaml_namespace_records"].len(), 3);
    let users = samples["kaml_namespace_records"].iter().find(|(labels, _)| labels["namespace"] == "users \"\\");
    assert_eq!(users.unwrap().1, 100.0);
    assert_eq!(samples["kaml_blocks"].iter().map(|(_, count)| count).sum::<f64>(), value("kaml_erase_blocks"));
    // A device in memory, used by this program, has neither.
    let absent = ["kaml_transfer_max_bytes", "kaml_file_bytes", "kaml_grow_limit_bytes"];
    for metric in METRICS.iter().filter(|metric| !absent.contains(&metric.name)) {
        let found = samples.get(metric.name).unwrap_or_else(|| panic!("{} is missing", metric.name));
        assert!(!found.is_empty(), "{} has no samples", metric.name);
        if metric.kind == MetricKind::Histogram {
            let buckets: Vec<f64> = found.iter().filter(|(l, _)| l[""] == "_bucket").map(|(_, v)| *v).collect();
            assert!(buckets.is_sorted() && buckets.len() == 23, "{}: {buckets:?}", metric.name);
            let last = found.iter().find(|(labels, _)| labels.get("le").is_some_and(|le| le == "+Inf")).unwrap().1;
            assert_eq!(last, found.iter().find(|(labels, _)| labels[""] == "_count").unwrap().1);
        }
    }
    assert_eq!(samples["kaml_put_duration_seconds"].last().unwrap().1, 100.0);

    let promtool =
        Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut promtool) = promtool else {
        eprintln!("promtool is not installed; the text was not checked by it");
        return;
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Goal:   names follow the conventions of Prometheus, and docs/metrics.md lists exactly what is written, with kind, unit and meaning.
/// Method: the page's rows against the table in the source.
#[test]
fn the_page_lists_all_metrics() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md")).unwrap();
    let rows: BTreeSet<&str> = page.lines().filter(|line| line.starts_with("| `kaml_")).collect();
    let expected: Vec<String> = METRICS
        .iter()
        .map(|m| format!("| `{}` | {} | {} | {} |", m.name, m.kind.name(), m.unit, m.help.trim_end_matches('.')))
        .collect();
    for row in &expected {
        assert!(rows.contains(row.as_str()), "docs/metrics.md lacks this row:\n{row}");
    }
    assert_eq!(rows.len(), expected.len(), "docs/metrics.md lists a metric that does not exist");
    for metric in METRICS {
        let is_total = metric.name.ends_with("_total");
        assert_eq!(is_total, metric.kind == MetricKind::Counter, "{}: counters end with _total", metric.name);
        let unit = metric.name.trim_end_matches("_total");
        assert_eq!(metric.unit == "bytes", unit.ends_with("bytes"), "{}: bytes are in the name", metric.name);
        assert_eq!(metric.unit == "seconds", unit.ends_with("seconds"), "{}: seconds are in the name", metric.name);
        let is_name = metric.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        assert!(is_name && metric.help.ends_with('.'), "{}", metric.name);
    }
}
