//! `kaml completions` and `kaml man`: what shells and `man` show about the commands, made from the commands themselves.

use crate::failure::Failure;
use clap::builder::StyledStr;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use kaml_terminal::output;
use std::io;
use std::path::{Path, PathBuf};

/// Flags of `kaml completions`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml completions bash > ~/kaml.bash       # then `source kaml.bash`
  kaml completions zsh > _kaml              # into a directory of `fpath`
  kaml completions fish > kaml.fish         # into ~/.config/fish/completions

The Debian package installs these files for bash, zsh and fish.")]
pub struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

/// Flags of `kaml man`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml man man1                             # then `man -l man1/kaml.1`

The Debian package installs these pages.")]
pub struct ManArguments {
    /// Where to write the pages; the directory is made if it does not exist
    directory: PathBuf,
}

impl CompletionsArguments {
    /// Prints the script.
    pub fn run(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut visible(), "kaml", &mut script);
        output::bytes(&script)
    }
}

impl ManArguments {
    /// Writes a page for each command.
    pub fn run(self) -> Result<(), Failure> {
        std::fs::create_dir_all(&self.directory).map_err(Failure::io(self.directory.display()))?;
        let mut command = visible().disable_help_subcommand(true);
        command.build();
        write_pages(&command, &self.directory)
    }
}

/// The commands without the hidden ones, which scripts for shells would name, too.
fn visible() -> Command {
    let all = crate::Arguments::command();
    let command = Command::new("kaml").version(env!("CARGO_PKG_VERSION")).propagate_version(true);
    let text = |text: Option<&StyledStr>| text.cloned().unwrap_or_default();
    let command = command.about(text(all.get_about())).after_help(text(all.get_after_help()));
    command.subcommands(all.get_subcommands().filter(|below| !below.is_hide_set()).cloned())
}

fn write_pages(command: &Command, directory: &Path) -> Result<(), Failure> {
    for below in command.get_subcommands() {
        write_pages(below, directory)?;
    }
    let man = Man::new(command.clone()).manual("KAML").source(concat!("kaml ", env!("CARGO_PKG_VERSION")));
    let path = directory.join(man.get_filename());
    std::fs::write(&path, page(command, &man).map_err(Failure::io(path.display()))?)
        .map_err(Failure::io(path.display()))
}

/// A page as `Man::render` makes it, except that examples keep their lines and have their section.
fn page(command: &Command, man: &Man) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut roff = Roff::new();
    for paragraph in after.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        match paragraph.strip_prefix("Examples:\n") {
            Some(examples) => {
                roff.control("SH", ["EXAMPLES"]).control("nf", []);
                for line in examples.lines() {
                    roff.text([roman(line.trim_start())]);
                }
                roff.control("fi", []).control("SH", ["NOTES"]);
            }
            None => {
                roff.control("PP", []).text([roman(paragraph.replace('\n', " "))]);
            }
        }
    }
    roff.to_writer(&mut text)?;
    man.render_version_section(&mut text)?;
    Ok(text)
}
