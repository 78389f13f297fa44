//! Hosts that a program drives: it submits commands of any kind and learns which host is done.
//!
//! Lives here:       classes of commands, Puts of records of several namespaces, pauses.
//! Lives elsewhere:  what is submitted (`experiment::transactions`), executing it (`rig`).

use super::{BLOCK_BYTES, Event, Host, Job, Loaded, Rig, RigError};
use crate::load::{Ask, Load, Order};
use kaml_device::{BlockChange, Body, Condition, Key, Op};
use std::collections::VecDeque;
use std::ops::Range;

/// What commands of one kind have in common: namespace, command, bytes of a value.
pub(crate) type Class = (u32, Ask, u32);

/// A record of a namespace: its class by number, and its own number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) class: usize,
    pub(crate) number: u64,
}

/// What a host does next.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// Nothing, for so many nanoseconds: its processor computes.
    Pause(u64),
    /// Get of a record.
    Get(Record),
    /// One atomic Put of records, of any classes.
    Put(Vec<Record>),
    /// Read of bytes of a unit of a block namespace.
    Read(usize, Range<u64>),
    /// Write of bytes of a block namespace.
    Write(usize, Range<u64>),
}

/// The operations of a Put of records.
pub(super) fn ops<'a>(loads: &'a [Loaded], records: &[Record]) -> Vec<Op<'a>> {
    let op = |one: &Record| {
        let Loaded { load, value, crc32c, .. } = &loads[one.class];
        Op {
            namespace: load.space,
            key: Key::from(Load::key(one.number)).into(),
            body: Body::Value { value, crc32c: *crc32c },
            condition: Condition::Always,
            expires: Default::default(),
        }
    };
    records.iter().map(op).collect()
}

/// A program in progress: the hosts that are done.
#[derive(Default)]
pub(super) struct Program {
    pub(super) done: VecDeque<usize>,
}

impl Rig {
    /// Begins a program with so many hosts.
    pub(crate) fn begin_program(&mut self, classes: &[Class], hosts: usize) {
        let load = |(space, ask, bytes): &Class| {
            let (space, ask, bytes) = (*space, *ask, *bytes);
            let order = Order::Turn;
            Loaded::new(&Load { space, ask, bytes, batch: 1, records: 0..1, order, hosts, warm_up: 0, commands: None })
        };
        self.loads = classes.iter().map(load).collect();
        self.hosts = (0..hosts).map(|_| Host { load: 0, began: 0, job: Job::Nothing, reading: None }).collect();
        self.program = Some(Program::default());
    }

    /// Ends the program, when no host has a command in progress.
    pub(crate) fn end_program(&mut self) -> Result<(), RigError> {
        self.program = None;
        self.loads.clear();
        self.hosts.clear();
        self.rest()
    }

    /// Submits commands of several hosts that cross the link as one.
    pub(crate) fn submit(&mut self, commands: Vec<(usize, Command)>) -> Result<(), RigError> {
        let bytes_of = |loads: &[Loaded], class: usize| u64::from(loads[class].load.bytes);
        let (mut data, mut probes, mut pauses) = (0, 0, true);
        for (_, command) in &commands {
            pauses &= matches!(command, Command::Pause(_));
            match command {
                Command::Pause(_) => {}
                Command::Get(_) | Command::Read(..) => probes += 1,
                Command::Put(records) => {
                    data += records.iter().map(|one| bytes_of(&self.loads, one.class)).sum::<u64>()
                }
                Command::Write(_, range) => data += range.end - range.start,
            }
        }
        let now = self.now_ns;
        let taken = if pauses { now } else { self.controller.take(now, data, probes) };
        for (host, command) in commands {
            let (class, job) = match command {
                Command::Pause(ns) => {
                    self.push(now + ns, Event::Ask, host);
                    continue;
                }
                Command::Get(Record { class, number }) => (class, Job::Get { number }),
                Command::Put(records) => (records[0].class, Job::Batch { records }),
                Command::Read(class, range) => (class, Job::Read { range }),
                Command::Write(class, range) => {
                    let Loaded { load, value, .. } = &self.loads[class];
                    let change =
                        BlockChange::write(&self.reader, load.space, range.start / u64::from(BLOCK_BYTES), value)?;
                    (class, Job::Write { change: Box::new(change), range })
                }
            };
            let entry = &mut self.hosts[host];
            (entry.load, entry.job, entry.began) = (class, job, now);
            self.push(taken, Event::Taken, host);
        }
        Ok(())
    }

    /// Lets time pass until a host is done.
    pub(crate) fn next_done(&mut self) -> Result<usize, RigError> {
        let mut idle_turns = 0;
        loop {
            if let Some(host) = self.program.as_mut().and_then(|program| program.done.pop_front()) {
                return Ok(host);
            }
            idle_turns = if self.step()? { 0 } else { idle_turns + 1 };
            if idle_turns > super::IDLE_TURNS_MAX {
                return Err(RigError::Stuck(format!("{:?}", self.core)));
            }
        }
    }
}
