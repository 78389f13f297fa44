//! Progress bars on standard error; nothing where that is no terminal.
//!
//! A bar takes what the other words on its line leave, and these have room on 40 columns: a line that is longer than the terminal
//! is wide would be written again below at each step.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of this many steps.
pub fn bar(total: u64) -> ProgressBar {
    with("{wide_bar} {percent:>3} % {elapsed_precise}, {eta} left", total)
}

/// A bar of this many steps, of something that has a name.
pub fn named_bar(total: u64, name: &str) -> ProgressBar {
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    with("{msg:10!} {wide_bar} {percent:>3} % {elapsed_precise}, {eta} left", total).with_message(name)
}

/// A bar of this many bytes, which are shown.
pub fn bytes_bar(total: u64) -> ProgressBar {
    with("{wide_bar} {percent:>3} % of {total_bytes}, {eta} left", total)
}

fn with(template: &str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
