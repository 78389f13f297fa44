//! Ctrl-C, noticed between two steps of a long command.

use crate::failure::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the person wants us to stop.
#[derive(Clone)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// From now on the first Ctrl-C is noticed instead of ending the process; the second ends it.
    pub fn listen() -> Result<Interrupt, Failure> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&asked))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&asked)))
                .map_err(Failure::io("listening for signals"))?;
        }
        Ok(Interrupt { asked })
    }

    /// Whether the person asked to stop.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Fails with what has been done so far if the person asked to stop.
    pub fn check(&self, done: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.is_asked() { Err(Failure::Interrupted(format!(": {}", done()))) } else { Ok(()) }
    }
}
