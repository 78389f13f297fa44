//! What a person or a program reads: tables, JSON, colour.
//!
//! Lives here:       writing to standard output so that a closed pipe is not a panic; tables; colour on a terminal.

use crate::failure::Failure;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether a target is standard output, by whichever name: what exists is kept, and no other text is mixed in.
pub fn is_stdout(target: &Path) -> bool {
    let here = || rustix::fs::fstat(std::io::stdout()).map(|found| (found.st_dev, found.st_ino)).ok();
    target == Path::new("-") || identity(target).is_some_and(|found| here() == Some(found))
}

/// What a file is, by whatever name: file system and inode.
pub type FileIdentity = (u64, u64);

/// The file system and inode of what is at `path`, if anything is.
pub fn identity(path: &Path) -> Option<FileIdentity> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Writes text as it is.
pub fn text(text: &str) -> Result<(), Failure> {
    bytes(text.as_bytes())
}

/// Writes one line.
pub fn line(line: impl std::fmt::Display) -> Result<(), Failure> {
    text(&format!("{line}\n"))
}

/// Something for a person, on standard error; nothing if that is closed.
pub fn note(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "kaml: {text}");
}

/// Writes bytes as they are.
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Failure::output)
}

/// Writes one JSON document, indented.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::Failed(format!("JSON: {error}")))?;
    line(text)
}

/// A table with a head; columns after the first `left` are aligned to the right.
pub fn table(head: &[&str], left: usize, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(head.to_vec());
    rows.into_iter().for_each(|row| {
        table.add_row(row);
    });
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Colours, or nothing where nobody sees them.
#[derive(Clone, Copy)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// Colours if standard output is a terminal and `NO_COLOR` is not set.
    pub fn detect() -> Paint {
        Paint { on: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) }
    }

    fn wrap(self, code: &str, text: impl std::fmt::Display) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    /// For headings.
    pub fn bold(self, text: impl std::fmt::Display) -> String {
        self.wrap("1", text)
    }

    /// For what went well.
    pub fn good(self, text: impl std::fmt::Display) -> String {
        self.wrap("32", text)
    }

    /// For what went wrong.
    pub fn bad(self, text: impl std::fmt::Display) -> String {
        self.wrap("1;31", text)
    }

    /// For explanations.
    pub fn dim(self, text: impl std::fmt::Display) -> String {
        self.wrap("2", text)
    }

    /// For figures.
    pub fn figure(self, text: impl std::fmt::Display) -> String {
        self.wrap("1;36", text)
    }
}
