//! PDUs on their way out.
//!
//! Lives here:       encoding with digests, gathering many PDUs for one system call.
//! Lives elsewhere:  sockets (the callers).
//! Implements:       spec:NVMe-TCP "PDU Structure", "Digests".

use super::{DIGEST_BYTES, Digests, End, padded_digest};
use crate::wire::pdu::{Common, Header, flags};
use kaml::Bytes;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::offset_of;

/// Data up to this many bytes are copied after their header, so many PDUs leave as one piece; longer ones are a
/// piece of their own. A copy of 16 KiB costs about as much as two more pieces.
const COPY_BYTES_MAX: usize = 16 << 10;
/// Pieces are closed when they are this long.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces for one system call.
const SLICES_MAX: usize = 64;
/// Data that are copied or sent and kept until somebody takes their memory.
const SPENT_MAX: usize = 32;

/// See the module.
pub struct Outbox {
    end: End,
    digests: Digests,
    pads_digests: bool,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    sent: usize,
    bytes: usize,
    /// An empty piece, kept for its memory until the outbox rests.
    spare: Vec<u8>,
    /// Data that are copied or sent, for a caller that reuses their memory.
    spent: Vec<Bytes>,
}

/// What is sent as one.
enum Piece {
    /// PDUs, to which more can be added.
    Gathered(Vec<u8>),
    /// Long data, where they are.
    Data(Bytes),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Gathered(bytes) => bytes,
            Piece::Data(bytes) => bytes,
        }
    }
}

impl Outbox {
    /// For one end of a connection; digests are off until agreed on.
    pub fn new(end: End) -> Outbox {
        Outbox {
            end,
            digests: Digests::default(),
            pads_digests: false,
            pieces: VecDeque::new(),
            sent: 0,
            bytes: 0,
            spare: Vec::new(),
            spent: Vec::new(),
        }
    }

    /// From the next PDU on.
    pub fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    /// From the next PDU on: whether data are filled up with zeros for their digest, as SPDK expects it.
    pub fn set_padding(&mut self, pads_digests: bool) {
        self.pads_digests = pads_digests;
    }

    /// Bytes that are not sent yet.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that are kept: a piece is, all of it, until it is sent whole.
    pub fn held(&self) -> usize {
        self.bytes + self.sent
    }

    /// Bytes of memory that are kept for the PDUs that come next.
    pub fn spare_bytes(&self) -> usize {
        self.spare.capacity()
    }

    /// Time has passed: keeps no memory if there is nothing to send.
    pub fn rest(&mut self) {
        if self.pieces.is_empty() {
            self.spare = Vec::new();
        }
    }

    /// Adds a PDU without data.
    pub fn push(&mut self, header: &Header) {
        self.push_head(header, 0);
    }

    /// Adds a PDU with data.
    pub fn push_with(&mut self, header: &Header, data: impl Into<Bytes>) {
        let data = data.into();
        if data.len() <= COPY_BYTES_MAX {
            self.push_copy(header, &data);
            return self.keep(data);
        }
        let digest = self.push_head(header, data.len()).then(|| self.digest(&data));
        self.bytes += data.len();
        self.pieces.push_back(Piece::Data(data));
        if let Some(digest) = digest {
            self.append(&digest.to_le_bytes());
        }
    }

    /// Adds a PDU with data that are copied.
    pub fn push_copy(&mut self, header: &Header, data: &[u8]) {
        let digest = self.push_head(header, data.len());
        self.append(data);
        if digest {
            self.append(&self.digest(data).to_le_bytes());
        }
    }

    fn digest(&self, data: &[u8]) -> u32 {
        let digest = kaml_crc::crc32c(data);
        if self.pads_digests { padded_digest(digest, data.len()) } else { digest }
    }

    /// What to send next.
    pub fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut skip = self.sent;
        let pieces = self.pieces.iter().take(SLICES_MAX);
        let slices = pieces.map(|piece| IoSlice::new(&piece.bytes()[std::mem::take(&mut skip)..]));
        slices.filter(|slice| !slice.is_empty()).collect()
    }

    /// This many bytes of the slices were sent.
    pub fn sent(&mut self, count: usize) {
        self.bytes -= count;
        self.sent += count;
        while let Some(first) = self.pieces.front()
            && self.sent >= first.bytes().len()
        {
            self.sent -= first.bytes().len();
            match self.pieces.pop_front().expect("just seen") {
                Piece::Data(data) => self.keep(data),
                Piece::Gathered(mut bytes) => {
                    if bytes.capacity() > self.spare.capacity() && bytes.capacity() <= 2 * PIECE_BYTES {
                        bytes.clear();
                        self.spare = bytes;
                    }
                }
            }
        }
    }

    fn keep(&mut self, data: Bytes) {
        if self.spent.len() < SPENT_MAX {
            self.spent.push(data);
        }
    }

    /// Memory of data that are not needed any more.
    pub fn take_spent(&mut self) -> std::vec::Drain<'_, Bytes> {
        self.spent.drain(..)
    }

    /// Appends header and header digest; returns whether a data digest must follow the data.
    fn push_head(&mut self, header: &Header, data_bytes: usize) -> bool {
        let (end, digests) = (self.end, self.digests);
        let before = self.bytes;
        let piece = self.tail();
        let begin = piece.len();
        header.encode(end == End::Host, piece);
        let head = &mut piece[begin..];
        let digested =
            Common { kind: head[0], flags: 0, header_bytes: 0, data_offset: 0, pdu_bytes: 0.into() }.is_digested();
        let header_digest = digests.header && digested;
        let data_digest = digests.data && digested && data_bytes > 0;
        let data_at = head.len() + if header_digest { DIGEST_BYTES } else { 0 };
        let pdu_bytes = data_at + data_bytes + if data_digest { DIGEST_BYTES } else { 0 };
        if header_digest {
            head[offset_of!(Common, flags)] |= flags::HEADER_DIGEST;
        }
        if data_digest {
            head[offset_of!(Common, flags)] |= flags::DATA_DIGEST;
        }
        if data_bytes > 0 {
            head[offset_of!(Common, data_offset)] = data_at as u8;
        }
        head[offset_of!(Common, pdu_bytes)..][..4].copy_from_slice(&(pdu_bytes as u32).to_le_bytes());
        if header_digest {
            let digest = kaml_crc::crc32c(head);
            piece.extend_from_slice(&digest.to_le_bytes());
        }
        self.bytes = before + data_at;
        data_digest
    }

    fn append(&mut self, bytes: &[u8]) {
        self.tail().extend_from_slice(bytes);
        self.bytes += bytes.len();
    }

    /// The piece that takes the next bytes.
    fn tail(&mut self) -> &mut Vec<u8> {
        let has_room = |piece: &Piece| matches!(piece, Piece::Gathered(bytes) if bytes.len() < PIECE_BYTES);
        if !self.pieces.back().is_some_and(has_room) {
            self.pieces.push_back(Piece::Gathered(std::mem::take(&mut self.spare)));
        }
        match self.pieces.back_mut() {
            Some(Piece::Gathered(bytes)) => bytes,
            _ => unreachable!("just put there, or seen"),
        }
    }
}
