//! Pictures as SVG: panels of grouped bars or of lines over categories.
//!
//! Lives here:       axes, marks, legends.
//! Lives elsewhere:  what is shown (`micro`, `logs`, `collection`).
//!
//! Numbers are written with fixed digits, so the same figures give the same bytes.

use std::fmt::Write;

/// How a panel shows its series.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Marks {
    Bars,
    Lines,
}

/// Figures of one kind over all categories; nothing where there is none.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) values: Vec<Option<f64>>,
}

/// One pair of axes.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) marks: Marks,
    pub(crate) categories: Vec<String>,
    pub(crate) series: Vec<Series>,
}

/// Panels side by side with one legend.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// Under the title: what was run.
    pub(crate) subtitle: String,
    pub(crate) panels: Vec<Panel>,
}

const PANEL_WIDTH: f64 = 360.0;
const PLOT_HEIGHT: f64 = 230.0;
/// Room of a panel left of the plot, for its numbers, and right of it.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
/// Room above the plots, for titles and legend, and below, for categories.
const ABOVE: f64 = 118.0;
const BELOW: f64 = 48.0;
/// Height of an entry of the legend, and its width by letters: no renderer is asked.
const LEGEND_LINE: f64 = 18.0;
const LETTER: f64 = 6.6;
/// Distinct also without colour: they grow darker, the first is the baseline's.
const COLOURS: [&str; 8] = ["#b8c0c9", "#f2b134", "#6cb4a8", "#2f7fb5", "#8a5aa8", "#1d3557", "#d1495b", "#4f772d"];

impl Chart {
    /// The picture.
    pub(crate) fn svg(&self) -> String {
        let width = PANEL_WIDTH * self.panels.len() as f64 + 12.0;
        let height = ABOVE + PLOT_HEIGHT + BELOW;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\" fill=\"#222\">\n\
             <rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#fff\"/>\n"
        );
        text(&mut out, (14.0, 24.0), "font-size=\"16\" font-weight=\"bold\"", &self.title);
        text(&mut out, (14.0, 42.0), "fill=\"#666\"", &self.subtitle);
        self.legend(&mut out, width);
        let names = self.names();
        for (i, panel) in self.panels.iter().enumerate() {
            panel.draw(&mut out, PANEL_WIDTH * i as f64 + LEFT, &names);
        }
        out + "</svg>\n"
    }

    /// Names of all series, each once, in lines.
    fn legend(&self, out: &mut String, width: f64) {
        let (mut x, mut y) = (14.0, 62.0);
        for (i, name) in self.names().into_iter().enumerate() {
            let entry = 22.0 + LETTER * name.chars().count() as f64;
            if x + entry > width - RIGHT && x > 14.0 {
                (x, y) = (14.0, y + LEGEND_LINE);
            }
            let colour = colour(i);
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"11\" height=\"11\" rx=\"2\" fill=\"{colour}\"/>",
                y - 10.0
            );
            text(out, (x + 16.0, y), "", name);
            x += entry + 8.0;
        }
    }

    fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.contains(&series.name.as_str()) {
                names.push(series.name.as_str());
            }
        }
        names
    }
}

impl Panel {
    fn draw(&self, out: &mut String, left: f64, names: &[&str]) {
        let width = PANEL_WIDTH - LEFT - RIGHT;
        let bottom = ABOVE + PLOT_HEIGHT;
        let highest = self.series.iter().flat_map(|s| &s.values).flatten().fold(0.0, |a: f64, b| a.max(*b));
        let step = tick_step(highest);
        let ticks = ((highest / step).ceil() as u32).max(1);
        let top = step * f64::from(ticks);
        let y = |value: f64| bottom - PLOT_HEIGHT * value / top;
        text(out, (left, ABOVE - 12.0), "font-weight=\"bold\"", &format!("{} ({})", self.title, self.y));
        for tick in 0..=ticks {
            let value = step * f64::from(tick);
            let stroke = if tick == 0 { "#888" } else { "#e3e6e9" };
            let _ = writeln!(
                out,
                "<line x1=\"{left:.1}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"{stroke}\"/>",
                left + width,
                y(value),
            );
            text(out, (left - 6.0, y(value) + 4.0), "text-anchor=\"end\" fill=\"#555\"", &number(value, step));
        }
        let slot = width / self.categories.len().max(1) as f64;
        for (i, category) in self.categories.iter().enumerate() {
            let middle = left + slot * (i as f64 + 0.5);
            text(out, (middle, bottom + 16.0), "text-anchor=\"middle\"", category);
        }
        text(out, (left + width / 2.0, bottom + 34.0), "text-anchor=\"middle\" fill=\"#555\"", self.x);
        let colour_of = |series: &Series| colour(names.iter().position(|name| *name == series.name).unwrap_or(0));
        match self.marks {
            Marks::Bars => self.bars(out, (left, slot, bottom), y, colour_of),
            Marks::Lines => self.lines(out, (left, slot), y, colour_of),
        }
    }

    fn bars(
        &self,
        out: &mut String,
        (left, slot, bottom): (f64, f64, f64),
        y: impl Fn(f64) -> f64,
        colour_of: impl Fn(&Series) -> &'static str,
    ) {
        // A single bar need not fill its slot.
        let bar = (slot * 0.82 / self.series.len().max(1) as f64).min(slot * 0.4);
        let margin = (slot - bar * self.series.len() as f64) / 2.0;
        for (number, series) in self.series.iter().enumerate() {
            for (i, value) in series.values.iter().enumerate() {
                let Some(value) = value else { continue };
                let x = left + slot * i as f64 + margin + bar * number as f64;
                let _ = writeln!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                    y(*value),
                    (bar - 1.0).max(0.5),
                    bottom - y(*value),
                    colour_of(series),
                );
            }
        }
    }

    fn lines(
        &self,
        out: &mut String,
        (left, slot): (f64, f64),
        y: impl Fn(f64) -> f64,
        colour_of: impl Fn(&Series) -> &'static str,
    ) {
        for series in &self.series {
            let colour = colour_of(series);
            let points: Vec<(f64, f64)> = series
                .values
                .iter()
                .enumerate()
                .filter_map(|(i, value)| Some((left + slot * (i as f64 + 0.5), y((*value)?))))
                .collect();
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                path.join(" ")
            );
            for (x, y) in points {
                let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
        }
    }
}

/// The colour of the `number`th name of the legend.
fn colour(number: usize) -> &'static str {
    COLOURS[number % COLOURS.len()]
}

fn text(out: &mut String, (x, y): (f64, f64), attributes: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{words}</text>");
}

/// A round step that gives four to eight ticks.
fn tick_step(highest: f64) -> f64 {
    let mut step = 1e-6;
    let mut factors = [2.0, 2.5, 2.0].into_iter().cycle();
    while step * 8.0 < highest {
        step *= factors.next().expect("a cycle");
    }
    step
}

fn number(value: f64, step: f64) -> String {
    match step {
        step if step >= 1.0 => format!("{value:.0}"),
        step if step >= 0.1 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   steps are 1, 2 or 5 times a power of ten and give few ticks.
    /// Method: a range of maxima.
    #[test]
    fn steps_are_round() {
        for (highest, step) in [(7.9, 1.0), (8.1, 2.0), (39.0, 5.0), (41.0, 10.0), (900.0, 200.0), (0.07, 0.01)] {
            assert!((tick_step(highest) / step - 1.0).abs() < 1e-9, "{highest}: {}", tick_step(highest));
        }
    }

    /// Goal:   every figure has its mark, and words cannot break the picture.
    /// Method: count marks of a chart of both kinds.
    #[test]
    fn all_figures_are_marked() {
        let panel = |marks| Panel {
            title: "a < b".into(),
            x: "size",
            y: "MB/s",
            marks,
            categories: vec!["1".into(), "2".into()],
            series: vec![Series { name: "Get & Put".into(), values: vec![Some(1.0), None] }],
        };
        let panels = vec![panel(Marks::Bars), panel(Marks::Lines)];
        let svg = Chart { title: "t".into(), subtitle: String::new(), panels }.svg();
        assert_eq!((svg.matches("<circle").count(), svg.matches("rx=").count()), (1, 1));
        assert!(svg.contains("a &lt; b") && svg.contains("Get &amp; Put"));
    }
}
