//! Ways to a device: whatever carries commands to its controller.
//!
//! Lives here:       what a way must offer; the one over TCP, with its queues, connecting again, and numbers of commands that must not
//!                   take effect twice.
//! Lives elsewhere:  the way through Linux (`passthrough`), the device that they lead to (`remote`).

use super::{Controller, Error, Finished, HostOptions, Queue};
use crate::wire::command::{Command, kv};
use crate::wire::logs::{LogRequest, lid};
use crate::wire::session::{self, is_numbered, put_number};
use crate::wire::status::Status;
use crate::wire::vendor::{DevicePage, feature};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Commands of one call in flight.
const IN_FLIGHT: usize = 32;
/// Attempts to send a command again before it fails, and the pause before each but the first.
pub(super) const ATTEMPTS_MAX: u32 = 20;
pub(super) const ATTEMPT_PAUSE: Duration = Duration::from_millis(500);

/// Carries commands from any threads. When a connection is lost it is made again, if possible, but the command fails:
/// nothing here knows whether it can be sent twice.
pub(super) trait Carrier: Send + Sync {
    /// An admin command.
    fn admin(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error>;

    /// A command of a namespace.
    fn io(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error>;

    /// A command of a namespace that must not take effect twice. If the connection is lost and nobody can know whether it did, the error
    /// is [`Error::OutcomeUnknown`].
    fn once(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error> {
        unknown_if_lost(self.io(command, data, room))
    }

    /// Whether the device remembers what numbered commands came to, so they can be sent again.
    fn has_session(&self) -> bool {
        false
    }

    /// Reading commands, each with its room, many in flight; results come with their number, while others are in flight: a caller that
    /// takes them must send nothing. Nothing if there is no way to have several in flight.
    fn reads(
        &self,
        commands: &[(Command, usize)],
        answer: &mut dyn FnMut(usize, Result<Finished, Error>),
    ) -> Option<()> {
        let _ = (commands, answer);
        None
    }

    /// The longest transfer of one command.
    fn transfer_bytes_max(&self) -> usize;

    /// Where it leads, for a person.
    fn name(&self) -> String;
}

/// What a command came to that is not sent again.
pub(super) fn unknown_if_lost(done: Result<Finished, Error>) -> Result<Finished, Error> {
    match done {
        Err(Error::Connection(why)) => Err(Error::OutcomeUnknown(why)),
        done => done,
    }
}

/// A controller, and the session that we have with it, by its identifier.
struct Linked {
    controller: Controller,
    session: Option<u64>,
}

/// Begins a session, or joins it; nothing if the controller has none.
fn join_session(controller: &Controller, name: u128) -> Result<Option<u64>, Error> {
    let request = LogRequest { lid: lid::KAML, retain: true, offset: 0, bytes: size_of::<DevicePage>(), csi: 0 };
    let page = match controller.log_page(&request) {
        Err(Error::Status(_)) => return Ok(None),
        page => DevicePage::read(&page?),
    };
    if page.is_none_or(|page| page.features.get() & feature::SESSIONS == 0) {
        return Ok(None);
    }
    Ok(Some(controller.admin().execute(session::begin(name), &[], 0)?.success()?.result))
}

/// A controller that is reached over TCP.
pub(super) struct Tcp {
    address: String,
    subsystem: String,
    options: HostOptions,
    linked: Mutex<Arc<Linked>>,
    turn: AtomicUsize,
    /// The name of our session, drawn at random, and the number of its next command.
    session: u128,
    next_number: AtomicU32,
}

/// Connects, and joins the session of this name.
fn link(address: &str, subsystem: &str, options: &HostOptions, session: u128) -> Result<Linked, Error> {
    let controller = Controller::connect(address, subsystem, options)?;
    let session = join_session(&controller, session)?;
    Ok(Linked { controller, session })
}

impl Tcp {
    pub(super) fn connect(address: &str, subsystem: &str, options: &HostOptions) -> Result<Tcp, Error> {
        let word = |at: u64| u128::from(RandomState::new().hash_one(at));
        let session = word(0) << 64 | word(1);
        let linked = link(address, subsystem, options, session)?;
        if linked.controller.queues().is_empty() {
            return Err(Error::Unsupported("I/O queues"));
        }
        Ok(Tcp {
            address: address.to_owned(),
            subsystem: subsystem.to_owned(),
            options: options.clone(),
            linked: Mutex::new(Arc::new(linked)),
            turn: AtomicUsize::new(0),
            session,
            next_number: AtomicU32::new(1),
        })
    }

    fn linked(&self) -> Arc<Linked> {
        Arc::clone(&self.linked.lock().expect("no panics under this lock"))
    }

    /// A number for a command. 0 means none.
    fn number(&self) -> u32 {
        match self.next_number.fetch_add(1, Ordering::Relaxed) {
            0 => self.next_number.fetch_add(1, Ordering::Relaxed),
            number => number,
        }
    }

    /// The next queue that has its turn.
    fn queue<'a>(&self, controller: &'a Controller) -> &'a Queue {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        &controller.queues()[turn % controller.queues().len()]
    }

    /// Connects again after a loss, unless somebody else has.
    fn after<T>(&self, linked: &Arc<Linked>, done: Result<T, Error>) -> Result<T, Error> {
        if let Err(Error::Connection(_)) = done {
            let mut current = self.linked.lock().expect("no panics under this lock");
            if Arc::ptr_eq(&current, linked) {
                match link(&self.address, &self.subsystem, &self.options, self.session) {
                    Ok(made) => *current = Arc::new(made),
                    Err(error) => tracing::debug!(%error, "the target cannot be reached"),
                }
            }
        }
        done
    }
}

impl Carrier for Tcp {
    fn admin(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error> {
        let linked = self.linked();
        self.after(&linked, linked.controller.admin().execute(command, data, room))
    }

    fn io(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error> {
        let linked = self.linked();
        self.after(&linked, self.queue(&linked.controller).execute(command, data, room))
    }

    /// The same number reports that it is the same command. Another session means that the target may have forgotten what the command
    /// came to, as it has after a restart.
    fn once(&self, mut command: Command, data: &[u8], room: usize) -> Result<Finished, Error> {
        if !is_numbered(command.opcode) {
            return unknown_if_lost(self.io(command, data, room));
        }
        // The session and the number that it was sent with, and why its outcome is not known.
        let mut sent: Option<(u64, u32, String)> = None;
        for attempt in 0..ATTEMPTS_MAX {
            let linked = self.linked();
            let (session, number) = match (linked.session, &sent) {
                (None, None) => return unknown_if_lost(self.io(command, data, room)),
                (Some(session), None) => (session, self.number()),
                (Some(session), Some((before, number, _))) if session == *before => (session, *number),
                (_, Some((.., why))) => return Err(Error::OutcomeUnknown(why.clone())),
            };
            put_number(&mut command, number);
            match self.after(&linked, self.queue(&linked.controller).execute(command, data, room)) {
                Err(Error::Connection(why)) => {
                    sent = Some((session, number, why));
                    // The connection has just been made again, if that was possible.
                    if attempt > 0 {
                        std::thread::sleep(ATTEMPT_PAUSE);
                    }
                }
                // This many others have overtaken it, on its first way to the target, that it was not executed.
                Ok(finished) if finished.status.is(Status::OUTCOME_FORGOTTEN) && sent.is_none() => {}
                Ok(finished) if finished.status.is(Status::OUTCOME_FORGOTTEN) => break,
                // The target gave it up with the lost connection: before it had an effect, unless it is a merge.
                Ok(finished) if finished.status.is(Status::ABORT_REQUESTED) && sent.is_some() => {
                    if command.opcode == kv::MERGE {
                        break;
                    }
                    sent = None;
                }
                done => return done,
            }
        }
        Err(Error::OutcomeUnknown(sent.map_or("the target is busy".to_owned(), |(.., why)| why)))
    }

    fn has_session(&self) -> bool {
        self.linked().session.is_some()
    }

    fn reads(
        &self,
        commands: &[(Command, usize)],
        answer: &mut dyn FnMut(usize, Result<Finished, Error>),
    ) -> Option<()> {
        let linked = self.linked();
        let queue = self.queue(&linked.controller);
        let mut in_flight = VecDeque::new();
        for (number, (command, room)) in commands.iter().enumerate() {
            loop {
                // A caller that holds places must not wait for one: others who hold the remainder may be waiting, too.
                let submitted = match in_flight.len() {
                    0 => queue.submit(*command, &[], *room).map(Some),
                    IN_FLIGHT.. => Ok(None),
                    _ => queue.try_submit(*command, &[], *room),
                };
                match submitted {
                    Ok(Some(ticket)) => {
                        in_flight.push_back((number, ticket));
                        break;
                    }
                    Ok(None) => {
                        let (first, ticket) =
                            in_flight.pop_front().expect("only a caller that holds places has to wait");
                        answer(first, queue.wait(ticket));
                    }
                    Err(error) => {
                        answer(number, Err(error));
                        break;
                    }
                }
            }
        }
        in_flight.into_iter().for_each(|(number, ticket)| answer(number, queue.wait(ticket)));
        Some(())
    }

    fn transfer_bytes_max(&self) -> usize {
        self.linked().controller.transfer_bytes_max()
    }

    fn name(&self) -> String {
        format!("nvme+tcp://{}/{}", self.address, self.subsystem)
    }
}
