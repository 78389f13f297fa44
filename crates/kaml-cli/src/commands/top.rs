//! `kaml top`.

mod figures;
mod http;
mod screen;
mod source;
mod view;

use crate::failure::Failure;
use crate::output;
use crate::secrets::HostArguments;
use clap::Args;
use figures::Figures;
use screen::{Screen, Wish};
use serde_json::Value;
use source::Source;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Flags of `kaml top`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml serve data.kaml --metrics 127.0.0.1:9464
  kaml top data.kaml                    # finds the server of a device that is served with --metrics
  kaml top http://127.0.0.1:9464        # or names it
  kaml top nvme+tcp://127.0.0.1:4420/NQN
  kaml top http://127.0.0.1:9464 --once --json | jq .stats.free_blocks

q or Ctrl-C ends it. Without a terminal it prints a line for each interval.")]
pub struct Arguments {
    /// Device file or block device, http://HOST:PORT of `kaml serve --metrics`, or nvme+tcp://HOST:PORT/SUBSYSTEM
    #[arg(value_name = "DEVICE|URL")]
    place: PathBuf,
    #[command(flatten)]
    host: HostArguments,
    /// Time between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Look one time, print what has happened since the device was opened, and end
    #[arg(long)]
    once: bool,
    /// Print everything as JSON, one document in each line
    #[arg(long)]
    json: bool,
}

/// The value of `--interval`.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds from 0.1 to 3600".to_owned())
}

impl Arguments {
    /// Shows the device until it is ended.
    pub fn run(self) -> Result<(), Failure> {
        let mut source = Source::open(&self.place, &self.host)?;
        let first = source.state()?;
        if self.json {
            return self.print(source, first, |_, now| Ok(now.to_string()));
        }
        if self.once {
            let width = screen::size().map_or(100, |(columns, _)| columns);
            let lines = view::page(&Figures::of(&first, None), width, output::Paint::detect());
            return lines.iter().try_for_each(output::line);
        }
        if !std::io::stdout().is_terminal() {
            return self.print(source, first, |before, now| Ok(view::line(&Figures::of(now, before))));
        }
        self.show(source, first)
    }

    /// Prints something for each look.
    fn print(
        &self,
        mut source: Source,
        first: Value,
        text: impl Fn(Option<&Value>, &Value) -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        output::line(text(None, &first)?)?;
        if self.once {
            return Ok(());
        }
        let mut before = first;
        loop {
            std::thread::sleep(self.interval);
            let now = source.state()?;
            output::line(text(Some(&before), &now)?)?;
            before = now;
        }
    }

    /// Fills the terminal.
    fn show(&self, mut source: Source, first: Value) -> Result<(), Failure> {
        let screen = Screen::enter()?;
        let paint = output::Paint::detect();
        let (mut before, mut now) = (None, first);
        loop {
            let looked = Instant::now();
            let figures = Figures::of(&now, before.as_ref());
            loop {
                let (columns, rows) = screen::size().unwrap_or((80, 24));
                screen.draw(&view::page(&figures, columns, paint), rows)?;
                match screen.wait(self.interval.saturating_sub(looked.elapsed()))? {
                    Wish::Quit => return Ok(()),
                    Wish::Redraw => {}
                    Wish::Continue => break,
                }
            }
            before = Some(std::mem::replace(&mut now, source.state()?));
        }
    }
}
