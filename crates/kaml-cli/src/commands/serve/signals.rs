//! What signals do to `kaml serve`: end it in order, or have files read again.
//!
//! Lives here:       the thread that receives signals, and what one does at each stage.
//! Lives elsewhere:  which signals there are (`interrupt`), reading again (`reload`), waiting for a device (`standby`).
//! May be called by: `serve`.

use super::reload::Reload;
use crate::failure::Failure;
use crate::interrupt;
use kaml_nvme::target::Stopper;
use sd_notify::{NotifyState, notify};
use signal_hook::consts::SIGHUP;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How far the process is.
enum Stage {
    /// It has nothing open.
    Waiting,
    /// It opens devices. Ending then is as a crash: the next start recovers.
    Opening,
    Serving(Vec<Stopper>, Reload),
    Ending,
}

struct State {
    stage: Stage,
    /// SIGHUP has come when nothing was served yet.
    asked_to_reload: bool,
}

/// The signals of this process.
pub struct Signals(Arc<Mutex<State>>);

impl Signals {
    /// From now on the first signal ends what the process does, in order, and the second one the process. If it `reloads`, SIGHUP has files read
    /// again instead.
    pub fn listen(reloads: bool) -> Result<Signals, Failure> {
        let mut awaited = interrupt::signals();
        if reloads && !awaited.contains(&SIGHUP) {
            awaited.push(SIGHUP);
        }
        let state = Arc::new(Mutex::new(State { stage: Stage::Opening, asked_to_reload: false }));
        let mut signals = signal_hook::iterator::Signals::new(awaited).map_err(Failure::io("listening for signals"))?;
        let receiver = Arc::clone(&state);
        let receive = move || signals.forever().for_each(|signal| lock(&receiver).on(signal == SIGHUP && reloads));
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(receive)
            .map(|_| Signals(state))
            .map_err(Failure::io("listening for signals"))
    }

    /// Nothing is open: a signal ends the process at once. Returns whether files are to be read again.
    pub fn waiting(&self) -> bool {
        let mut state = lock(&self.0);
        state.stage = Stage::Waiting;
        std::mem::take(&mut state.asked_to_reload)
    }

    /// From now on devices are opened.
    pub fn opening(&self) {
        lock(&self.0).stage = Stage::Opening;
    }

    /// From now on a signal stops these servers.
    pub fn serving(&self, stoppers: Vec<Stopper>, reload: Reload) {
        let mut state = lock(&self.0);
        if std::mem::take(&mut state.asked_to_reload) {
            reload.run();
        }
        state.stage = Stage::Serving(stoppers, reload);
    }
}

/// A panic in another thread leaves a stage that is one.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn on(&mut self, reload: bool) {
        match &self.stage {
            Stage::Ending => std::process::exit(130),
            Stage::Serving(_, files) if reload => files.run(),
            Stage::Waiting | Stage::Opening if reload => self.asked_to_reload = true,
            Stage::Waiting => {
                let _ = notify(&[NotifyState::Stopping]);
                std::process::exit(0)
            }
            Stage::Opening => std::process::exit(130),
            Stage::Serving(stoppers, _) => {
                let _ = notify(&[NotifyState::Stopping]);
                stoppers.iter().for_each(Stopper::stop);
                self.stage = Stage::Ending;
            }
        }
    }
}
