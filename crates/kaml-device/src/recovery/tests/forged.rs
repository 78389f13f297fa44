//! What tenants write is never taken for frames of the ring.
//!
//! The tests give a tenant more than a tenant has: all of the ring after the last frame, byte by byte.

use super::*;
use crate::first_root::write_root_to;
use crate::format::frame::{Frame, FrameHeader};
use crate::format::record::{Form, record_bytes};
use crate::ring::mapping_payload;

/// A device in use.
struct Victim {
    medium: MemoryMedium,
    core: Core,
    namespace: u32,
}

impl Victim {
    /// A crash has been survived, so frames of an earlier life are in the ring; one Put has been acknowledged since.
    fn new() -> Victim {
        let medium = formatted();
        let (mut core, namespace) = with_namespace(&medium);
        put(&mut core, &medium, namespace, b"before");
        let mut core = Core::open(&medium).unwrap().0;
        core.load_index(&medium, namespace).unwrap();
        put(&mut core, &medium, namespace, b"100");
        Victim { medium, core, namespace }
    }

    /// The next frame, without records.
    fn next(&self) -> Frame {
        let (lsn, epoch) = (self.core.log.ring.head(), self.core.log.ring.epoch);
        Frame { epoch, lsn, previous_end: lsn, payload_len: 0, record_count: 0, records_crc: 0, committed_end: lsn }
    }

    /// The frame with one record, and its payload.
    fn forged(&self, frame: &Frame, kind: RecordKind, value: &[u8], body: &[u8]) -> (Frame, Vec<u8>) {
        let (value_len, value_crc) = (value.len() as u32, kaml_crc::crc32c(value));
        let key = Key::from(1);
        let record = Record {
            namespace: self.namespace,
            key,
            kind,
            value_len,
            value_crc,
            sequence: 1 << 30,
            packed: false,
            form: Form::Long,
        };
        let mut payload = RecordHeader::encode(&record).to_vec();
        payload.extend_from_slice(body);
        let checked = record.header_bytes() + record.ring_head_bytes();
        let records_crc = kaml_crc::crc32c(&payload[..checked]);
        payload.resize(payload.len().next_multiple_of(8), 0);
        (Frame { payload_len: payload.len() as u32, record_count: 1, records_crc, ..*frame }, payload)
    }

    /// A frame that gives the victim's key another value.
    fn forged_value(&self, frame: &Frame) -> (Frame, Vec<u8>) {
        self.forged(frame, RecordKind::Value, b"1000000", b"1000000")
    }

    /// Writes bytes to the place of a frame.
    fn write(&self, lsn: u64, bytes: &[u8]) {
        let len = bytes.len().next_multiple_of(512);
        let mut data = AlignedBuf::zeroed(len);
        data[..bytes.len()].copy_from_slice(bytes);
        let offset = lsn % self.core.log.geometry.ring_bytes;
        self.medium.execute(&mut Io::Persist { offset, data, len, barrier: false }).unwrap();
    }

    /// The value after a crash. A device that does not open is a failure, too.
    fn value_after_crash(&self) -> (Vec<u8>, OpenReport) {
        let medium = self.medium.clone_state();
        let (mut core, report) = Core::open(&medium).unwrap();
        close(&mut core, &medium);
        let slot = core.slot(self.namespace, Key::from(1)).unwrap();
        let mut io = Io::Read { at: ChunkAddr(slot.at), into: AlignedBuf::zeroed(64 * slot.len.chunks_max() as usize) };
        medium.execute(&mut io).unwrap();
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        let record = RecordHeader::check(&into).unwrap();
        (into[record.stored_range()].to_vec(), report)
    }
}

/// A frame as builds without tags wrote it.
fn untagged(frame: &Frame, payload: &[u8], uuid: [u8; 16]) -> Vec<u8> {
    let (mut header, _) = FrameHeader::encode(frame, uuid, &guessed().sealer());
    header[..4].copy_from_slice(b"KRF1");
    header[68..76].fill(0);
    with_checksum([&header, payload].concat())
}

/// A frame with the tag and the mask of this secret.
fn tagged(frame: &Frame, payload: &[u8], uuid: [u8; 16], secret: &Secret) -> Vec<u8> {
    let (header, mask) = FrameHeader::encode(frame, uuid, &secret.sealer());
    let mut payload = payload.to_vec();
    mask.apply(&mut payload, 512);
    [&header[..], &payload].concat()
}

fn with_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    let crc = kaml_crc::crc32c(&frame[8..80]);
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
    frame
}

/// What a tenant has in place of the secret.
fn guessed() -> Secret {
    Secret { key: [7; 16], since_epoch: 0 }
}

/// Goal:   whatever a tenant has put where the next frame is looked for, no record of it counts, and the device opens.
/// Method: frames that claim to be the next one, a later one, one of a later lap or life, or of an older format; with a value, a delete
///         or a mapping; with a guessed secret, and with the tag of a real frame.
#[test]
fn values_are_not_taken_for_frames() {
    let victim = Victim::new();
    let uuid = victim.medium.uuid();
    let (next, ring) = (victim.next(), victim.core.log.geometry.ring_bytes);
    let mut real = AlignedBuf::zeroed(512);
    victim.medium.read_ring(next.lsn - 512, &mut real).unwrap();
    assert!(real.starts_with(b"KRF2"));
    let places = [
        next,
        Frame { lsn: next.lsn + ring, previous_end: next.lsn + ring, ..next },
        Frame { epoch: next.epoch + 1, ..next },
        Frame { epoch: 1 << 20, lsn: next.lsn + 1000 * ring, ..next },
        Frame { committed_end: next.lsn + 512, previous_end: next.lsn + 512, ..next },
    ];
    let mut frames = Vec::new();
    for place in &places {
        let mapped = mapping_payload(ChunkAddr(64));
        let forged = [
            victim.forged_value(place),
            victim.forged(place, RecordKind::Tombstone, b"", b""),
            victim.forged(place, RecordKind::Mapping, b"x", &mapped),
        ];
        for (frame, payload) in forged {
            frames.push(untagged(&frame, &payload, uuid));
            frames.push(tagged(&frame, &payload, uuid, &guessed()));
            let mut with_real_tag = tagged(&frame, &payload, uuid, &guessed());
            with_real_tag[68..76].copy_from_slice(&real[68..76]);
            frames.push(with_checksum(with_real_tag));
        }
    }
    for (i, frame) in frames.iter().enumerate() {
        // Where the next frame is looked for, and where a frame after a gap would be.
        for sectors in [0..1, 1..2, 0..40] {
            sectors.for_each(|sector| victim.write(next.lsn + 512 * sector, frame));
            let (value, report) = victim.value_after_crash();
            assert_eq!((value.as_slice(), report.ring_records), (&b"100"[..], 1), "frame {i}");
        }
    }
    // With the secret such a frame counts: the test would notice.
    let (frame, payload) = victim.forged_value(&next);
    victim.write(next.lsn, &tagged(&frame, &payload, uuid, &victim.core.root.secret.unwrap()));
    assert_eq!(victim.value_after_crash().0, b"1000000");
}

/// Goal:   frames that were valid once do not count where a tenant puts them.
/// Method: all sectors of the ring, of this life and the one before, copied to each place after the last frame.
#[test]
fn frames_are_not_replayed() {
    let victim = Victim::new();
    let next = victim.next();
    let mut written = AlignedBuf::zeroed(next.lsn as usize);
    victim.medium.read_ring(0, &mut written).unwrap();
    assert!(written.chunks(512).filter(|sector| sector.starts_with(b"KRF2")).count() >= 2);
    for sector in written.chunks(512) {
        (0..40).for_each(|place| victim.write(next.lsn + 512 * place, sector));
        let (value, report) = victim.value_after_crash();
        assert_eq!((value.as_slice(), report.ring_records), (&b"100"[..], 1));
    }
}

/// A value of the same length and checksum that begins with other bytes.
fn colliding(value: &[u8], begin: &[u8]) -> Vec<u8> {
    let mut other = value.to_vec();
    other[..begin.len()].copy_from_slice(begin);
    let end = other.len();
    let flip = |bytes: &mut [u8], bits: u32| {
        bytes[end - 4..].iter_mut().zip(bits.to_le_bytes()).for_each(|(byte, bits)| *byte ^= bits);
    };
    // What each of the last 32 bits does to the checksum, which is linear; then elimination.
    let zeroes = vec![0; end];
    let effect = |bits: u32| {
        let mut bytes = zeroes.clone();
        flip(&mut bytes, bits);
        kaml_crc::crc32c(&bytes) ^ kaml_crc::crc32c(&zeroes)
    };
    let mut rows: Vec<(u32, u32)> = (0..32).map(|bit| (effect(1 << bit), 1 << bit)).collect();
    let (mut missing, mut bits) = (kaml_crc::crc32c(value) ^ kaml_crc::crc32c(&other), 0);
    for place in 0..32 {
        let Some(at) = rows.iter().position(|(effect, _)| effect >> place & 1 == 1) else { continue };
        let (by, with) = rows.swap_remove(at);
        rows.iter_mut().filter(|(effect, _)| effect >> place & 1 == 1).for_each(|row| {
            row.0 ^= by;
            row.1 ^= with;
        });
        if missing >> place & 1 == 1 {
            missing ^= by;
            bits ^= with;
        }
    }
    flip(&mut other, bits);
    assert_eq!(kaml_crc::crc32c(&other), kaml_crc::crc32c(value));
    other
}

/// Goal:   what a tenant wrote a lap ago does not complete a frame that a power cut tore, though all checksums are right.
/// Method: each set of a frame's sectors is written. The others hold what a tenant chose: the same records with another value of the same
///         CRC32C, as it is, and masked as an earlier frame.
#[test]
fn old_content_does_not_complete_torn_frames() {
    let mut victim = Victim::new();
    let (next, uuid) = (victim.next(), victim.medium.uuid());
    let value = vec![1; 1500];
    let other = colliding(&value, &[&value[..600], &b"forged"[..]].concat());
    stage(&mut victim.core, victim.namespace, &value).unwrap();
    let (_, Io::Persist { data, len, .. }) = victim.core.begin_persist().unwrap() else { unreachable!("a ring write") };
    let sectors = len / 512;
    assert!(sectors >= 4);
    let mut plain = data[..len].to_vec();
    let at = FrameHeader::BYTES + record_bytes(&Key::from(1), value.len()) - value.len();
    plain[at..][..value.len()].copy_from_slice(&other);
    let earlier = Frame { lsn: next.lsn - 512, ..next };
    let (_, mask) = FrameHeader::encode(&earlier, uuid, &victim.core.root.secret.unwrap().sealer());
    let mut masked = plain.clone();
    mask.apply(&mut masked[FrameHeader::BYTES..], 512);
    for old in [plain, masked] {
        for written in 1..1u32 << sectors {
            let mut torn = old.clone();
            for sector in (0..sectors).filter(|sector| written >> sector & 1 == 1) {
                torn[sector * 512..][..512].copy_from_slice(&data[sector * 512..][..512]);
            }
            victim.write(next.lsn, &torn);
            // A sector in which both are the same is whole either way.
            let is_whole = torn == data[..len];
            let (found, report) = victim.value_after_crash();
            let expected = if is_whole { (&value[..], 2) } else { (&b"100"[..], 1) };
            assert_eq!((&found[..], report.ring_records), expected, "sectors {written:b}");
        }
    }
}

/// Goal:   a device of a build without tags opens with all that it acknowledged, and such frames count for that opening only.
/// Method: the root as version 11 had it, and a frame as it was; a crash. Then such a frame where the next one would be; a crash.
#[test]
fn frames_of_older_builds_count_once() {
    let mut victim = Victim::new();
    let uuid = victim.medium.uuid();
    let root = Root { secret: None, ..victim.core.root.clone() };
    (0..2).for_each(|slot| write_root_to(&victim.medium, &root, slot, 0).unwrap());
    let next = Frame { lsn: root.ring_tail, previous_end: root.ring_tail, ..victim.next() };
    let (frame, payload) = victim.forged_value(&next);
    victim.write(next.lsn, &untagged(&frame, &payload, uuid));
    assert_eq!(victim.value_after_crash().0, b"1000000");
    victim.core = Core::open(&victim.medium).unwrap().0;
    assert_eq!(victim.core.root.secret.map(|secret| secret.since_epoch), Some(root.epoch + 1));
    put(&mut victim.core, &victim.medium, victim.namespace, b"100");
    let (frame, payload) = victim.forged_value(&victim.next());
    victim.write(frame.lsn, &untagged(&frame, &payload, uuid));
    assert_eq!(victim.value_after_crash().0, b"100");
}
