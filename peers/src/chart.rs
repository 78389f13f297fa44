//! The comparison as a picture: a bar for each engine, as long as its rate.

use crate::compare::Comparison;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
/// Names stand left of the bars, figures right of them.
const NAME_WIDTH: f64 = 110.0;
const FIGURE_WIDTH: f64 = 190.0;
const TOP: f64 = 64.0;
const BAR: f64 = 22.0;
const STEP: f64 = 34.0;

/// An SVG document. Bars are medians; the thin line on each reaches from the slowest to the fastest run.
pub(crate) fn svg(comparison: &Comparison) -> String {
    let runs = |row: &crate::compare::Row| row.outcomes.iter().map(|o| o.operations_per_s).collect::<Vec<f64>>();
    let longest = comparison.rows.iter().flat_map(runs).fold(1.0, f64::max);
    let scale = (WIDTH - NAME_WIDTH - FIGURE_WIDTH) / longest;
    let height = TOP + STEP * comparison.rows.len() as f64 + 12.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"16\">{}, {} threads</text>\n\
         <text x=\"12\" y=\"44\" fill=\"#555\">operations per second; a flush per commit; cache {} MiB of {} MiB</text>\n",
        escaped(&comparison.workload),
        comparison.threads,
        comparison.cache_bytes >> 20,
        comparison.data_bytes >> 20,
    );
    for (at, row) in comparison.rows.iter().enumerate() {
        let (y, runs) = (TOP + STEP * at as f64, runs(row));
        let low = runs.iter().copied().fold(f64::INFINITY, f64::min).min(longest);
        let high = runs.iter().copied().fold(0.0, f64::max);
        let fill = if row.engine.starts_with("kaml") { "#1f6f8b" } else { "#9aa5b1" };
        let (x, middle, text) = (NAME_WIDTH, y + BAR / 2.0, y + BAR * 0.7);
        let (low, high, bar) = (x + low * scale, x + high * scale, row.operations_per_s * scale);
        let p99 = row.outcomes.iter().map(|outcome| outcome.latency.p99_ns).max().unwrap_or(0) as f64 / 1e6;
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{x}\" y=\"{y}\" width=\"{bar:.1}\" height=\"{BAR}\" fill=\"{fill}\"/>\n\
             <line x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\" stroke=\"#222\"/>\n\
             <text x=\"{:.1}\" y=\"{text:.1}\">{:.0} /s, p99 at most {p99:.2} ms</text>",
            x - 8.0,
            escaped(&row.engine),
            high.max(x + bar) + 8.0,
            row.operations_per_s,
        );
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
