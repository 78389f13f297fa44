//! Ways to a device: whatever carries commands to its controller.
//!
//! Lives here:       what a way must offer; the one over TCP, with its queues and connecting again.
//! Lives elsewhere:  the way through Linux (`passthrough`), the device behind a way (`remote`).

use super::{Controller, Error, Finished, HostOptions, Queue};
use crate::wire::command::Command;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Commands of one call in flight.
const IN_FLIGHT: usize = 32;

/// Carries commands from any threads. When a connection is lost it is made again, if possible, but the command fails:
/// nobody here knows whether it may be sent twice.
pub(super) trait Carrier: Send + Sync {
    /// An admin command.
    fn admin(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error>;

    /// A command of a namespace.
    fn io(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error>;

    /// Reading commands, each with its room, many in flight; answers come with their number, while others are in flight: whoever
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

/// A controller behind TCP.
pub(super) struct Tcp {
    address: String,
    subsystem: String,
    options: HostOptions,
    controller: Mutex<Arc<Controller>>,
    turn: AtomicUsize,
}

impl Tcp {
    pub(super) fn connect(address: &str, subsystem: &str, options: &HostOptions) -> Result<Tcp, Error> {
        let controller = Controller::connect(address, subsystem, options)?;
        if controller.queues().is_empty() {
            return Err(Error::Unsupported("I/O queues"));
        }
        Ok(Tcp {
            address: address.to_owned(),
            subsystem: subsystem.to_owned(),
            options: options.clone(),
            controller: Mutex::new(Arc::new(controller)),
            turn: AtomicUsize::new(0),
        })
    }

    fn controller(&self) -> Arc<Controller> {
        Arc::clone(&self.controller.lock().expect("no panics under this lock"))
    }

    /// The next queue that has its turn.
    fn queue<'a>(&self, controller: &'a Controller) -> &'a Queue {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        &controller.queues()[turn % controller.queues().len()]
    }

    /// Connects again after a loss, unless somebody else has.
    fn after<T>(&self, controller: &Arc<Controller>, done: Result<T, Error>) -> Result<T, Error> {
        if let Err(Error::Connection(_)) = done {
            let mut current = self.controller.lock().expect("no panics under this lock");
            if Arc::ptr_eq(&current, controller) {
                match Controller::connect(&self.address, &self.subsystem, &self.options) {
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
        let controller = self.controller();
        self.after(&controller, controller.admin().execute(command, data, room))
    }

    fn io(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error> {
        let controller = self.controller();
        self.after(&controller, self.queue(&controller).execute(command, data, room))
    }

    fn reads(
        &self,
        commands: &[(Command, usize)],
        answer: &mut dyn FnMut(usize, Result<Finished, Error>),
    ) -> Option<()> {
        let controller = self.controller();
        let queue = self.queue(&controller);
        let mut in_flight = VecDeque::new();
        for (number, (command, room)) in commands.iter().enumerate() {
            loop {
                // Who holds places must not wait for one: others who hold the rest may be waiting, too.
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
                        let (first, ticket) = in_flight.pop_front().expect("only who holds places is told to wait");
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
        self.controller().transfer_bytes_max()
    }

    fn name(&self) -> String {
        format!("nvme+tcp://{}/{}", self.address, self.subsystem)
    }
}
