//! The one loop that repeats a command which the firmware cannot execute yet.
//!
//! Lives here:       visits to the core ([`Shared::visit`]), reads next to it ([`Shared::look`]), and what a blocked caller does about
//!                   each thing that hinders it.
//! Lives elsewhere:  how a caller waits for room (`driver`), how an event loop does (`queue`).
//!
//! A visit ends: a refusal is final, an index that is loaded is kept in memory while the core is locked, and room comes or is refused
//! forever.

use crate::NamespaceId;
use crate::driver::{By, Shared};
use crate::error::Error;
use crate::sync::MutexGuard;
use kaml_device::{Core, FindError, StageError};

/// Repeats `act` until it is done, or until `clear` gives up on what hinders it.
#[inline]
fn retry<H, T, W, E>(
    mut held: H,
    mut act: impl FnMut(&mut H) -> Result<T, W>,
    mut clear: impl FnMut(H, W) -> Result<H, E>,
) -> Result<(H, T), E> {
    loop {
        match act(&mut held) {
            Ok(done) => return Ok((held, done)),
            Err(why) => held = clear(held, why)?,
        }
    }
}

impl Shared {
    /// Executes `act` under the core's lock. Loads the indexes that it needs, and waits for room as long as it takes.
    #[inline]
    pub(crate) fn visit<'a, T>(
        &'a self,
        by: By,
        act: impl FnMut(&mut Core) -> Result<T, StageError>,
    ) -> Result<(MutexGuard<'a, Core>, T), Error> {
        self.visit_with(by, act, |core, why| self.clear(core, why))
    }

    /// As [`Shared::visit`], for a caller with a policy of its own. `clear` does what must be done before the next attempt, or gives up.
    #[inline]
    pub(crate) fn visit_with<'a, T, E: From<Error>>(
        &'a self,
        by: By,
        mut act: impl FnMut(&mut Core) -> Result<T, StageError>,
        mut clear: impl FnMut(MutexGuard<'a, Core>, StageError) -> Result<MutexGuard<'a, Core>, E>,
    ) -> Result<(MutexGuard<'a, Core>, T), E> {
        let core = self.lock();
        self.admit(by)?;
        let timed = |core: &mut MutexGuard<'a, Core>| {
            Shared::set_time(core);
            act(core)
        };
        retry(core, timed, |core, why| {
            let core = clear(core, why)?;
            self.admit(by)?; // a store may have been opened meanwhile
            Ok(core)
        })
    }

    /// Does what must be done before the next attempt, however long it takes. A refusal is returned once what decided it is durable.
    #[cold]
    pub(crate) fn clear<'a>(
        &'a self,
        core: MutexGuard<'a, Core>,
        why: StageError,
    ) -> Result<MutexGuard<'a, Core>, Error> {
        match why {
            StageError::Refused(error) => Err(self.refused_under(core, error)),
            StageError::RefusedAfter(frame, error) => {
                self.wait_committed(core, frame)?;
                Err(error.into())
            }
            StageError::NeedIndex(id) => self.load_index(core, id),
            StageError::Busy => Ok(self.make_room(core)),
        }
    }

    /// As [`Shared::clear`], for a caller that waits for page programs: it gives up when they find no space below once more.
    pub(crate) fn clear_until_no_space<'a>(
        &'a self,
    ) -> impl FnMut(MutexGuard<'a, Core>, StageError) -> Result<MutexGuard<'a, Core>, Error> {
        let mut before = None;
        move |core, why| match why {
            StageError::Busy => {
                let before = *before.get_or_insert(core.no_space_count());
                self.wait_for_programs(core, before)
            }
            StageError::Refused(_) | StageError::RefusedAfter(..) | StageError::NeedIndex(_) => self.clear(core, why),
        }
    }

    /// Reads next to the core, and loads the index of the namespace if that is missing.
    #[inline]
    pub(crate) fn look<T>(
        &self,
        namespace: NamespaceId,
        mut attempt: impl FnMut() -> Result<T, FindError>,
    ) -> Result<T, Error> {
        let clear = |(), why| match why {
            FindError::Refused(error) => Err(self.refused(error)),
            FindError::NeedIndex => self.load_index(self.lock(), namespace).map(drop),
        };
        retry((), |()| attempt(), clear).map(|((), found)| found)
    }
}
