//! How `kaml top` looks.
//!
//! Lives here:       lines for a terminal of any width, and the one line where there is no terminal.
//! Lives elsewhere:  the figures (`figures`).
//! May be called by: `top`.

use super::figures::{Commands, Figures};
use crate::output::Paint;
use crate::size;
use serde_json::Value;

/// Rows that the map of blocks takes at most.
const MAP_ROWS: usize = 6;
/// Namespaces and hosts that are listed.
const LISTED: usize = 8;
/// Columns of a label.
const LABEL: usize = 12;

/// A row that grows piece by piece: its text with colours, and the columns it takes.
struct Row {
    text: String,
    columns: usize,
    width: usize,
}

impl Row {
    fn new(width: usize) -> Row {
        Row { text: String::new(), columns: 0, width }
    }

    fn labelled(width: usize, label: &str, paint: Paint) -> Row {
        let mut line = Row::new(width);
        line.add(&format!("{label:<LABEL$}"), |text| paint.dim(text));
        line
    }

    /// Adds as much of a text as fits. Names can have control characters in them, which a terminal would obey.
    fn add(&mut self, text: &str, paint: impl Fn(&str) -> String) {
        let shown: String = text.chars().take(self.width - self.columns).map(visible).collect();
        self.columns += shown.chars().count();
        self.text += &paint(&shown);
    }

    fn plain(&mut self, text: &str) {
        self.add(text, str::to_owned);
    }
}

fn visible(c: char) -> char {
    if c.is_control() { '?' } else { c }
}

fn rate_or_count(commands: &Commands) -> String {
    match commands.per_second {
        Some(rate) => size::show_rate(rate),
        None => size::show_count(commands.count),
    }
}

fn bytes_rate(per_second: f64) -> String {
    format!("{}/s", size::show(per_second as u64))
}

/// Seconds of a day in UTC.
fn time_of_day(ms: u64) -> String {
    let seconds = ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

const PUTS: [&str; 2] = ["/stats/put_count", "/latency/put"];
const GETS: [&str; 2] = ["/stats/get_count", "/latency/get"];
const COMMITS: [&str; 2] = ["/activity/commit_count", "/latency/commit"];

/// One line about everything, for a log or a pipe.
pub fn line(figures: &Figures) -> String {
    let mut parts = vec![time_of_day(figures.number("/time_ms").unwrap_or(0))];
    for (name, [counter, histogram]) in [("puts", PUTS), ("gets", GETS)] {
        if let Some(commands) = figures.commands(counter, histogram) {
            let p99 = commands.p99_ns.map_or(String::new(), |ns| format!(" p99 {}", size::show_ns(ns)));
            parts.push(format!("{name} {}{p99}", rate_or_count(&commands)));
        }
    }
    if let (Some(live), Some(capacity)) = (figures.number("/stats/live_bytes"), figures.number("/stats/capacity_bytes"))
    {
        parts.push(format!("live {} of {}", size::show(live), size::show(capacity)));
    }
    if let Some(free) = figures.number("/stats/free_blocks") {
        parts.push(format!("free blocks {free}"));
    }
    if figures.is("/activity/collection/is_running") {
        parts.push("collecting".to_owned());
    }
    if figures.is("/is_stopped") {
        parts.push(format!("STOPPED: {}", figures.text("/stopped").chars().map(visible).collect::<String>()));
    }
    parts.join("  ")
}

/// Everything, for a terminal of so many columns.
pub fn page(figures: &Figures, width: usize, paint: Paint) -> Vec<String> {
    let mut lines = vec![title(figures, width, paint)];
    if figures.is("/is_stopped") {
        let mut stopped = Row::new(width);
        stopped.add(&format!("takes no more changes: {}", figures.text("/stopped")), |text| paint.bad(text));
        lines.push(stopped);
    }
    lines.push(Row::new(width));
    for (name, [counter, histogram]) in [("puts", PUTS), ("gets", GETS), ("commits", COMMITS)] {
        lines.extend(figures.commands(counter, histogram).map(|found| commands(name, &found, width, paint)));
    }
    lines.push(Row::new(width));
    lines.extend(space(figures, width, paint));
    lines.extend(written(figures, width, paint));
    lines.extend(collection(figures, width, paint));
    lines.extend(map(figures, width, paint));
    lines.extend(hosts(figures, width, paint));
    lines.extend(namespaces(figures, width, paint));
    lines.into_iter().map(|line| line.text).collect()
}

fn title(figures: &Figures, width: usize, paint: Paint) -> Row {
    let mut line = Row::new(width);
    let path = figures.text("/device/path");
    line.add(if path.is_empty() { "a device in memory" } else { path }, |text| paint.bold(text));
    let durability = figures.text("/device/durability");
    if !durability.is_empty() {
        line.plain(&format!("  {durability}"));
    }
    line.plain(&format!("  {}", time_of_day(figures.number("/time_ms").unwrap_or(0))));
    line.add("  q quits", |text| paint.dim(text));
    line
}

fn commands(name: &str, found: &Commands, width: usize, paint: Paint) -> Row {
    let mut line = Row::labelled(width, name, paint);
    line.add(&format!("{:>12}", rate_or_count(found)), |text| paint.figure(text));
    for (quantile, ns) in [("p50", found.p50_ns), ("p99", found.p99_ns)] {
        if let Some(ns) = ns {
            line.plain(&format!("   {quantile} {:>8}", size::show_ns(ns)));
        }
    }
    line
}

fn space(figures: &Figures, width: usize, paint: Paint) -> Option<Row> {
    let (live, capacity) = (figures.number("/stats/live_bytes")?, figures.number("/stats/capacity_bytes")?);
    let share = live as f64 / capacity.max(1) as f64;
    let filled = ((share * 20.0).round() as usize).min(20);
    let mut line = Row::labelled(width, "space", paint);
    let bar = format!("{}{}", "#".repeat(filled), ".".repeat(20 - filled));
    line.add(&bar, |text| if share > 0.9 { paint.bad(text) } else { paint.good(text) });
    line.plain(&format!("  {} of {} live ({:.0} %)", size::show(live), size::show(capacity), share * 100.0));
    if let Some(free) = figures.number("/stats/free_blocks") {
        line.plain(&format!("   free blocks {free}"));
    }
    if let Some(bad) = figures.number("/stats/bad_blocks").filter(|bad| *bad > 0) {
        line.add(&format!("   bad blocks {bad}"), |text| paint.bad(text));
    }
    Some(line)
}

fn written(figures: &Figures, width: usize, paint: Paint) -> Option<Row> {
    let mut line = Row::labelled(width, "written", paint);
    let parts = [("hosts", "/stats/host_bytes"), ("ring", "/stats/ring_bytes"), ("pages", "/stats/page_bytes")];
    for (name, at) in parts.into_iter().chain([("moved", "/stats/relocated_bytes")]) {
        let shown = match figures.per_second(at) {
            Some(rate) => bytes_rate(rate),
            None => size::show(figures.number(at)?),
        };
        line.plain(&format!("{name} {shown:<12}"));
    }
    if let Some(ratio) = figures.ratio("/stats/write_amplification") {
        line.plain(&format!("write amplification {ratio:.2}"));
    }
    Some(line)
}

fn collection(figures: &Figures, width: usize, paint: Paint) -> Option<Row> {
    let at = |name: &str| format!("/activity/collection/{name}");
    let draining = figures.number(&at("draining_blocks"))?;
    let mut line = Row::labelled(width, "collection", paint);
    match figures.is(&at("is_running")) {
        true => {
            line.add("running", |text| paint.figure(text));
            let moving = figures.number(&at("moving_records")).unwrap_or(0);
            line.plain(&format!(": {draining} blocks being emptied, {moving} records on their way"));
        }
        false => line.plain(&format!(
            "at rest until fewer than {} blocks are free",
            figures.number(&at("collect_below_blocks")).unwrap_or(0)
        )),
    }
    if figures.is(&at("is_pacing")) {
        line.add("; puts are paced", |text| paint.bad(text));
    }
    Some(line)
}

/// The map of blocks, a character each: cells are joined if they are too many.
fn map(figures: &Figures, width: usize, paint: Paint) -> Vec<Row> {
    let states: Vec<char> = figures.text("/blocks/cells/state").chars().collect();
    let room = width.saturating_sub(LABEL).max(1);
    if states.is_empty() {
        return Vec::new();
    }
    let joined = states.len().div_ceil(room * MAP_ROWS);
    let cells: Vec<char> = states.chunks(joined).map(|cells| glyph(cells[cells.len() / 2])).collect();
    let rows = cells.chunks(room).enumerate().map(|(row, cells)| {
        let mut line = Row::labelled(width, if row == 0 { "blocks" } else { "" }, paint);
        for run in cells.chunk_by(|one, other| one == other) {
            let text: String = run.iter().collect();
            line.add(&text, |text| match run[0] {
                '.' => paint.dim(text),
                'o' => paint.figure(text),
                'X' | 'm' => paint.bad(text),
                _ => paint.good(text),
            });
        }
        line
    });
    let mut lines: Vec<Row> = rows.collect();
    let mut legend = Row::labelled(width, "", paint);
    legend.add(". free  o open  # full  m being emptied  - empty  X bad", |text| paint.dim(text));
    lines.push(legend);
    lines
}

fn glyph(letter: char) -> char {
    match letter {
        'd' | 'e' | 'r' => '.',
        'o' => 'o',
        'f' => '#',
        'm' => 'm',
        'c' => '-',
        'b' => 'X',
        _ => '?',
    }
}

fn hosts(figures: &Figures, width: usize, paint: Paint) -> Vec<Row> {
    let hosts = figures.list("/hosts");
    let text = |host: &Value, field: &str| host.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let count = |host: &Value, field: &str| host.get(field).and_then(Value::as_u64).unwrap_or(0);
    let rows = hosts.iter().take(LISTED).enumerate().map(|(row, host)| {
        let mut line = Row::labelled(width, if row == 0 { "hosts" } else { "" }, paint);
        let commands = count(host, "command_count");
        let shown = figures.of_host(host).map_or_else(|| size::show_count(commands), size::show_rate);
        line.add(&format!("{shown:>12}"), |text| paint.figure(text));
        line.plain(&format!("   {} queues  {}  ", count(host, "queue_count"), text(host, "peer")));
        line.plain(&text(host, "name"));
        line
    });
    let more = hosts.len().saturating_sub(LISTED);
    rows.chain(and_more(more, width, paint)).collect()
}

fn namespaces(figures: &Figures, width: usize, paint: Paint) -> Vec<Row> {
    let mut spaces: Vec<&Value> = figures.list("/namespaces").iter().collect();
    let records = |space: &Value| space.get("record_count").and_then(Value::as_u64).unwrap_or(0);
    spaces.sort_by_key(|space| std::cmp::Reverse(records(space)));
    let rows = spaces.iter().take(LISTED).enumerate().map(|(row, space)| {
        let mut line = Row::labelled(width, if row == 0 { "namespaces" } else { "" }, paint);
        let text = |field: &str| space.get(field).and_then(Value::as_str).unwrap_or_default();
        line.add(&format!("{:>12}", size::show_count(records(space))), |text| paint.figure(text));
        let index = space.get("index_bytes").and_then(Value::as_u64).unwrap_or(0);
        line.plain(&format!("   index {:<9}  {:<8}  {}", size::show(index), text("kind"), text("name")));
        line
    });
    let count = figures.number("/namespace_count").unwrap_or(0) as usize;
    rows.chain(and_more(count.saturating_sub(LISTED), width, paint)).collect()
}

fn and_more(count: usize, width: usize, paint: Paint) -> Option<Row> {
    let mut line = Row::labelled(width, "", paint);
    line.add(&format!("and {count} more"), |text| paint.dim(text));
    (count > 0).then_some(line)
}
