//! What a target logs: a process of its own, whose subscriber concerns nobody else.

use kaml::{CreateOptions, Device};
use kaml_nvme::host::{Controller, HostOptions};
use kaml_nvme::target::{Access, Options, Server};
use kaml_nvme::wire::command::Command;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps each event of the target as a line: its fields, in their order.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG && metadata.target().starts_with("kaml_nvme::target")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Lines {
    /// Waits for a line that contains all of these.
    fn expect(&self, parts: &[&str]) {
        let until = Instant::now() + Duration::from_secs(30);
        let is_there = || self.0.lock().unwrap().iter().any(|line| parts.iter().all(|part| line.contains(part)));
        while !is_there() {
            assert!(Instant::now() < until, "no event with {parts:?}: {:#?}", self.0.lock().unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Goal:   an operator sees at level `debug` which hosts connect and disconnect, why, which commands fail, and which hosts are silent or refused.
/// Method: a host that connects, sends an unknown command, and leaves; one of another name that is refused; a connection that
///         no queue comes of.
#[test]
fn connections_and_failures_are_logged() {
    let lines = Lines::default();
    tracing::subscriber::set_global_default(lines.clone()).unwrap();
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let host = "nqn.2026-01.org.example:host";
    let options = Options { access: Access::only([host]), ..Options::for_device(&device) };
    let server = Server::bind(&device, "127.0.0.1:0", options).unwrap();
    let (address, subsystem) = (server.address().to_string(), server.options().subsystem.clone());
    let stopper = server.stopper();
    let thread = std::thread::spawn(|| server.run());
    let named = |name: &str| HostOptions { host: name.into(), keep_alive: Duration::ZERO, ..HostOptions::default() };

    let controller = Controller::connect(&address, &subsystem, &named(host)).unwrap();
    lines.expect(&["a connection is made", "peer=Some(127.0.0.1:"]);
    lines.expect(&["a queue is connected", host, "queue=0"]);
    lines.expect(&["a queue is connected", host, "queue=1"]);
    controller.admin().execute(Command::new(0x7e, 77), &[], 0).unwrap();
    lines.expect(&["a command failed", "opcode=7eh", "namespace=77", "status="]);
    drop(controller);
    lines.expect(&["a queue is disconnected", host, "queue=0", "reason="]);
    lines.expect(&["a queue is disconnected", "queue=1", "reason="]);

    assert!(Controller::connect(&address, &subsystem, &named("nqn.2026-01.org.example:stranger")).is_err());
    lines.expect(&["a host may not connect a queue", "status="]);
    lines.expect(&["a connection ends that has no queue", "reason=\"the host has closed it\""]);

    stopper.stop();
    thread.join().unwrap().unwrap();
}
