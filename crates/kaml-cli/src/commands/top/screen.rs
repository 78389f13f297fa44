//! The terminal while `kaml top` fills it.
//!
//! Lives here:       entering and leaving it, drawing lines, keys.
//! May be called by: `top`.
//!
//! The terminal is as before when the process ends: by a key, an error, a panic, or a signal. A signal can come while a look waits for a
//! silent target, so a thread of its own waits for signals, restores the terminal and ends the process.

use crate::failure::Failure;
use crate::{interrupt, output};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use rustix::termios::{tcgetattr, tcgetwinsize, tcsetattr};
use std::time::Duration;

/// The alternate screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";
/// A terminal that has another size is drawn again after this time at the latest.
const LOOK: Duration = Duration::from_millis(250);

/// See the module.
pub struct Screen {
    before: Option<Termios>,
}

/// What comes next.
pub enum Wish {
    Quit,
    Redraw,
    Continue,
}

/// Columns and rows of the terminal, if standard output is one.
pub fn size() -> Option<(usize, usize)> {
    let size = tcgetwinsize(rustix::stdio::stdout()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col.into(), size.ws_row.into()))
}

fn restore(before: Option<&Termios>) {
    // If the terminal is gone, there is nothing to restore.
    let _ = rustix::io::write(rustix::stdio::stdout(), LEAVE);
    if let Some(before) = before {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, before);
    }
}

impl Screen {
    /// Keys come at once and are not shown. Without a terminal to read from there are none.
    pub fn enter() -> Result<Screen, Failure> {
        let before = tcgetattr(rustix::stdio::stdin()).ok();
        let on_signal = before.clone();
        let signals = signal_hook::iterator::Signals::new(interrupt::signals());
        let mut signals = signals.map_err(Failure::io("listening for signals"))?;
        let wait = move || {
            if signals.forever().next().is_some() {
                restore(on_signal.as_ref());
                std::process::exit(0);
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(wait).map_err(Failure::io("listening for signals"))?;
        let screen = Screen { before };
        if let Some(before) = &screen.before {
            let mut keys = before.clone();
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            // Suspended, it would leave the terminal as it is.
            keys.special_codes[SpecialCodeIndex::VSUSP] = 0;
            tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &keys)
                .map_err(|error| Failure::io("setting up the terminal")(error.into()))?;
        }
        output::text(ENTER)?;
        Ok(screen)
    }

    /// Draws lines, as far as there are rows.
    pub fn draw(&self, lines: &[String], rows: usize) -> Result<(), Failure> {
        let shown = lines.iter().take(rows).map(|line| format!("{line}\x1b[0m\x1b[K"));
        output::text(&format!("\x1b[H{}\x1b[J", shown.collect::<Vec<_>>().join("\r\n")))
    }

    /// Waits for a key, or for so long; a while at a time, because the terminal can get another size.
    pub fn wait(&self, limit: Duration) -> Result<Wish, Failure> {
        let stdin = rustix::stdio::stdin();
        let slice = Timespec::try_from(limit.min(LOOK)).map_err(|error| Failure::Failed(error.to_string()))?;
        let mut fds = [PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
        let fds = if self.before.is_some() { &mut fds[..] } else { &mut [] };
        match poll(fds, Some(&slice)) {
            Ok(1..) => {
                let mut keys = [0; 64];
                let count = rustix::io::read(stdin, &mut keys).unwrap_or(0);
                let quits = |key: &u8| matches!(key, b'q' | b'Q' | 3 | 4);
                // Nothing to read means that the terminal is gone.
                if count == 0 || keys[..count].iter().any(quits) { Ok(Wish::Quit) } else { Ok(Wish::Redraw) }
            }
            Ok(0) | Err(rustix::io::Errno::INTR) if limit > LOOK => Ok(Wish::Redraw),
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(Wish::Continue),
            Err(error) => Err(Failure::io("waiting for a key")(error.into())),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore(self.before.as_ref());
    }
}
