//! The Muninn paper's experiments: versions by hash on flash that counts its pages, for the firmware's index and the paper's.
//!
//! Lives here:       the rooms.
//! Lives elsewhere:  the indexes (`kaml-versions`), the firmware (`kaml-device`).
//! Implements:       paper:Muninn 6 (Figures 7 to 10); docs/versioned.md "Measured".
//!
//! | module     | room                                                              |
//! |------------|-------------------------------------------------------------------|
//! | `keys`     | what is put                                                       |
//! | `device`   | a versioned namespace of the firmware, put and read as hosts do   |
//! | `measure`  | filling, looking up, counting                                     |
//! | `space`    | Figures 7 and 8                                                   |
//! | `reads`    | Figure 9                                                          |
//! | `cleaning` | Figure 10                                                         |

mod cleaning;
mod device;
mod keys;
mod measure;
mod reads;
mod space;

pub(super) use cleaning::thresholds;
pub(super) use reads::amplification;
pub(super) use space::{false_positives, utilisation};

use super::chart::{Marks, Panel, PaperMark, Series};
use super::paper::PaperValue;

/// A panel of lines or bars.
fn panel(
    title: &str,
    (x, y): (&'static str, &'static str),
    marks: Marks,
    categories: &[String],
    series: Vec<(String, Vec<Option<f64>>)>,
) -> Panel {
    let series = series.into_iter().map(|(name, values)| Series::new(name, values)).collect();
    Panel { title: title.to_owned(), x, y, marks, categories: categories.to_vec(), series, paper: Vec::new() }
}

/// The panel with values of the paper over some categories.
fn with_paper(panel: Panel, values: &[(usize, &PaperValue)]) -> Panel {
    let mark =
        |(category, value): &(usize, &PaperValue)| PaperMark { category: *category, series: None, range: value.range };
    Panel { paper: values.iter().map(mark).collect(), ..panel }
}
