//! One connection of the target, without its socket: bytes in, commands out; completions in, bytes out.
//!
//! Lives here:       initialisation, capsules, requesting data (R2T), gathering them, answers, flow control, what counts as memory.
//! Lives elsewhere:  what is handed out and taken back (`request`), what commands mean (`admin`, `fabrics`, `keyvalue`), the socket
//!                   (`reactor`), the memory of one connection (`share`) and of all (`budget`).
//! Implements:       spec:NVMe-TCP "Connection Establishment", "Data Transfer".
//!
//! ```text
//!  Opening ──InitRequest──▶ Open ──Terminate, or a PDU that makes no sense──▶ Closing
//! ```
//!
//! Memory: a command that moves data counts with the length it states, from when it is executed until its answer is
//! sent. No more than [`super::share::CONNECTION_BYTES_MAX`] count for one connection, and no more than the target allows for all:
//! further commands wait, which their hosts cannot determine from a busy device. [`CONNECTION_BYTES_MIN`] are reserved for each, so
//! short commands continue whatever others hold. A connection that has waited for long has its turn before others begin anything long. A host that
//! lets a command hold memory for long, because it sends or takes the data slowly, has to go when others wait (`reactor`). Before a
//! Connect, and before a controller is enabled, commands move no more than a capsule takes; those of discovery, less than others
//! ([`Transfers`]). Data in capsules arrive before anything could make them wait: they count as they come, and after all memory is in
//! use, or it is another one's turn, their connection is not listened to until what it requested is executed. Besides there are the
//! receive buffer and completions that are not sent: no more than the queue has entries, because a host that keeps to it has not taken
//! these entries again.

use super::budget::Budget;
use super::core::NewQueue;
use super::request::{Answer, CAPSULE_DATA_BYTES, Data, Request, Transfers};
use super::share::{CONNECTION_BYTES_MIN, Share};
use crate::tls::begins_tls;
use crate::transport::framer::{Event, Framer};
use crate::transport::outbox::Outbox;
use crate::transport::{Digests, End};
use crate::wire::command::{Command, Completion, Direction};
use crate::wire::fabrics::NO_FLOW_CONTROL;
use crate::wire::pdu::{Fatal, Header, Init, Transfer, kind};
use crate::wire::status::Status;
use kaml::Bytes;
use std::borrow::Cow;
use std::collections::VecDeque;

/// The longest data PDU we request: long enough that headers cost nothing, short enough to interleave. Longer ones are
/// taken, because kernels before 5.18 send all that an R2T requests in one.
const DATA_PDU_BYTES_MAX: u32 = 1 << 20;
/// Commands of one turn, at most, and at least where answers are long.
const TURN_COMMANDS_MAX: usize = 16;
const TURN_COMMANDS_MIN: usize = 3;
/// Bytes of answers of one turn, if there may be so few: TCP sends less than 64 KiB as one packet, and sixteen blocks of 4 KiB as
/// a packet and a crumb, which costs both ends as much.
const TURN_BYTES_MAX: usize = 62 << 10;
/// What comes with an answer's data: the header of its PDU, and a completion.
const ANSWER_HEAD_BYTES: usize = 48;
/// Entries of a queue before its Connect states how many.
const ENTRIES_AT_FIRST: usize = 1;
/// Commands whose completions are not sent, whatever the depth of the queue: so many can arrive together before a Connect completes.
const UNSENT_MIN: usize = 32;

enum Phase {
    Opening,
    Open,
    Closing,
}

/// What the data that arrive belong to.
enum Arriving {
    Nothing,
    Capsule(Command),
    Transfer {
        tag: u16,
        bytes: u32,
        last: bool,
    },
    /// Of a terminate request: nobody reads them.
    Ignored,
}

/// A command whose data were requested.
struct Gathering {
    command: Command,
    data: Vec<u8>,
    got: u32,
    intact: bool,
    /// A reset came meanwhile: its data are taken, and nothing is done with them.
    is_over: bool,
    /// The tick in which somebody listened when they were requested.
    since: u32,
}

/// See the module.
pub(super) struct Connection {
    framer: Framer,
    outbox: Outbox,
    phase: Phase,
    arriving: Arriving,
    /// By transfer tag.
    gathering: Vec<Option<Gathering>>,
    /// Commands that wait for memory, in the order they came, with the ticks when they did.
    parked: VecDeque<(Command, u32)>,
    refused: Vec<(Command, Status)>,
    entries: usize,
    transfers: Transfers,
    outstanding: usize,
    /// Where in the output the unsent completions end, with the ticks when they came.
    unsent: VecDeque<(u64, u32)>,
    sent_bytes: u64,
    sq_head: u16,
    flow_control: bool,
    share: Share,
    /// Bytes of data of the last answer.
    answered_bytes: usize,
    /// Its first byte was that of TLS.
    was_offered_tls: bool,
    /// Ticks of the target that have passed, and those of them in which somebody listened to the host.
    ticks: u32,
    heard_ticks: u32,
}

impl Connection {
    /// A new one; its data count in the budget.
    pub(super) fn new(budget: Budget) -> Connection {
        Connection {
            framer: Framer::small(End::Target),
            outbox: Outbox::new(End::Target),
            phase: Phase::Opening,
            arriving: Arriving::Nothing,
            gathering: Vec::new(),
            parked: VecDeque::new(),
            refused: Vec::new(),
            entries: ENTRIES_AT_FIRST,
            transfers: Transfers::Capsules,
            outstanding: 0,
            unsent: VecDeque::new(),
            sent_bytes: 0,
            sq_head: 0,
            flow_control: true,
            share: Share::new(budget),
            answered_bytes: 0,
            was_offered_tls: false,
            ticks: 0,
            heard_ticks: 0,
        }
    }

    /// Time has passed, always as much.
    pub(super) fn tick(&mut self) {
        self.ticks = self.ticks.wrapping_add(1);
        if !self.is_full() {
            self.heard_ticks = self.heard_ticks.wrapping_add(1);
        }
        self.outbox.rest();
    }

    /// Whether it ends because its host has begun TLS.
    pub(super) fn was_offered_tls(&self) -> bool {
        self.was_offered_tls
    }

    /// For how many ticks the host has let one command hold memory, whose data it sends, or takes, slowly. It cannot send while nobody
    /// listens.
    pub(super) fn held_ticks(&self) -> u32 {
        let asked_for = self.gathering.iter().flatten().map(|gathering| self.heard_ticks.wrapping_sub(gathering.since));
        let answered = self.unsent.front().map(|(_, since)| self.ticks.wrapping_sub(*since));
        asked_for.chain(answered).max().unwrap_or(0)
    }

    /// It has waited longest: it is its turn.
    pub(super) fn take_turn(&self) {
        self.share.begin_turn();
    }

    /// For how many ticks a command has waited for memory that others have.
    pub(super) fn waiting_ticks(&self) -> u32 {
        let Some((command, since)) = self.parked.front() else { return 0 };
        let waits = self.share.waits_for_others(self.outbox.held(), Self::moved_bytes(command));
        if waits { self.ticks.wrapping_sub(*since) } else { 0 }
    }

    /// Where to receive.
    pub(super) fn space(&mut self) -> &mut [u8] {
        self.framer.space()
    }

    /// This many bytes were received.
    pub(super) fn received(&mut self, count: usize) {
        self.framer.received(count);
    }

    /// What is to be sent.
    pub(super) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// How many commands to execute before what they came to is sent: hosts work on the first answers while the target
    /// works on the next ones, and many hosts share it evenly. The next answers are probably as long as the last one.
    pub(super) fn turn(&self) -> usize {
        (TURN_BYTES_MAX / (self.answered_bytes + ANSWER_HEAD_BYTES)).clamp(TURN_COMMANDS_MIN, TURN_COMMANDS_MAX)
    }

    /// This many bytes were sent.
    pub(super) fn sent(&mut self, count: usize) {
        self.outbox.sent(count);
        self.sent_bytes += count as u64;
        while self.unsent.front().is_some_and(|(end, _)| *end <= self.sent_bytes) {
            self.unsent.pop_front();
        }
        self.count();
    }

    /// Memory of data that are not needed any more.
    pub(super) fn take_spent(&mut self) -> impl Iterator<Item = Bytes> + '_ {
        self.outbox.take_spent()
    }

    /// Whether the peer, or what it sent, has ended the connection: the remaining output is sent, then it is closed.
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing)
    }

    /// Whether the host owes us the remainder of something that it has begun to send or was requested.
    pub(super) fn is_owed(&self) -> bool {
        self.framer.is_within() || self.gathering.iter().any(Option::is_some)
    }

    /// Whether nothing more is to be received for now: all memory is in use, or kept for whose turn it is, and more of it than each
    /// may always have is for commands of this connection that are being executed, which end by themselves. Data that were requested from
    /// the host end only by listening.
    pub(super) fn is_full(&self) -> bool {
        self.share.is_scarce() && self.share.reserved() - self.gathering_bytes() > CONNECTION_BYTES_MIN
    }

    /// Bytes that the host was requested.
    fn gathering_bytes(&self) -> usize {
        self.gathering.iter().flatten().map(|gathering| Self::moved_bytes(&gathering.command)).sum()
    }

    /// Whether commands wait for memory.
    pub(super) fn is_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Reads from a Connect how many commands may be outstanding, and whether completions report the head.
    pub(super) fn set_queue(&mut self, queue: NewQueue) {
        (self.entries, self.flow_control) = (queue.entries, queue.flow_control);
        if queue.is_authenticated {
            self.framer.grow();
        }
    }

    /// How much commands may move from now on.
    pub(super) fn set_transfers(&mut self, transfers: Transfers) {
        self.transfers = transfers;
    }

    /// Data that were sent with a command; taken before anything more is received.
    pub(super) fn data(&self, data: Data) -> Cow<'_, [u8]> {
        match data {
            Data::Here(range) => Cow::Borrowed(self.framer.here(range)),
            Data::Gathered(data) => Cow::Owned(data),
        }
    }

    /// The next command to execute. When what came makes no sense, the peer gets a terminate request and the connection closes.
    pub(super) fn next_request(&mut self) -> Option<Request> {
        let request = self.try_next().unwrap_or_else(|fatal| {
            tracing::debug!(%fatal, "closing a connection");
            // A peer that ends the connection needs no response, however it ends it.
            let head = self.framer.head();
            self.was_offered_tls =
                matches!(self.phase, Phase::Opening) && head.first().is_some_and(|first| begins_tls(*first));
            if head.first() != Some(&kind::H2C_TERM) {
                self.outbox.push_copy(&Header::Terminate(fatal.terminate()), head);
            }
            self.close();
            None
        });
        self.count();
        request
    }

    fn try_next(&mut self) -> Result<Option<Request>, Fatal> {
        if self.is_closing() {
            return Ok(None);
        }
        loop {
            while let Some((command, _)) = self.parked.front().copied()
                && self.has_room(&command)
            {
                self.parked.pop_front();
                self.share.end_turn();
                if let Some(request) = self.start(command) {
                    return Ok(Some(request));
                }
            }
            let request = match self.framer.next_event()? {
                None => return Ok(None),
                Some(Event::Header(header, bytes)) => self.header(header, bytes)?,
                Some(Event::Data(data, intact)) => self.arrived(data, intact),
            };
            if request.is_some() || self.is_closing() {
                return Ok(request);
            }
        }
    }

    /// The connection is closed after what is to be sent was sent.
    pub(super) fn end(&mut self) {
        self.close();
        self.count();
    }

    /// Nothing more is executed: what waits ends without an answer.
    fn close(&mut self) {
        self.phase = Phase::Closing;
        self.forget_parked();
    }

    fn header(&mut self, header: Header, bytes: usize) -> Result<Option<Request>, Fatal> {
        match (&self.phase, header) {
            (Phase::Opening, Header::InitRequest(init)) => self.open(init)?,
            (Phase::Open, Header::Command(command)) => return self.command(command, bytes),
            (Phase::Open, Header::DataIn(transfer, last)) => self.transfer(transfer, last, bytes)?,
            (Phase::Open, Header::Terminate(terminate)) => {
                tracing::debug!(status = terminate.status.get(), "the host has ended a connection");
                if bytes > crate::wire::pdu::TERMINATE_DATA_MAX {
                    return Err(Fatal::Field { offset: 4 });
                }
                if bytes > 0 {
                    self.framer.place(vec![0; bytes], 0);
                    self.arriving = Arriving::Ignored;
                }
                self.close();
            }
            _ => return Err(Fatal::Sequence),
        }
        Ok(None)
    }

    fn open(&mut self, init: Init) -> Result<(), Fatal> {
        if init.format != 0 {
            return Err(Fatal::Unsupported { offset: 8 });
        }
        // Our data begin right after headers, which any alignment but a dword (0) could forbid.
        if init.alignment != 0 {
            return Err(Fatal::Unsupported { offset: 10 });
        }
        let digests = Digests::from_bits(init.digests);
        let limit = DATA_PDU_BYTES_MAX.into();
        let reply = Init { format: 0.into(), alignment: 0, digests: digests.bits(), limit, reserved: [0; 112] };
        self.outbox.push(&Header::InitResponse(reply));
        self.outbox.set_digests(digests);
        self.framer.set_digests(digests);
        self.phase = Phase::Open;
        Ok(())
    }

    fn command(&mut self, command: Command, bytes: usize) -> Result<Option<Request>, Fatal> {
        let unanswered = self.outstanding + self.unsent.len();
        if self.outstanding >= self.entries || unanswered >= self.entries.max(UNSENT_MIN) {
            return Err(Fatal::Limit);
        }
        if bytes > CAPSULE_DATA_BYTES {
            return Err(Fatal::Field { offset: 4 });
        }
        self.outstanding += 1;
        if bytes > 0 {
            if let Some((here, intact)) = self.framer.take_here() {
                self.outbox.set_padding(self.framer.pads_digests());
                return Ok(self.capsule(command, Data::Here(here), intact));
            }
            self.framer.place(vec![0; bytes], 0);
            self.arriving = Arriving::Capsule(command);
            return Ok(None);
        }
        let refused = match (command.sgl.is_in_capsule(), command.direction()) {
            (Err(status), _) => Some(status),
            (Ok(true), _) if command.sgl.length != 0 => Some(Status::SGL_LENGTH),
            (_, Direction::Both) => Some(Status::INVALID_OPCODE),
            (_, Direction::In | Direction::Out) if command.sgl.length.get() as usize > self.transfers.bytes_max() => {
                Some(Status::INVALID_FIELD)
            }
            _ => None,
        };
        if let Some(status) = refused {
            self.refuse(&command, status, 0);
            return Ok(None);
        }
        // Commands that move nothing, a Keep Alive for example, need not wait: commands have no order.
        if Self::moved_bytes(&command) > 0 && (!self.has_room(&command) || self.is_parked()) {
            self.parked.push_back((command, self.ticks));
            return Ok(None);
        }
        Ok(self.start(command))
    }

    /// Bytes that a command moves.
    fn moved_bytes(command: &Command) -> usize {
        if command.direction() == Direction::None { 0 } else { command.sgl.length.get() as usize }
    }

    fn has_room(&self, command: &Command) -> bool {
        self.share.has_room(self.outbox.held(), Self::moved_bytes(command))
    }

    /// Hands a command out, or requests its data.
    fn start(&mut self, command: Command) -> Option<Request> {
        let reserved = Self::moved_bytes(&command);
        self.share.reserve(reserved);
        self.count();
        if command.direction() != Direction::In || reserved == 0 {
            return Some(Request { command, data: Data::Gathered(Vec::new()), reserved });
        }
        let tag = self.gathering.iter().position(Option::is_none).unwrap_or_else(|| {
            self.gathering.push(None);
            self.gathering.len() - 1
        });
        self.gathering[tag] = Some(Gathering {
            command,
            data: vec![0; reserved],
            got: 0,
            intact: true,
            is_over: false,
            since: self.heard_ticks,
        });
        self.outbox.push(&Header::ReadyToTransfer(Transfer {
            cid: command.cid,
            tag: (tag as u16).into(), // fewer than entries of a queue
            offset: 0.into(),
            length: command.sgl.length,
            reserved: 0.into(),
        }));
        None
    }

    fn transfer(&mut self, transfer: Transfer, last: bool, bytes: usize) -> Result<(), Fatal> {
        let tag = transfer.tag.get();
        let gathering = self.gathering.get_mut(usize::from(tag)).and_then(Option::as_mut);
        let Some(gathering) = gathering else { return Err(Fatal::Field { offset: 10 }) };
        if gathering.command.cid != transfer.cid {
            return Err(Fatal::Field { offset: 8 });
        }
        let length = transfer.length.get();
        if length as usize != bytes || length == 0 {
            return Err(Fatal::Field { offset: 16 });
        }
        // In order and without gaps.
        if transfer.offset.get() != gathering.got || bytes > gathering.data.len() - gathering.got as usize {
            return Err(Fatal::Range);
        }
        self.framer.place(std::mem::take(&mut gathering.data), gathering.got as usize);
        self.arriving = Arriving::Transfer { tag, bytes: length, last };
        Ok(())
    }

    fn arrived(&mut self, data: Vec<u8>, intact: bool) -> Option<Request> {
        self.outbox.set_padding(self.framer.pads_digests());
        match std::mem::replace(&mut self.arriving, Arriving::Nothing) {
            Arriving::Nothing => unreachable!("data were announced"),
            Arriving::Ignored => None,
            Arriving::Capsule(command) => self.capsule(command, Data::Gathered(data), intact),
            Arriving::Transfer { tag, bytes, last } => {
                let place = &mut self.gathering[usize::from(tag)];
                let gathering = place.as_mut().expect("it is kept until its data are whole");
                gathering.data = data;
                gathering.got += bytes;
                gathering.intact &= intact;
                let whole = gathering.got as usize == gathering.data.len();
                if !whole && !last {
                    return None;
                }
                let Gathering { command, data, intact, is_over, .. } = place.take().expect("just seen");
                let reserved = Self::moved_bytes(&command);
                match (whole, intact) {
                    _ if is_over => self.forget(reserved),
                    (true, true) => return Some(Request { command, data: Data::Gathered(data), reserved }),
                    (true, false) => self.refuse(&command, Status::TRANSPORT, reserved),
                    (false, _) => self.refuse(&command, Status::DATA_TRANSFER, reserved),
                }
                None
            }
        }
    }

    /// Takes the data that the SGL names out of those in the capsule.
    fn capsule(&mut self, command: Command, mut data: Data, intact: bool) -> Option<Request> {
        let bytes = data.len();
        let (at, length) = (command.sgl.address.get(), command.sgl.length.get() as usize);
        let refused = match command.sgl.is_in_capsule() {
            _ if !intact => Some(Status::TRANSPORT),
            Err(status) => Some(status),
            Ok(false) => Some(Status::INVALID_SGL),
            Ok(true) if command.direction() != Direction::In => Some(Status::INVALID_FIELD),
            Ok(true) if at > bytes as u64 => Some(Status::SGL_OFFSET),
            Ok(true) if length > bytes - at as usize => Some(Status::SGL_LENGTH),
            Ok(true) => None,
        };
        if let Some(status) = refused {
            self.refuse(&command, status, 0);
            return None;
        }
        data.keep(at as usize, length);
        // What the command does not name is kept, too.
        self.share.reserve(bytes);
        Some(Request { command, data, reserved: bytes })
    }

    fn refuse(&mut self, command: &Command, status: Status, reserved: usize) {
        self.refused.push((*command, status));
        self.answer(Answer { cid: command.cid.get(), status, result: 0, data: Bytes::default(), reserved });
    }

    /// Commands that completed here, because no engine could execute them; the caller collects them after each
    /// [`Connection::next_request`].
    pub(super) fn take_refused(&mut self) -> impl Iterator<Item = (Command, Status)> + '_ {
        self.refused.drain(..)
    }

    /// A reset: commands that count so many bytes each end without an answer, and so do those that wait and, after the host has sent what
    /// it was requested, those whose data are on their way.
    pub(super) fn reset(&mut self, reserved: impl Iterator<Item = usize>) {
        reserved.for_each(|reserved| self.forget(reserved));
        self.forget_parked();
        self.gathering.iter_mut().flatten().for_each(|gathering| gathering.is_over = true);
        self.count();
    }

    /// Commands that wait end without an answer, and the turn with them.
    fn forget_parked(&mut self) {
        (0..self.parked.len()).for_each(|_| self.forget(0));
        self.parked.clear();
        self.share.end_turn();
    }

    /// A command ends without an answer.
    fn forget(&mut self, reserved: usize) {
        self.outstanding -= 1;
        self.share.release(reserved);
        self.sq_head = ((usize::from(self.sq_head) + 1) % self.entries.max(1)) as u16;
    }

    /// Returns a command. Data are sent only with success.
    pub(super) fn answer(&mut self, answer: Answer) {
        self.forget(answer.reserved);
        if self.is_closing() {
            self.count();
            return; // nothing comes after a terminate request
        }
        let with_data = answer.status.is_success() && !answer.data.is_empty();
        // A completion would carry nothing else: then the data replace it.
        let alone = with_data && !self.flow_control && answer.result == 0;
        self.answered_bytes = 0;
        if with_data {
            self.answered_bytes = answer.data.len();
            let transfer = Transfer {
                cid: answer.cid.into(),
                tag: 0.into(),
                offset: 0.into(),
                length: (answer.data.len() as u32).into(), // at most what the host requested, which has 32 bits
                reserved: 0.into(),
            };
            self.outbox.push_with(&Header::DataOut(transfer, true, alone), answer.data);
        }
        if !alone {
            let head = if self.flow_control { self.sq_head } else { NO_FLOW_CONTROL };
            self.outbox.push(&Header::Response(Completion::new(answer.cid, head, answer.status, answer.result)));
        }
        self.unsent.push_back((self.sent_bytes + self.outbox.bytes() as u64, self.ticks));
        self.count();
    }

    /// Brings what counts in the budget up to date.
    fn count(&mut self) {
        let held = self.outbox.held();
        self.share.count(held);
        // Others cannot make room for a connection that has too much itself.
        let is_alone_in_the_way =
            |(command, _): &(Command, u32)| self.share.is_too_much(held, Self::moved_bytes(command));
        if self.parked.front().is_some_and(is_alone_in_the_way) {
            self.share.end_turn();
        }
    }
}

#[cfg(test)]
mod tests;
