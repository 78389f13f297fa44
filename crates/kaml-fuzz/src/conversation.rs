//! Whole conversations with the target: two connections, of which the first becomes an admin queue and the second an I/O queue.
//!
//! The input is a script, not the bytes themselves, so a fuzzer need not find lengths, tags and numbers of namespaces by
//! chance; but any PDU can be sent wrong, and raw bytes too.

use kaml::{BlockOptions, CreateOptions, Device, KeyKind, NamespaceOptions, VersionOptions};
use kaml_nvme::target::{Access, Offline, Options};
use kaml_nvme::transport::framer::{Event, Framer};
use kaml_nvme::transport::outbox::Outbox;
use kaml_nvme::transport::{Digests, End};
use kaml_nvme::wire::command::{Command, Sgl, admin, kv};
use kaml_nvme::wire::fabrics::{CNTLID_DYNAMIC, Configuration, Connect, ConnectData, Property, kind, register};
use kaml_nvme::wire::pdu::{Header, Init, Transfer};
use kaml_nvme::wire::text::put_name;
use std::cell::RefCell;
use zerocopy::{FromZeros, IntoBytes};

/// Steps of one script at most.
const STEPS_MAX: usize = 64;
/// Data in progress that the target may hold, in bytes: little, so commands have to wait.
const MEMORY_BYTES: usize = 256 << 10;
/// What may count at most: one command is executed whatever its length, and data in capsules are taken in any case.
const BYTES_MAX: usize = MEMORY_BYTES + (2 << 20) + 2 * 32 * 8192;
/// Namespaces that a script may have made before the device is rebuilt.
const NAMESPACES_MAX: usize = 64;

/// A target that lives for many inputs: making a device takes longer than most of them.
struct World {
    device: Device,
    offline: Offline,
}

impl World {
    fn new() -> World {
        let device = Device::in_memory(&CreateOptions { block_bytes: Some(1 << 20), ..CreateOptions::new(48 << 20) });
        let device = device.expect("a device in memory");
        let access = Access::open().with_all_rights();
        let options = Options { memory_bytes: MEMORY_BYTES, access, ..Options::for_device(&device) };
        let offline = Offline::new(&device, options).expect("a target");
        World { device, offline }
    }

    /// A namespace of records, one of blocks, one that keeps versions, and an ordered one, which the script before may have
    /// deleted. None if there are too many others to make them again.
    fn namespaces(&self) -> Option<[u32; 4]> {
        let made = |name: &str, options: &NamespaceOptions| {
            let id = self.device.namespace(name).or_else(|_| self.device.create_namespace(name, options));
            id.ok().filter(|_| self.device.namespaces().len() <= NAMESPACES_MAX)
        };
        let records = made("records", &NamespaceOptions::default())?;
        let blocks = made("blocks", &BlockOptions::new(512, 5000).into())?;
        let past = made("past", &VersionOptions::default().into())?;
        Some([records, blocks, past, made("ordered", &NamespaceOptions::records(KeyKind::Ordered))?])
    }
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Plays one script.
pub fn conversation(script: &[u8]) {
    WORLD.with_borrow_mut(|world| {
        let spaces = world.as_ref().and_then(World::namespaces).unwrap_or_else(|| {
            let made = world.insert(World::new());
            made.namespaces().expect("a new device has room for them")
        });
        let world = world.as_mut().expect("just seen or made");
        Play::new(&mut world.offline, spaces, Script(script)).run();
        world.offline.settle();
        assert_eq!(world.offline.used_bytes(), 0, "memory of those who left is released");
        assert_eq!(world.offline.controller_count(), 0, "controllers of those who left are gone");
    });
}

/// What is left of the input; it reads as zeroes after its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    /// Mostly small, sometimes large.
    fn number(&mut self) -> u32 {
        match self.byte() {
            small @ 0..=199 => small.into(),
            200..=229 => u16::from_le_bytes(self.bytes()).into(),
            _ => u32::from_le_bytes(self.bytes()),
        }
    }
}

/// The host's end of one connection.
struct Side {
    link: u64,
    framer: Framer,
    outbox: Outbox,
    /// What the target requests.
    asked: Vec<Transfer>,
    /// It sent that the connection ends.
    /// A terminate request has come, and all of its data.
    terminates: bool,
    terminated: bool,
    /// The last result, which for a Connect is the controller.
    result: u64,
    /// The last result above 16 bits, which may be the number of a snapshot. These are drawn at random, so a script cannot have one.
    drawn: u32,
}

struct Play<'a> {
    offline: &'a mut Offline,
    spaces: [u32; 4],
    script: Script<'a>,
    ends: [Side; 2],
    digests: Digests,
    cid: u16,
}

impl<'a> Play<'a> {
    fn new(offline: &'a mut Offline, spaces: [u32; 4], mut script: Script<'a>) -> Play<'a> {
        let digests = Digests::from_bits(script.byte());
        let ends = [Side::new(offline), Side::new(offline)];
        Play { offline, spaces, script, ends, digests, cid: 0 }
    }

    fn run(mut self) {
        // Most scripts begin in order: the interesting commands are after that.
        let beginning = self.script.byte();
        if beginning & 1 == 0 {
            self.begin(0, 0, CNTLID_DYNAMIC);
            if beginning & 2 == 0 {
                self.property(register::CC, u64::from(Configuration::ALL_COMMAND_SETS.0));
                let controller = self.ends[0].result as u16;
                let other = if beginning & 4 == 0 { controller } else { self.script.byte().into() };
                self.begin(1, 1, other);
            }
        }
        for _ in 0..STEPS_MAX {
            if self.script.0.is_empty() {
                break;
            }
            self.step();
        }
        self.ends.iter().for_each(|end| self.offline.disconnect(end.link));
    }

    /// Initialises a connection and connects it to a queue.
    fn begin(&mut self, place: usize, queue: u16, controller: u16) {
        let init =
            Init { format: 0.into(), alignment: 0, digests: self.digests.bits(), limit: 0.into(), reserved: [0; 112] };
        self.ends[place].outbox.push(&Header::InitRequest(init));
        self.send(place, usize::MAX);
        self.ends[place].outbox.set_digests(self.digests);
        self.ends[place].framer.set_digests(self.digests);
        let mut data = ConnectData::new_zeroed();
        data.cntlid = controller.into();
        put_name(&mut data.subsystem, self.offline.subsystem());
        put_name(&mut data.host, "nqn.2024-01.test:host");
        let mut connect = Connect::new_zeroed();
        (connect.queue, connect.queue_size) = (queue.into(), 31.into());
        connect.attributes = self.script.byte();
        self.command(place, connect.command(), data.as_bytes());
    }

    fn property(&mut self, register: u32, value: u64) {
        self.command(0, Property::command(kind::PROPERTY_SET, register, false, value), &[]);
    }

    fn command(&mut self, place: usize, mut command: Command, data: &[u8]) {
        self.cid = self.cid.wrapping_add(1);
        command.cid = self.cid.into();
        if !data.is_empty() {
            command.sgl = Sgl::in_capsule(data.len() as u32);
        }
        self.ends[place].outbox.push_copy(&Header::Command(command), data);
        self.send(place, usize::MAX);
    }

    fn step(&mut self) {
        let what = self.script.byte();
        let place = usize::from(what >> 7);
        match what & 0x7f {
            0..=79 => self.some_command(place),
            80..=99 => self.data(place, true),
            100..=107 => self.data(place, false),
            108..=113 => {
                let count = self.script.byte();
                let raw: Vec<u8> = (0..count).map(|_| self.script.byte()).collect();
                self.receive(place, &raw);
            }
            114..=117 => {
                self.offline.disconnect(self.ends[place].link);
                self.ends[place] = Side::new(self.offline);
                let (queue, controller) = (self.script.byte(), self.script.byte());
                let controller = if controller == 0 { CNTLID_DYNAMIC } else { controller.into() };
                self.begin(place, queue.into(), controller);
            }
            118..=120 => {
                let (register, value) = (self.script.byte(), self.script.number());
                self.property(register.into(), value.into());
            }
            121..=123 => self.offline.settle(),
            124 => {
                let seconds = self.script.byte();
                self.offline.pass_time(seconds.into());
            }
            _ => {
                let terminate = Header::Terminate(FromZeros::new_zeroed());
                self.ends[place].outbox.push(&terminate);
                self.send(place, usize::MAX);
            }
        }
        self.drain();
    }

    fn some_command(&mut self, place: usize) {
        let script = &mut self.script;
        let (opcode, space) = (script.byte(), script.byte());
        let nsid = match space % 8 {
            0..=2 => self.spaces[0],
            3..=5 => self.spaces[1],
            6 if space & 8 != 0 => u32::MAX,
            6 => self.spaces[2],
            _ if space & 8 != 0 => self.spaces[3],
            _ => space.into(),
        };
        let mut command = Command::new(opcode, nsid);
        (command.cdw10, command.cdw11) = (script.number().into(), script.number().into());
        if space & 0x10 != 0 {
            (command.cdw2, command.cdw3) = (script.number().into(), script.number().into());
            (command.cdw12, command.cdw13) = (script.number().into(), script.number().into());
            (command.cdw14, command.cdw15) = (script.number().into(), script.number().into());
        }
        // Odd numbers stand for the snapshot that was opened last.
        let drawn = self.ends[place].drawn;
        match opcode {
            kv::CLOSE_SNAPSHOT if command.cdw10.get() % 2 == 1 => command.cdw10 = drawn.into(),
            kv::RETRIEVE_NAMED | kv::EXIST_NAMED | kv::RETRIEVE_RANGE | kv::COUNT_RANGE
                if command.cdw14.get() % 2 == 1 =>
            {
                command.cdw14 = drawn.into();
            }
            _ => {}
        }
        if space & 0x20 != 0 {
            command.flags = script.byte();
        }
        let length = script.number() & 0x1f_ffff;
        match space >> 6 {
            0 if length <= 9000 => {
                command.sgl = Sgl::in_capsule(length);
                command.sgl.address = u64::from(if space & 8 != 0 { script.byte() } else { 0 }).into();
                let mut head: [u8; 64] = script.bytes();
                shape(place, opcode, nsid, &mut head);
                let data: Vec<u8> = head.into_iter().cycle().take(length as usize).collect();
                self.cid = self.cid.wrapping_add(1);
                command.cid = self.cid.into();
                self.ends[place].outbox.push_copy(&Header::Command(command), &data);
            }
            _ => {
                command.sgl = Sgl::transport(length);
                self.cid = self.cid.wrapping_add(1);
                command.cid = self.cid.into();
                self.ends[place].outbox.push(&Header::Command(command));
            }
        }
        let cut = if space & 8 != 0 { usize::from(self.script.byte()) + 1 } else { usize::MAX };
        self.send(place, cut);
    }

    /// Data that the target requested, or others.
    fn data(&mut self, place: usize, right: bool) {
        let asked = self.ends[place].asked.pop();
        let mut transfer = match asked {
            Some(asked) => asked,
            None if right => return,
            None => Transfer::new_zeroed(),
        };
        if !right {
            transfer.tag = u16::from(self.script.byte()).into();
            transfer.offset = self.script.number().into();
            transfer.length = self.script.number().into();
        }
        let length = transfer.length.get().min(1 << 20) as usize;
        let step = (usize::from(self.script.byte()) * 4096).max(1 << 10);
        let fill = self.script.byte();
        let mut at = 0;
        while at < length {
            let count = step.min(length - at);
            let offset = transfer.offset.get().wrapping_add(at as u32);
            let part = Transfer { offset: offset.into(), length: (count as u32).into(), ..transfer };
            let last = at + count == length;
            self.ends[place].outbox.push_with(&Header::DataIn(part, last), vec![fill; count]);
            at += count;
        }
        self.send(place, usize::MAX);
    }

    /// Sends what is in a host's outbox, `step` bytes at a time.
    fn send(&mut self, place: usize, step: usize) {
        let outbox = &mut self.ends[place].outbox;
        let mut bytes = Vec::new();
        while outbox.bytes() > 0 {
            let before = bytes.len();
            outbox.slices().iter().for_each(|slice| bytes.extend_from_slice(slice));
            outbox.sent(bytes.len() - before);
        }
        bytes.chunks(step).for_each(|piece| self.receive(place, piece));
    }

    fn receive(&mut self, place: usize, bytes: &[u8]) {
        self.offline.receive(self.ends[place].link, bytes);
        self.drain();
    }

    /// Takes what the target sends on both connections. It never breaks the protocol itself.
    fn drain(&mut self) {
        for end in &mut self.ends {
            let sent = self.offline.take_sent(end.link);
            end.read(&sent);
        }
        assert!(self.offline.used_bytes() <= BYTES_MAX, "the budget holds");
    }
}

/// Has data begin as their command needs it, in most cases: with a namespace, or as our attributes do.
fn shape(place: usize, opcode: u8, nsid: u32, head: &mut [u8; 64]) {
    match (place, opcode) {
        _ if head[3] == 0 => {}
        (1, kv::PUT | kv::NAME_KEYS) => head[..4].copy_from_slice(&nsid.to_le_bytes()),
        // Both bounds and the prefix of at most 15 bytes, of kinds that exist.
        (1, kv::NAME_RANGE | kv::COUNT_RANGE | kv::DELETE_RANGE) => {
            (head[0], head[1]) = (head[0] % 3, head[1] % 3);
            [2, 3, 5, 7, 9, 10, 11, 12, 13, 14, 15].into_iter().for_each(|at| head[at] = 0);
            (head[4], head[6]) = (head[4] % 16 * u8::from(head[0] > 0), head[6] % 16 * u8::from(head[1] > 0));
            head[8] %= 16;
        }
        (0, admin::SET_NAMESPACE | admin::NAMESPACE_MANAGEMENT) => head[..5].copy_from_slice(b"KAML\x01"),
        _ => {}
    }
}

impl Side {
    fn new(offline: &mut Offline) -> Side {
        Side {
            link: offline.connect(),
            framer: Framer::new(End::Host),
            outbox: Outbox::new(End::Host),
            asked: Vec::new(),
            terminates: false,
            terminated: false,
            result: 0,
            drawn: 0,
        }
    }

    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = self.framer.space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            self.framer.received(count);
            while let Some(event) = self.framer.next_event().expect("the target keeps to the protocol") {
                assert!(!self.terminated, "nothing comes after a terminate request");
                match event {
                    Event::Header(Header::ReadyToTransfer(asked), 0) => self.asked.push(asked),
                    Event::Header(Header::Response(completion), 0) => {
                        self.result = completion.result.get();
                        if let Ok(number @ 0x1_0000..) = u32::try_from(self.result) {
                            self.drawn = number;
                        }
                    }
                    // What made no sense comes with it.
                    Event::Header(Header::Terminate(_), data) => {
                        self.framer.place(vec![0; data], 0);
                        self.terminates = true;
                    }
                    Event::Header(_, 0) => {}
                    Event::Header(_, data) => self.framer.place(vec![0; data], 0),
                    Event::Data(_, intact) => {
                        assert!(intact, "digests of the target are right");
                        self.terminated = self.terminates;
                    }
                }
            }
        }
    }
}
