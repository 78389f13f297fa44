//! The two halves of the transport against each other, and against bytes that make no sense.

use super::framer::{Event, Framer};
use super::outbox::Outbox;
use super::{Digests, End};
use crate::wire::command::{Command, Completion, Sgl};
use crate::wire::pdu::{Fatal, Header, Init, Transfer};
use crate::wire::status::Status;
use proptest::prelude::*;
use zerocopy::FromZeros;

fn transfer(cid: u16, offset: u32, length: usize) -> Transfer {
    let (cid, length) = (cid.into(), (length as u32).into());
    Transfer { cid, tag: 7.into(), offset: offset.into(), length, reserved: 0.into() }
}

fn bytes_of(outbox: &mut Outbox) -> Vec<u8> {
    let mut bytes = Vec::new();
    while outbox.bytes() > 0 {
        let piece: Vec<u8> = outbox.slices().iter().flat_map(|slice| slice.to_vec()).take(70_001).collect();
        outbox.sent(piece.len());
        bytes.extend(piece);
    }
    bytes
}

/// Feeds bytes in pieces and collects headers with their data.
fn frames(framer: &mut Framer, mut bytes: &[u8], step: usize) -> Result<Vec<(Header, Vec<u8>, bool)>, Fatal> {
    let mut found: Vec<(Header, Vec<u8>, bool)> = Vec::new();
    loop {
        while let Some(event) = framer.next_event()? {
            match event {
                Event::Header(header, data) => {
                    found.push((header, Vec::new(), true));
                    if data > 1 << 20 {
                        return Err(Fatal::Limit); // as a connection that does not allow so much
                    }
                    if data > 0 {
                        framer.place(vec![0; data], 0);
                    }
                }
                Event::Data(data, intact) => {
                    let last = found.last_mut().expect("data come after their header");
                    (last.1, last.2) = (data, intact);
                }
            }
        }
        if bytes.is_empty() {
            return Ok(found);
        }
        let space = framer.space();
        let count = step.min(space.len()).min(bytes.len());
        space[..count].copy_from_slice(&bytes[..count]);
        framer.received(count);
        bytes = &bytes[count..];
    }
}

fn sample(end: End, data: &[u8]) -> Vec<(Header, Vec<u8>)> {
    match end {
        End::Target => {
            let mut command = Command::new(1, 2);
            command.sgl = Sgl::in_capsule(data.len() as u32);
            vec![
                (Header::Command(command), data.to_vec()),
                (Header::DataIn(transfer(3, 0, data.len()), true), data.to_vec()),
                (Header::Command(Command::new(0x18, 0)), vec![]),
            ]
        }
        End::Host => vec![
            (Header::ReadyToTransfer(transfer(3, 0, 77)), vec![]),
            (Header::DataOut(transfer(3, 0, data.len()), true, true), data.to_vec()),
            (Header::Response(Completion::new(9, 1, Status::NO_SUCH_KEY, 5)), vec![]),
        ],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Goal:   what one end sends is what the other end reads, however the bytes are cut, with and without digests.
    /// Method: PDUs with data of any length through an outbox and a framer, in pieces of any size.
    #[test]
    fn pdus_arrive_as_sent(
        to_host: bool, bits in 0u8..4, bytes in 0usize..70_000, step in 1usize..100_000, fill: u8,
    ) {
        let (from, to) = if to_host { (End::Target, End::Host) } else { (End::Host, End::Target) };
        let step = if bytes > 2000 { step.max(100) } else { step };
        let data: Vec<u8> = (0..bytes).map(|i| (i as u8).wrapping_mul(31) ^ fill).collect();
        let sample = sample(to, &data);
        let (mut outbox, mut framer) = (Outbox::new(from), Framer::new(to));
        outbox.set_digests(Digests::from_bits(bits));
        framer.set_digests(Digests::from_bits(bits));
        for (header, data) in &sample {
            outbox.push_with(header, data.clone());
        }
        let found = frames(&mut framer, &bytes_of(&mut outbox), step).unwrap();
        let sent: Vec<_> = sample.into_iter().map(|(header, data)| (header, data, true)).collect();
        prop_assert_eq!(found, sent);
        prop_assert!(!framer.is_within());
    }

    /// Goal:   a flipped bit is noticed when digests are on, and nothing ever panics.
    /// Method: flip one bit of a stream. Without an error, either a data digest fails or a header field differs; the
    ///         latter only in the 8 bytes that show where the digest is.
    #[test]
    fn a_flipped_bit_is_noticed(bytes in 1usize..2000, at: prop::sample::Index, bit in 0u8..8) {
        let data = vec![0x5a; bytes];
        let (mut outbox, mut framer) = (Outbox::new(End::Host), Framer::new(End::Target));
        let digests = Digests { header: true, data: true };
        outbox.set_digests(digests);
        framer.set_digests(digests);
        let sent = sample(End::Target, &data);
        sent.iter().for_each(|(header, data)| outbox.push_with(header, data.clone()));
        let mut stream = bytes_of(&mut outbox);
        let at = at.index(stream.len());
        stream[at] ^= 1 << bit;
        if let Ok(found) = frames(&mut framer, &stream, 5000) {
            let whole = found.len() == sent.len() && found.iter().all(|(_, _, intact)| *intact) && !framer.is_within();
            prop_assert!(!whole, "a flipped bit went unnoticed");
        }
    }

    /// Goal:   bytes that make no sense are refused or waited with, never a panic.
    /// Method: random bytes after a plausible type.
    #[test]
    fn random_bytes_are_survived(kind in 0u8..12, mut stream in prop::collection::vec(any::<u8>(), 1..600), step in 1usize..700) {
        stream[0] = kind;
        for end in [End::Host, End::Target] {
            let _ = frames(&mut Framer::new(end), &stream, step);
        }
    }
}

/// Goal:   data of any length get through with digests, whether or not the peer fills them up with zeros for theirs.
/// Method: lengths around multiples of 4 from an outbox that does and one that does not; the check value of seven bytes.
#[test]
fn digests_may_be_of_padded_data() {
    assert_eq!(super::padded_digest(kaml_crc::crc32c(b"1234567"), 7), kaml_crc::crc32c(b"1234567\0"));
    for (bytes, pads) in (1..10).flat_map(|bytes| [(bytes, false), (bytes, true)]) {
        let (mut outbox, mut framer) = (Outbox::new(End::Target), Framer::new(End::Host));
        let digests = Digests { header: false, data: true };
        outbox.set_digests(digests);
        outbox.set_padding(pads);
        framer.set_digests(digests);
        outbox.push_copy(&Header::DataOut(transfer(3, 0, bytes), true, true), &vec![0x5a; bytes]);
        let found = frames(&mut framer, &bytes_of(&mut outbox), 100).unwrap();
        assert_eq!((found[0].1.len(), found[0].2), (bytes, true), "{bytes} bytes, padded: {pads}");
        assert_eq!(framer.pads_digests(), pads && bytes % 4 != 0, "{bytes} bytes");
    }
}

/// Goal:   the bytes are those of the specification, both ways.
/// Method: vectors written down by hand: an initialisation request, a Keep Alive capsule with header digest, and an R2T.
#[test]
fn golden_pdus() {
    let init = Init { format: 0.into(), alignment: 0, digests: 3, limit: 0.into(), reserved: [0; 112] };
    let mut outbox = Outbox::new(End::Host);
    outbox.push(&Header::InitRequest(init));
    let bytes = bytes_of(&mut outbox);
    assert_eq!(bytes[..16], [0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]);
    assert_eq!(frames(&mut Framer::new(End::Target), &bytes, 128).unwrap()[0].0, Header::InitRequest(init));

    let mut command = Command::new_zeroed();
    (command.opcode, command.flags, command.cid) = (0x18, 0x40, 0x1234.into());
    command.sgl = Sgl::transport(0);
    outbox.set_digests(Digests { header: true, data: false });
    outbox.push(&Header::Command(command));
    let bytes = bytes_of(&mut outbox);
    assert_eq!(bytes[..16], [4, 1, 72, 0, 76, 0, 0, 0, 0x18, 0x40, 0x34, 0x12, 0, 0, 0, 0]);
    assert_eq!(bytes[8 + 39], 0x5a);
    assert_eq!(bytes[72..], kaml_crc::crc32c(&bytes[..72]).to_le_bytes());
    assert_eq!(kaml_crc::crc32c(b"123456789"), 0xe306_9283, "the check value of the specification's polynomial");

    let mut outbox = Outbox::new(End::Target);
    outbox.push(&Header::ReadyToTransfer(transfer(0x0102, 0x1000, 0x2000)));
    let expected = [9, 0, 24, 0, 24, 0, 0, 0, 2, 1, 7, 0, 0, 0x10, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0];
    assert_eq!(bytes_of(&mut outbox), expected);
}
