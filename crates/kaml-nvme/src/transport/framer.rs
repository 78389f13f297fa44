//! Cuts a stream of bytes into PDUs.
//!
//! Lives here:       the receive buffer, length and digest checks, filling data where they are needed.
//! Lives elsewhere:  what PDUs mean (`target::connection`, `host::queue`), sockets (the callers).
//! Implements:       spec:NVMe-TCP "PDU Structure", "Digests".
//!
//! The caller puts received bytes into [`Framer::space`], states how many, and takes [`Event`]s until there are none. After a
//! header that announces data it reports where they go; long data are then received right there. Short ones that are here
//! already can be read where they are.
//!
//! Memory: one receive buffer of [`INBOX_BYTES`], or of [`SMALL_INBOX_BYTES`] until [`Framer::grow`] is called; data go to memory that the
//! caller has allowed.

use super::{DIGEST_BYTES, Digests, End, padded_digest};
use crate::wire::pdu::{Common, Fatal, HEADER_BYTES_MAX, Header, flags, kind};
use std::ops::Range;
use zerocopy::FromBytes;

/// Bytes of the receive buffer: several dozens of commands, or four with 8 KiB of data, for each system call.
pub const INBOX_BYTES: usize = 64 << 10;
/// Bytes of the receive buffer of a connection that may be anybody's: a command with 8 KiB of data, and the next one.
pub const SMALL_INBOX_BYTES: usize = 20 << 10;
/// Data of at least this many bytes to come are received in place.
const IN_PLACE_BYTES: usize = 16 << 10;

const _: () = assert!(SMALL_INBOX_BYTES > HEADER_BYTES_MAX + 256 + IN_PLACE_BYTES && INBOX_BYTES > SMALL_INBOX_BYTES);

/// What came.
#[derive(Debug)]
pub enum Event {
    /// A header, and how many bytes of data follow. If any do, [`Framer::take_here`] or [`Framer::place`] must be called next.
    Header(Header, usize),
    /// The data, in the buffer that they were placed in, and whether their digest (if there is one) is right.
    Data(Vec<u8>, bool),
}

/// See the module.
pub struct Framer {
    end: End,
    digests: Digests,
    inbox: Box<[u8]>,
    /// What is not read yet.
    unread: Range<usize>,
    /// The last header, until the next bytes are received.
    head: Range<usize>,
    state: State,
    in_place: bool,
    pads_digests: bool,
}

enum State {
    Header,
    /// A header with this many bytes of data is complete; the place of the data is not known yet.
    Place(usize, bool),
    Data(Filling),
}

struct Filling {
    into: Vec<u8>,
    begin: usize,
    at: usize,
    end: usize,
    digest: bool,
}

impl Framer {
    /// For one end of a connection; digests are off until agreed on.
    pub fn new(end: End) -> Framer {
        Framer::with_inbox(end, INBOX_BYTES)
    }

    /// With a small receive buffer.
    pub fn small(end: End) -> Framer {
        Framer::with_inbox(end, SMALL_INBOX_BYTES)
    }

    fn with_inbox(end: End, bytes: usize) -> Framer {
        let inbox = vec![0; bytes].into_boxed_slice();
        let (digests, state) = (Digests::default(), State::Header);
        Framer { end, digests, inbox, unread: 0..0, head: 0..0, state, in_place: false, pads_digests: false }
    }

    /// Makes a small receive buffer as large as others. What is in it keeps its place.
    pub fn grow(&mut self) {
        if self.inbox.len() < INBOX_BYTES {
            let mut inbox = vec![0; INBOX_BYTES].into_boxed_slice();
            inbox[..self.inbox.len()].copy_from_slice(&self.inbox);
            self.inbox = inbox;
        }
    }

    /// From the next PDU on.
    pub fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    /// Whether the stream stands within a PDU.
    pub fn is_within(&self) -> bool {
        !matches!(self.state, State::Header) || !self.unread.is_empty()
    }

    /// Whether the peer has been seen to fill data up with zeros for their digest.
    pub fn pads_digests(&self) -> bool {
        self.pads_digests
    }

    /// Where to receive; never empty when all events were taken.
    pub fn space(&mut self) -> &mut [u8] {
        if self.unread.start > 0 {
            self.inbox.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        match &mut self.state {
            State::Data(filling) if self.unread.is_empty() && filling.end - filling.at >= IN_PLACE_BYTES => {
                self.in_place = true;
                &mut filling.into[filling.at..filling.end]
            }
            _ => {
                self.in_place = false;
                &mut self.inbox[self.unread.end..]
            }
        }
    }

    /// This many bytes were received into the space.
    pub fn received(&mut self, count: usize) {
        match &mut self.state {
            State::Data(filling) if self.in_place => filling.at += count,
            _ => self.unread.end += count,
        }
        assert!(self.unread.end <= self.inbox.len(), "no more can be received than there is space");
    }

    /// Sets where the announced data are placed: from byte `at` of a buffer that has room for them.
    pub fn place(&mut self, into: Vec<u8>, at: usize) {
        let State::Place(bytes, digest) = self.state else {
            panic!("data are placed after a header that announced them")
        };
        assert!(at + bytes <= into.len(), "the caller has checked that the data fit");
        self.state = State::Data(Filling { into, begin: at, at, end: at + bytes, digest });
    }

    /// Takes the announced data where they were received, if all of them have arrived: where [`Framer::here`] finds them, and
    /// whether their digest (if there is one) is right. Nothing if they are not; they must be placed then.
    pub fn take_here(&mut self) -> Option<(Range<usize>, bool)> {
        let State::Place(bytes, digest) = self.state else {
            panic!("data are taken after a header that announced them")
        };
        let end_bytes = bytes + if digest { DIGEST_BYTES } else { 0 };
        if self.unread.len() < end_bytes {
            return None;
        }
        let here = self.unread.start..self.unread.start + bytes;
        let intact = !digest || {
            let crc = kaml_crc::crc32c(&self.inbox[here.clone()]);
            let received = *self.inbox[here.end..].first_chunk().expect("counted");
            self.is_digest(crc, bytes, received)
        };
        self.unread.start += end_bytes;
        self.state = State::Header;
        Some((here, intact))
    }

    /// Data that were taken where they are; until [`Framer::space`] is called next.
    pub fn here(&self, range: Range<usize>) -> &[u8] {
        &self.inbox[range]
    }

    /// Whether a digest is that of this many bytes with this checksum, filled up with zeros or not.
    fn is_digest(&mut self, crc: u32, bytes: usize, received: [u8; DIGEST_BYTES]) -> bool {
        let received = u32::from_le_bytes(received);
        let is_padded = crc != received && padded_digest(crc, bytes) == received;
        self.pads_digests |= is_padded;
        crc == received || is_padded
    }

    /// The next event, if the bytes for one have arrived.
    pub fn next_event(&mut self) -> Result<Option<Event>, Fatal> {
        match &mut self.state {
            State::Header => self.header(),
            State::Place(..) => panic!("data are placed before more events are taken"),
            State::Data(_) => Ok(self.data()),
        }
    }

    /// The received part of the header that was read last, or was invalid; taken before anything more is received.
    pub fn head(&self) -> &[u8] {
        &self.inbox[self.head.clone()]
    }

    fn header(&mut self) -> Result<Option<Event>, Fatal> {
        let unread = &self.inbox[self.unread.clone()];
        let Ok((common, _)) = Common::read_from_prefix(unread) else { return Ok(None) };
        let head_bytes = common.expected_header_bytes().unwrap_or(size_of::<Common>());
        self.head = self.unread.start..self.unread.end.min(self.unread.start + head_bytes);
        let frame = Frame::of(&common, self.end, self.digests)?;
        let Some(head) = unread.get(..frame.data_at) else { return Ok(None) };
        let (header, rest) = head.split_at(frame.header_bytes);
        if frame.header_digest {
            let received = u32::from_le_bytes(rest[..DIGEST_BYTES].try_into().expect("counted in the offset of data"));
            if kaml_crc::crc32c(header) != received {
                return Err(Fatal::HeaderDigest { received });
            }
        }
        let header = Header::parse(header)?;
        self.unread.start += frame.data_at;
        if frame.data_bytes > 0 {
            self.state = State::Place(frame.data_bytes, frame.data_digest);
        }
        Ok(Some(Event::Header(header, frame.data_bytes)))
    }

    fn data(&mut self) -> Option<Event> {
        let State::Data(filling) = &mut self.state else { unreachable!("seen by the caller") };
        let here = (filling.end - filling.at).min(self.unread.len());
        let from = &self.inbox[self.unread.start..][..here];
        filling.into[filling.at..][..here].copy_from_slice(from);
        filling.at += here;
        self.unread.start += here;
        if filling.at < filling.end {
            return None;
        }
        let mut intact = true;
        if filling.digest {
            let received = *self.inbox[self.unread.clone()].first_chunk()?;
            let (crc, bytes) =
                (kaml_crc::crc32c(&filling.into[filling.begin..filling.end]), filling.end - filling.begin);
            intact = self.is_digest(crc, bytes, received);
            self.unread.start += DIGEST_BYTES;
        }
        let State::Data(filling) = std::mem::replace(&mut self.state, State::Header) else {
            unreachable!("seen above")
        };
        let into = filling.into;
        Some(Event::Data(into, intact))
    }
}

/// Where the parts of a PDU lie.
struct Frame {
    header_bytes: usize,
    header_digest: bool,
    data_at: usize,
    data_bytes: usize,
    data_digest: bool,
}

impl Frame {
    /// Checks the first 8 bytes.
    fn of(common: &Common, end: End, digests: Digests) -> Result<Frame, Fatal> {
        let header_bytes = common.expected_header_bytes()?;
        let to_host =
            matches!(common.kind, kind::IC_RESP | kind::C2H_TERM | kind::RESPONSE | kind::C2H_DATA | kind::R2T);
        if to_host != (end == End::Host) {
            return Err(Fatal::Field { offset: 0 });
        }
        if usize::from(common.header_bytes) != header_bytes {
            return Err(Fatal::Field { offset: 2 });
        }
        let is = |flag| common.flags & flag != 0;
        let header_digest = digests.header && common.is_digested();
        if is(flags::HEADER_DIGEST) != header_digest {
            return Err(Fatal::Field { offset: 1 });
        }
        let pdu_bytes = common.pdu_bytes.get() as usize;
        let head_bytes = header_bytes + if header_digest { DIGEST_BYTES } else { 0 };
        if pdu_bytes == head_bytes {
            return Ok(Frame { header_bytes, header_digest, data_at: head_bytes, data_bytes: 0, data_digest: false });
        }
        let data_digest = digests.data && common.is_digested();
        if is(flags::DATA_DIGEST) != data_digest {
            return Err(Fatal::Field { offset: 1 });
        }
        let data_at = usize::from(common.data_offset);
        let tail_bytes = if data_digest { DIGEST_BYTES } else { 0 };
        if !common.may_have_data() || pdu_bytes <= head_bytes + tail_bytes {
            return Err(Fatal::Field { offset: 4 });
        }
        if data_at < head_bytes || data_at + tail_bytes >= pdu_bytes {
            return Err(Fatal::Field { offset: 3 });
        }
        let data_bytes = pdu_bytes - tail_bytes - data_at;
        Ok(Frame { header_bytes, header_digest, data_at, data_bytes, data_digest })
    }
}
