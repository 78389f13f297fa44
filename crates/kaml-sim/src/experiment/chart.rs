//! Pictures as SVG: panels of grouped bars or of lines over categories, with spreads and the papers' values as marks.
//!
//! Lives here:       axes, marks, labels, legends, colours in light and dark.
//! Lives elsewhere:  what is shown (`micro`, `logs`, `collection`, `muninn`), several runs in one picture (`runs`).
//!
//! Axes begin at zero. Numbers are written with fixed digits, so the same figures give the same bytes.

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
    /// Lowest and highest of several runs; empty if there was one.
    pub(crate) spread: Vec<Option<(f64, f64)>>,
}

impl Series {
    /// Figures of one run.
    pub(crate) fn new(name: impl Into<String>, values: Vec<Option<f64>>) -> Series {
        Series { name: name.into(), values, spread: Vec::new() }
    }
}

/// A value of the paper, as a range that can be one point.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct PaperMark {
    /// Over which category, and over which of the bars there; over all if none.
    pub(crate) category: usize,
    pub(crate) series: Option<usize>,
    pub(crate) range: (f64, f64),
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
    pub(crate) paper: Vec<PaperMark>,
}

/// Panels side by side with one legend.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// Under the title: what was run.
    pub(crate) subtitle: String,
    pub(crate) panels: Vec<Panel>,
}

const PANEL_WIDTH: f64 = 400.0;
/// Panels of a row; more are drawn below.
const PANELS_OF_ROW: usize = 3;
const PLOT_HEIGHT: f64 = 230.0;
/// Room of a panel left of the plot, for its numbers, and right of it, for the last figure of a line.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 40.0;
/// Room above the plots, for titles and legend; above a plot, for its title; and below, for categories.
const HEAD: f64 = 88.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 52.0;
/// Height of an entry of the legend, and its width by letters: no renderer is asked.
const LEGEND_LINE: f64 = 18.0;
const LETTER: f64 = 6.6;
/// Bars narrower than this have upright labels, and narrower than the second none.
const LABEL_LEVEL: f64 = 30.0;
const LABEL_UPRIGHT: f64 = 9.0;
/// Heights of these labels, and of half a mark of the paper.
const LABEL_LEVEL_ROOM: f64 = 14.0;
const LABEL_UPRIGHT_ROOM: f64 = 28.0;
const MARK: f64 = 5.0;
/// Labels of lines are at least so far apart.
const LABEL_APART: f64 = 11.0;
/// Colours of the series, on white and on black: each has a contrast of at least 3 to its background.
const LIGHT: [&str; 8] = ["#30638e", "#c4353f", "#00798c", "#a86500", "#6a4c93", "#3d7a1f", "#8d5a3b", "#52525e"];
const DARK: [&str; 8] = ["#7fb2e5", "#ff8a95", "#4fd1c5", "#f6c667", "#c0a5f0", "#a3d65c", "#dba77d", "#c3c3cf"];
const PAPER: &str = "the paper";

/// Colours of text, grid and series, for a reader in the light and in the dark.
fn style() -> String {
    let theme = |back: &str, text: &str, soft: &str, grid: &str, axis: &str, series: [&str; 8]| {
        let mut css = format!(
            ".b{{fill:{back}}}.t{{fill:{text}}}.m{{fill:{soft}}}.g{{stroke:{grid}}}.a{{stroke:{axis}}}\
             .p{{stroke:{text};fill:{back}}}.e{{stroke:{text}}}"
        );
        for (i, colour) in series.into_iter().enumerate() {
            let _ = write!(css, ".c{i}{{fill:{colour}}}.l{i}{{stroke:{colour};fill:none}}");
        }
        css
    };
    let light = theme("#ffffff", "#1d1d22", "#55555f", "#e3e6e9", "#88888f", LIGHT);
    let dark = theme("#16181d", "#ececf0", "#b4b4bf", "#33363d", "#8a8a94", DARK);
    format!("<style>{light}@media(prefers-color-scheme:dark){{{dark}}}</style>\n")
}

impl Chart {
    /// The picture.
    pub(crate) fn svg(&self) -> String {
        let columns = self.panels.len().clamp(1, PANELS_OF_ROW);
        let rows = self.panels.len().div_ceil(PANELS_OF_ROW).max(1);
        let width = PANEL_WIDTH * columns as f64 + 12.0;
        let (legend, lines) = self.legend(width);
        let head = HEAD + LEGEND_LINE * lines.saturating_sub(1) as f64;
        let row = ABOVE + PLOT_HEIGHT + BELOW;
        let height = head + row * rows as f64;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\">\n{}\
             <rect width=\"{width:.0}\" height=\"{height:.0}\" class=\"b\"/>\n",
            style()
        );
        text(&mut out, (14.0, 24.0), "class=\"t\" font-size=\"16\" font-weight=\"bold\"", &self.title);
        text(&mut out, (14.0, 42.0), "class=\"m\"", &self.subtitle);
        out += &legend;
        let names = self.names();
        for (i, panel) in self.panels.iter().enumerate() {
            let left = PANEL_WIDTH * (i % PANELS_OF_ROW) as f64 + LEFT;
            let bottom = head + row * (i / PANELS_OF_ROW) as f64 + ABOVE + PLOT_HEIGHT;
            panel.draw(&mut out, (left, bottom), &names);
        }
        out + "</svg>\n"
    }

    /// Names of all series, each once, in lines, and how many lines.
    fn legend(&self, width: f64) -> (String, usize) {
        let mut out = String::new();
        let (mut x, mut y, mut lines) = (14.0, 64.0, 1);
        let has_marks = self.panels.iter().any(|panel| !panel.paper.is_empty());
        let series = self.names().into_iter().enumerate().map(|(i, name)| (Some(i), name));
        for (i, name) in series.chain(has_marks.then_some((None, PAPER))) {
            let entry = 22.0 + LETTER * name.chars().count() as f64;
            if x + entry > width - 14.0 && x > 14.0 {
                (x, y, lines) = (14.0, y + LEGEND_LINE, lines + 1);
            }
            match i {
                Some(i) => {
                    let class = i % LIGHT.len();
                    let top = y - 10.0;
                    let _ = writeln!(
                        out,
                        "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"11\" height=\"11\" rx=\"2\" class=\"c{class}\"/>"
                    );
                }
                None => diamond(&mut out, (x + 5.5, y - 4.5)),
            }
            text(&mut out, (x + 16.0, y), "class=\"t\"", name);
            x += entry + 8.0;
        }
        (out, lines)
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

/// Where the figures of a panel are drawn.
struct Plot<'a> {
    left: f64,
    slot: f64,
    bottom: f64,
    /// The value at the top.
    top: f64,
    names: &'a [&'a str],
}

impl Plot<'_> {
    fn y(&self, value: f64) -> f64 {
        self.bottom - PLOT_HEIGHT * value / self.top
    }

    fn middle(&self, category: usize) -> f64 {
        self.left + self.slot * (category as f64 + 0.5)
    }

    /// Width of a bar, and where the first of a slot begins. A single bar need not fill its slot.
    fn bar(&self, series: usize) -> (f64, f64) {
        let bar = (self.slot * 0.86 / series.max(1) as f64).min(self.slot * 0.4);
        (bar, (self.slot - bar * series as f64) / 2.0)
    }

    fn class(&self, series: &Series) -> usize {
        self.names.iter().position(|name| *name == series.name).unwrap_or(0) % LIGHT.len()
    }

    fn error_bar(&self, out: &mut String, x: f64, spread: Option<&Option<(f64, f64)>>) {
        if let Some(Some((low, high))) = spread.filter(|range| range.is_some_and(|(low, high)| low < high)) {
            let (low, high) = (self.y(*low), self.y(*high));
            for (from, to) in
                [((x, low), (x, high)), ((x - 3.0, low), (x + 3.0, low)), ((x - 3.0, high), (x + 3.0, high))]
            {
                line(out, from, to, "class=\"e\"");
            }
        }
    }
}

impl Panel {
    fn draw(&self, out: &mut String, (left, bottom): (f64, f64), names: &[&str]) {
        let width = PANEL_WIDTH - LEFT - RIGHT;
        let spreads = self.series.iter().flat_map(|series| &series.spread).flatten().map(|(_, high)| *high);
        let marks = self.paper.iter().map(|mark| mark.range.1);
        let values = self.series.iter().flat_map(|series| &series.values).flatten().copied();
        let highest = values.chain(spreads).chain(marks).fold(0.0, |a: f64, b| a.max(b));
        // Labels are above the bars.
        let highest = if self.marks == Marks::Bars { highest * 1.14 } else { highest };
        let step = tick_step(highest);
        let ticks = ((highest / step).ceil() as u32).max(1);
        let slot = width / self.categories.len().max(1) as f64;
        let plot = Plot { left, slot, bottom, top: step * f64::from(ticks), names };
        let title = format!("{} ({})", self.title, self.y);
        text(out, (left, bottom - PLOT_HEIGHT - 12.0), "class=\"t\" font-weight=\"bold\"", &title);
        for tick in 0..=ticks {
            let value = step * f64::from(tick);
            let class = if tick == 0 { "a" } else { "g" };
            line(out, (left, plot.y(value)), (left + width, plot.y(value)), &format!("class=\"{class}\""));
            text(out, (left - 6.0, plot.y(value) + 4.0), "class=\"m\" text-anchor=\"end\"", &number(value, step));
        }
        for (i, category) in self.categories.iter().enumerate() {
            text(out, (plot.middle(i), bottom + 16.0), "class=\"t\" text-anchor=\"middle\"", category);
        }
        text(out, (left + width / 2.0, bottom + 34.0), "class=\"m\" text-anchor=\"middle\"", self.x);
        match self.marks {
            Marks::Bars => self.bars(out, &plot),
            Marks::Lines => self.lines(out, &plot),
        }
        self.paper_marks(out, &plot);
    }

    fn bars(&self, out: &mut String, plot: &Plot<'_>) {
        let (bar, margin) = plot.bar(self.series.len());
        for (number, series) in self.series.iter().enumerate() {
            let class = plot.class(series);
            for (i, value) in series.values.iter().enumerate() {
                let Some(value) = value else { continue };
                let x = plot.left + plot.slot * i as f64 + margin + bar * number as f64;
                let (y, width) = (plot.y(*value), (bar - 1.0).max(0.5));
                let height = plot.bottom - y;
                let _ = writeln!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" class=\"c{class}\"/>"
                );
                let spread = series.spread.get(i);
                plot.error_bar(out, x + width / 2.0, spread);
                let over = spread.copied().flatten().map_or(*value, |(_, high)| high);
                let middle = x + width / 2.0;
                let top = self.above_marks(plot, (middle, plot.y(over)), bar);
                label(out, (middle, top - 4.0), bar, &figure(*value));
            }
        }
    }

    fn lines(&self, out: &mut String, plot: &Plot<'_>) {
        let mut ends: Vec<(f64, f64, usize, String)> = Vec::new();
        for series in &self.series {
            let class = plot.class(series);
            let shown =
                |(i, value): (usize, &Option<f64>)| value.map(|value| (plot.middle(i), plot.y(value), i, value));
            let points: Vec<(f64, f64, usize, f64)> = series.values.iter().enumerate().filter_map(shown).collect();
            let path: Vec<String> = points.iter().map(|(x, y, ..)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(out, "<polyline points=\"{}\" class=\"l{class}\" stroke-width=\"2\"/>", path.join(" "));
            for (x, y, i, _) in &points {
                plot.error_bar(out, *x, series.spread.get(*i));
                let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" class=\"c{class}\"/>");
            }
            if let Some((x, y, _, value)) = points.last() {
                ends.push((x + 6.0, y + 4.0, class, figure(*value)));
            }
        }
        // Lines that end close to each other have their labels below each other.
        ends.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut lowest = f64::MIN;
        for (x, y, class, words) in ends {
            lowest = y.max(lowest + LABEL_APART);
            text(out, (x, lowest), &format!("class=\"c{class}\" font-size=\"10\""), &words);
        }
    }

    /// Where the label of a bar begins, so no mark of the paper covers it.
    fn above_marks(&self, plot: &Plot<'_>, (middle, top): (f64, f64), bar: f64) -> f64 {
        let room = if bar >= LABEL_LEVEL { LABEL_LEVEL_ROOM } else { LABEL_UPRIGHT_ROOM };
        let mut ends: Vec<f64> = self
            .paper
            .iter()
            .filter(|mark| (self.mark_x(plot, mark) - middle).abs() < bar / 2.0)
            .flat_map(|mark| [plot.y(mark.range.0), plot.y(mark.range.1)])
            .collect();
        ends.sort_by(|a, b| b.total_cmp(a)); // from the bar upwards
        let over = |top: f64, end: f64| if (top - room..top + MARK).contains(&end) { end - MARK } else { top };
        ends.into_iter().fold(top, over)
    }

    fn mark_x(&self, plot: &Plot<'_>, mark: &PaperMark) -> f64 {
        let (bar, margin) = plot.bar(self.series.len());
        match (self.marks, mark.series) {
            (Marks::Bars, Some(number)) => {
                plot.left + plot.slot * mark.category as f64 + margin + bar * (number as f64 + 0.5)
            }
            _ => plot.middle(mark.category),
        }
    }

    fn paper_marks(&self, out: &mut String, plot: &Plot<'_>) {
        for mark in &self.paper {
            let x = self.mark_x(plot, mark);
            let (low, high) = (plot.y(mark.range.0), plot.y(mark.range.1));
            if mark.range.0 < mark.range.1 {
                line(out, (x, low), (x, high), "class=\"e\" stroke-width=\"1.5\" stroke-dasharray=\"3 2\"");
                diamond(out, (x, low));
            }
            diamond(out, (x, high));
        }
    }
}

/// A figure above a bar: level, upright if the bar is narrow, none if it is too narrow for that.
fn label(out: &mut String, (x, y): (f64, f64), bar: f64, words: &str) {
    if bar >= LABEL_LEVEL {
        text(out, (x, y), "class=\"t\" text-anchor=\"middle\" font-size=\"10\"", words);
    } else if bar >= LABEL_UPRIGHT {
        let turned = format!("class=\"t\" font-size=\"9\" transform=\"rotate(-90 {:.1} {y:.1})\"", x + 3.0);
        text(out, (x + 3.0, y), &turned, words);
    }
}

/// A value of the paper.
fn diamond(out: &mut String, (x, y): (f64, f64)) {
    let _ = writeln!(
        out,
        "<path d=\"M{x:.1} {:.1}l4.5 4.5l-4.5 4.5l-4.5 -4.5z\" class=\"p\" stroke-width=\"1.5\"/>",
        y - 4.5
    );
}

fn line(out: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), attributes: &str) {
    let _ = writeln!(out, "<line x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\" {attributes}/>");
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
        step if step >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Three digits that count.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
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

    /// Goal:   a mark of the paper covers no label.
    /// Method: a bar whose label would be where the mark is, one whose mark is inside of it, and one whose mark is high above.
    #[test]
    fn labels_are_above_marks() {
        let top_of = |mark: f64| {
            let panel = Panel {
                title: String::new(),
                x: "",
                y: "",
                marks: Marks::Bars,
                categories: vec!["a".into()],
                series: vec![Series::new("s", vec![Some(1.0)])],
                paper: vec![PaperMark { category: 0, series: None, range: (mark, mark) }],
            };
            let plot = Plot { left: 0.0, slot: 100.0, bottom: PLOT_HEIGHT, top: 2.0, names: &["s"] };
            (panel.above_marks(&plot, (50.0, plot.y(1.0)), 40.0), plot.y(mark), plot.y(1.0))
        };
        let (label, mark, _) = top_of(1.05);
        assert_eq!(label, mark - MARK);
        for mark in [0.5, 1.8] {
            let (label, _, bar) = top_of(mark);
            assert_eq!(label, bar, "{mark}");
        }
    }

    /// Goal:   every figure has its mark, and words cannot break the picture.
    /// Method: count marks of a chart of both kinds with a spread and a value of the paper.
    #[test]
    fn all_figures_are_marked() {
        let panel = |marks| Panel {
            title: "a < b".into(),
            x: "size",
            y: "MB/s",
            marks,
            categories: vec!["1".into(), "2".into()],
            series: vec![Series {
                spread: vec![Some((0.9, 1.2)), None],
                ..Series::new("Get & Put", vec![Some(1.0), None])
            }],
            paper: vec![PaperMark { category: 1, series: None, range: (1.1, 1.3) }],
        };
        let panels = vec![panel(Marks::Bars), panel(Marks::Lines)];
        let svg = Chart { title: "t".into(), panels, ..Chart::default() }.svg();
        assert_eq!((svg.matches("<circle").count(), svg.matches("rx=").count()), (1, 1));
        // Two ends of the paper's range in each panel and one in the legend; the spread and the label of each figure.
        assert_eq!((svg.matches("<path").count(), svg.matches("class=\"e\"").count()), (5, 3 * 2 + 2));
        assert_eq!(svg.matches(">1.00</text>").count(), 2);
        assert!(svg.contains("prefers-color-scheme:dark"));
        assert!(svg.contains("a &lt; b") && svg.contains("Get &amp; Put"));
    }
}
