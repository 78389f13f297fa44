//! The device over the wire: commands of one host thread in flight on a target, and what bare sockets move.
//!
//! Lives here:       the host's loop, the target in a thread of this process, the floor.
//! Lives elsewhere:  the protocol (`kaml-nvme`), the same commands without a wire (`micro`).
//!
//! Record `n` is block `n` of its size, or has key `n`; it begins with `n`, and a read that finds anything else stops the run.

use crate::figures::{Meter, histogram, record};
use crate::keys::Rng;
use crate::micro::Stop;
use crate::{Error, Figures};
use hdrhistogram::Histogram;
use kaml::{Device, Key};
use kaml_nvme::host::{Blocks, Controller, Finished, HostOptions, KeyValue, Queue, RemoteUrl, Ticket, Wait};
use kaml_nvme::target::{self, Access, Options, Server, Stopper};
use kaml_nvme::wire::command::Command;
use rustix::event::{PollFd, PollFlags};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A target on loopback in a thread of this process.
pub struct Served {
    /// Where it is.
    pub url: RemoteUrl,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), target::Error>>>,
}

impl Served {
    /// Serves a device; with `busy_poll` it never sleeps.
    pub fn start(device: &Device, busy_poll: bool) -> Result<Served, Error> {
        let access = Access::open().with_all_rights();
        let server = Server::bind(device, "127.0.0.1:0", Options { busy_poll, access, ..Options::for_device(device) })?;
        let url = RemoteUrl { address: server.address().to_string(), subsystem: server.options().subsystem.clone() };
        let stopper = server.stopper();
        let run = std::thread::Builder::new().name("target".into()).spawn(|| server.run());
        Ok(Served { url, stopper, thread: Some(run.map_err(Error::io("starting a thread"))?) })
    }

    /// Returns what is in flight and ends.
    pub fn stop(mut self) -> Result<(), Error> {
        self.stopper.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(ended)) => Ok(ended?),
            Some(Err(_)) => Err(Error::Wrong("the target panicked".into())),
            None => Ok(()),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stopper.stop();
    }
}

/// Which command is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Read of blocks.
    Read,
    /// Write of blocks.
    Write,
    /// Retrieve of a value.
    Retrieve,
    /// Store of a value.
    Store,
}

impl Work {
    fn is_read(self) -> bool {
        matches!(self, Work::Read | Work::Retrieve)
    }

    fn name(self) -> &'static str {
        match self {
            Work::Read => "read",
            Work::Write => "write",
            Work::Retrieve => "retrieve",
            Work::Store => "store",
        }
    }

    /// What puts the records there that this one works on.
    fn filling(self) -> Work {
        match self {
            Work::Read | Work::Write => Work::Write,
            Work::Retrieve | Work::Store => Work::Store,
        }
    }
}

/// What is sent, and how.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Which command.
    pub work: Work,
    /// Bytes of a record: for blocks a multiple of theirs, at least 8.
    pub bytes: usize,
    /// Records that are chosen from.
    pub records: u64,
    /// Commands in flight, all connections together.
    pub in_flight: usize,
    /// Connections.
    pub connections: usize,
    /// The host never sleeps.
    pub spin: bool,
    /// When it ends.
    pub stop: Stop,
}

impl Load {
    /// Commands in flight on one of the connections.
    fn in_flight_on(&self, connection: usize) -> usize {
        self.in_flight / self.connections + usize::from(connection < self.in_flight % self.connections)
    }
}

/// Sends commands to a namespace of a target, random ones among records that are written first.
pub fn run(url: &RemoteUrl, nsid: u32, load: &Load) -> Result<Figures, Error> {
    if load.records == 0 || load.in_flight == 0 || load.connections == 0 || load.bytes < 8 {
        return Err(Error::Parameters("records of at least 8 bytes, at least one, in flight on at least one".into()));
    }
    let each = load.in_flight_on(0);
    let (queues, depth) = (u16::try_from(load.connections).ok(), u16::try_from(each.max(32)).ok());
    let Some((queues, depth)) = queues.zip(depth) else {
        return Err(Error::Parameters("so many connections, or commands on one".into()));
    };
    let controller =
        Controller::connect(&url.address, &url.subsystem, &HostOptions { queues, depth, ..HostOptions::default() })?;
    if controller.queues().len() < load.connections {
        return Err(Error::Parameters(format!("the target grants {} connections", controller.queues().len())));
    }
    let fill = Load { work: load.work.filling(), stop: Stop::at(load.records), ..*load };
    drive(&controller, nsid, &fill, &mut (0..load.records))?;
    let mut random = Rng::new(load.records);
    let mut chosen = std::iter::repeat_with(|| random.below(load.records));
    let meter = Meter::start();
    let latencies = drive(&controller, nsid, load, &mut chosen)?;
    let what = format!(
        "{} {} B, {} in flight, {} connection(s){}",
        load.work.name(),
        load.bytes,
        load.in_flight,
        load.connections,
        if load.spin { ", polled" } else { "" }
    );
    let count = latencies.len();
    Ok(meter.stop(what, count, count * load.bytes as u64, &latencies))
}

/// Keeps commands in flight on all queues until it is to stop or there is nothing more to do.
fn drive(
    controller: &Controller,
    nsid: u32,
    load: &Load,
    chosen: &mut dyn Iterator<Item = u64>,
) -> Result<Histogram<u64>, Error> {
    let client = |(at, queue)| Client::new(controller, queue, nsid, load, load.in_flight_on(at));
    let queues = controller.queues().iter().take(load.connections).enumerate();
    let mut clients = queues.map(client).collect::<Result<Vec<_>, Error>>()?;
    let (mut latencies, mut answers) = (histogram(), Vec::new());
    let (begin, mut started) = (Instant::now(), 0);
    // One queue is waited for by receiving, several ones all at once.
    let sleeps = !load.spin && clients.len() > 1;
    let wait = if load.spin || sleeps { Wait::No } else { Wait::Yes };
    let mut fds: Vec<_> = clients.iter().map(|client| PollFd::new(client.queue, PollFlags::IN)).collect();
    loop {
        let now = Instant::now();
        let going_on = now - begin < load.stop.duration;
        let mut answered = 0;
        for (client, fd) in clients.iter_mut().zip(&fds) {
            if client.in_flight > 0 && !(sleeps && fd.revents().is_empty()) {
                client.queue.poll(wait, &mut answers)?;
            }
            answered += answers.len();
            answers.drain(..).try_for_each(|(ticket, finished)| client.answered(ticket, finished, &mut latencies))?;
            let before = started;
            while going_on && started < load.stop.operations && client.in_flight < client.in_flight_max {
                let Some(number) = chosen.next() else { break };
                client.start(number, now)?;
                started += 1;
            }
            // At once: the other queues take their time.
            if started > before {
                client.queue.send()?;
            }
        }
        let in_flight: usize = clients.iter().map(|client| client.in_flight).sum();
        if in_flight == 0 && (!going_on || answered == 0) {
            return Ok(latencies);
        }
        if sleeps && in_flight > 0 {
            rustix::event::poll(&mut fds, None).map_err(|error| Error::io("waiting for answers")(error.into()))?;
        }
    }
}

/// One queue, and what is in flight on it.
struct Client<'a> {
    queue: &'a Queue,
    target: Target<'a>,
    load: &'a Load,
    /// What is sent with each write; its beginning is the record's number.
    data: Vec<u8>,
    /// Number and start of each command, by its place in the queue.
    started: Vec<(u64, Instant)>,
    in_flight: usize,
    in_flight_max: usize,
}

enum Target<'a> {
    Blocks(Blocks<'a>),
    Records(KeyValue<'a>),
}

impl<'a> Client<'a> {
    fn new(
        controller: &Controller,
        queue: &'a Queue,
        nsid: u32,
        load: &'a Load,
        in_flight_max: usize,
    ) -> Result<Client<'a>, Error> {
        let target = match load.work {
            Work::Read | Work::Write => Target::Blocks(Blocks::new(controller, queue, nsid)?),
            Work::Retrieve | Work::Store => Target::Records(KeyValue::new(queue, nsid)),
        };
        let (data, started) = (vec![0x5a; load.bytes], Vec::new());
        Ok(Client { queue, target, load, data, started, in_flight: 0, in_flight_max })
    }

    fn command(&self, number: u64) -> Result<Command, Error> {
        let bytes = self.load.bytes;
        Ok(match (&self.target, self.load.work.is_read()) {
            (Target::Blocks(blocks), true) => blocks.reading(number * (bytes / blocks.block_bytes()) as u64, bytes)?,
            (Target::Blocks(blocks), false) => blocks.writing(number * (bytes / blocks.block_bytes()) as u64, bytes)?,
            (Target::Records(records), true) => records.retrieving(&Key::from(number), bytes),
            (Target::Records(records), false) => records.storing(&Key::from(number), bytes, 0),
        })
    }

    fn start(&mut self, number: u64, now: Instant) -> Result<(), Error> {
        let command = self.command(number)?;
        let ticket = match self.load.work.is_read() {
            true => self.queue.enqueue(command, &[], self.load.bytes)?,
            false => {
                self.data[..8].copy_from_slice(&number.to_le_bytes());
                self.queue.enqueue(command, &self.data, 0)?
            }
        };
        let ticket = ticket.ok_or_else(|| Error::Wrong("the queue takes fewer commands than its depth".into()))?;
        if self.started.len() <= ticket.place() {
            self.started.resize(ticket.place() + 1, (0, now));
        }
        self.started[ticket.place()] = (number, now);
        self.in_flight += 1;
        Ok(())
    }

    fn answered(&mut self, ticket: Ticket, finished: Finished, latencies: &mut Histogram<u64>) -> Result<(), Error> {
        let (number, start) = self.started[ticket.place()];
        self.in_flight -= 1;
        record(latencies, start.elapsed());
        let data = finished.success()?.data;
        if self.load.work.is_read() && (data.len() != self.load.bytes || data[..8] != number.to_le_bytes()) {
            return Err(Error::Wrong(format!("record {number} is another's, or has another size")));
        }
        self.queue.recycle(data);
        Ok(())
    }
}

/// What one thread can send to another one over a loopback connection, `bytes` at a time.
pub fn loopback(bytes: usize, duration: Duration) -> Result<Figures, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::io("listening"))?;
    let address = listener.local_addr().map_err(Error::io("listening"))?;
    let (mut latencies, data) = (histogram(), vec![0x5a; bytes]);
    let meter = Meter::start();
    let moved = std::thread::scope(|scope| -> std::io::Result<u64> {
        let receiver = scope.spawn(move || -> std::io::Result<u64> {
            let (mut socket, _) = listener.accept()?;
            let (mut into, mut moved) = (vec![0; bytes], 0);
            loop {
                match socket.read(&mut into)? {
                    0 => return Ok(moved),
                    count => moved += count as u64,
                }
            }
        });
        let mut socket = TcpStream::connect(address)?;
        let begin = Instant::now();
        while begin.elapsed() < duration {
            let start = Instant::now();
            socket.write_all(&data)?;
            record(&mut latencies, start.elapsed());
        }
        drop(socket);
        receiver.join().unwrap_or_else(|_| Err(std::io::Error::other("the receiver panicked")))
    });
    let moved = moved.map_err(Error::io("moving data over loopback"))?;
    Ok(meter.stop(format!("floor: bare loopback TCP, {bytes} B at a time"), latencies.len(), moved, &latencies))
}

/// How many requests of a command's size one thread can exchange with another one, one after the other, over a loopback
/// connection; with `spin` neither sleeps.
pub fn questions(answer_bytes: usize, spin: bool, duration: Duration) -> Result<Figures, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::io("listening"))?;
    let address = listener.local_addr().map_err(Error::io("listening"))?;
    let mut latencies = histogram();
    let meter = Meter::start();
    let asked = std::thread::scope(|scope| -> std::io::Result<()> {
        scope.spawn(move || -> std::io::Result<()> {
            let (mut socket, _) = listener.accept()?;
            prepare(&socket, spin)?;
            let (mut question, answer) = ([0; QUESTION_BYTES], vec![0x5a; answer_bytes]);
            // It ends with the connection.
            while receive(&mut socket, &mut question).is_ok() {
                socket.write_all(&answer)?;
            }
            Ok(())
        });
        let mut socket = TcpStream::connect(address)?;
        prepare(&socket, spin)?;
        let mut answer = vec![0; answer_bytes];
        let begin = Instant::now();
        while begin.elapsed() < duration {
            let start = Instant::now();
            socket.write_all(&[0x5a; QUESTION_BYTES])?;
            receive(&mut socket, &mut answer)?;
            record(&mut latencies, start.elapsed());
        }
        Ok(())
    });
    asked.map_err(Error::io("asking over loopback"))?;
    let count = latencies.len();
    let polled = if spin { ", polled" } else { "" };
    let what = format!("floor: bare loopback TCP, {QUESTION_BYTES} B there, {answer_bytes} B back{polled}");
    Ok(meter.stop(what, count, count * answer_bytes as u64, &latencies))
}

/// A command in its capsule.
const QUESTION_BYTES: usize = 72;

fn prepare(socket: &TcpStream, spin: bool) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(spin)
}

/// Reads until the buffer is full, again and again if there is nothing.
fn receive(socket: &mut TcpStream, mut into: &mut [u8]) -> std::io::Result<()> {
    while !into.is_empty() {
        match socket.read(into) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => into = &mut into[count..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaml::{BlockOptions, CreateOptions};

    /// Goal:   as many commands are in flight as requested, however many connections share them.
    /// Method: the shares of each, of numbers that are no multiples too.
    #[test]
    fn connections_share_what_is_in_flight() {
        for (in_flight, connections, shares) in
            [(10, 4, &[3, 3, 2, 2][..]), (8, 4, &[2; 4]), (1, 1, &[1]), (2, 3, &[1, 1, 0])]
        {
            let (work, stop) = (Work::Read, Stop::at(1));
            let load = Load { work, bytes: 512, records: 1, in_flight, connections, spin: false, stop };
            assert_eq!((0..connections).map(|at| load.in_flight_on(at)).collect::<Vec<_>>(), shares);
        }
    }

    /// Goal:   every kind of work runs over the wire, by one connection and by several, sleeping and polling.
    /// Method: a few hundred commands each on a device in memory; the floor moves something.
    #[test]
    fn every_work_runs() {
        let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
        let disk = device.create_namespace("disk", &BlockOptions::new(4096, 1000).into()).unwrap();
        let records = crate::micro::namespace(&device, "records").unwrap();
        let served = Served::start(&device, false).unwrap();
        for (work, nsid) in [(Work::Read, disk), (Work::Write, disk), (Work::Retrieve, records), (Work::Store, records)]
        {
            for (connections, in_flight, spin) in [(1, 1, false), (1, 32, true), (3, 47, false), (3, 2, true)] {
                let stop = Stop::at(300);
                let load = Load { work, bytes: 8192, records: 100, in_flight, connections, spin, stop };
                let figures = run(&served.url, nsid, &load).unwrap();
                assert_eq!((figures.operations, figures.bytes), (300, 300 * 8192), "{}", figures.what);
            }
        }
        let bad = Load {
            work: Work::Read,
            bytes: 8192,
            records: 1000,
            in_flight: 1,
            connections: 1,
            spin: false,
            stop: Stop::at(1),
        };
        assert!(matches!(run(&served.url, disk, &bad), Err(Error::Host(_))), "more blocks than there are");
        served.stop().unwrap();
        assert!(loopback(1 << 16, Duration::from_millis(20)).unwrap().bytes > 0);
        for spin in [false, true] {
            assert!(questions(5000, spin, Duration::from_millis(20)).unwrap().operations > 0);
        }
    }
}
