//! Parsers of what comes over the wire, at both ends, of backups, and of compressed values.

use kaml::{BackupBase, verify_backup};
use kaml_device::unpack;
use kaml_nvme::auth::Secret;
use kaml_nvme::host::RemoteUrl;
use kaml_nvme::tls::{Identity, TlsKey, has_key};
use kaml_nvme::transport::framer::{Event, Framer};
use kaml_nvme::transport::{Digests, End};
use kaml_nvme::wire::auth::{Carrier, FromController, FromHost};
use kaml_nvme::wire::backup::{self, BackupPage, HEAD_BYTES};
use kaml_nvme::wire::command::Command;
use kaml_nvme::wire::fabrics::{Connect, Property};
use kaml_nvme::wire::identify::read_controller_list;
use kaml_nvme::wire::keyvalue::KeyFormat;
use kaml_nvme::wire::logs::LogRequest;
use kaml_nvme::wire::manage::{Attributes, Create, decode_change, decode_put, encode_batch, encode_change};
use kaml_nvme::wire::pdu::Header;
use kaml_nvme::wire::reservations::{Report, Wish};
use kaml_nvme::wire::text::{get_ascii, get_nqn};
use kaml_nvme::wire::{blocks, changes as stream_of_changes, keyvalue, named, ranges, vendor, versions};
use zerocopy::{FromBytes, IntoBytes};

/// A parser by its name. Its first byte is a parameter, the others are parsed.
pub type Decoder = (&'static str, fn(&[u8], u8));

/// All of them.
pub const DECODERS: [Decoder; 14] = [
    ("stream", stream),
    ("header", |bytes, _| header(bytes)),
    ("put", |bytes, parameter| put(bytes, parameter.into())),
    ("range", range),
    ("list", |bytes, _| list(bytes)),
    ("command", |bytes, _| command(bytes)),
    ("attributes", |bytes, parameter| attributes(bytes, parameter.into())),
    ("text", |bytes, _| text(bytes)),
    ("vendor", vendor),
    ("changes", |bytes, _| changes(bytes)),
    ("backup", backup),
    ("auth", auth),
    ("tls", tls),
    ("compressed", compressed),
];

/// Has the parser of that name parse.
pub fn decode((_, decoder): Decoder, data: &[u8]) {
    if let [parameter, bytes @ ..] = data {
        decoder(bytes, *parameter);
    }
}

/// A stream of PDUs, cut into pieces, with digests or without.
fn stream(mut bytes: &[u8], parameter: u8) {
    let mut framer = Framer::new(if parameter & 1 == 0 { End::Host } else { End::Target });
    framer.set_digests(Digests::from_bits(parameter >> 1));
    let step = usize::from(parameter >> 3) * 7 + 1;
    while !bytes.is_empty() {
        let space = framer.space();
        let count = step.min(bytes.len()).min(space.len());
        assert!(count > 0, "there is space when all events were taken");
        space[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        framer.received(count);
        loop {
            match framer.next_event() {
                Err(_) => return,
                Ok(None) => break,
                Ok(Some(Event::Header(_, 0) | Event::Data(..))) => {}
                // Nobody has room for so much; the callers check that as well.
                Ok(Some(Event::Header(_, data))) if data > 1 << 20 => return,
                Ok(Some(Event::Header(_, data))) => framer.place(vec![0; data], 0),
            }
        }
    }
}

/// What is read as a header is written as it was read.
fn header(bytes: &[u8]) {
    let Ok(header) = Header::parse(bytes) else { return };
    let mut again = Vec::new();
    header.encode(matches!(bytes[0], 2), &mut again);
    assert_eq!((again[0], &again[8..]), (bytes[0], &bytes[8..]));
}

/// What is read as an atomic Put is read again as the same one when it is written.
fn put(bytes: &[u8], parameter: u32) {
    let (count, format) = match parameter {
        count @ 0..=127 => (count, KeyFormat::Short),
        more => (more - 128, KeyFormat::Long),
    };
    let Ok(batch) = decode_put(bytes, count, format) else { return };
    let mut again = Vec::new();
    assert_eq!(encode_batch(&mut again, &batch, format), count);
    let again = decode_put(&again, count, format).expect("what we write can be read");
    assert!(
        again
            .records()
            .map(|record| (record.key, record.value))
            .eq(batch.records().map(|record| (record.key, record.value)))
    );
}

/// Ranges, the records of a page, and long keys: what is read is read again as the same when it is written.
fn range(bytes: &[u8], parameter: u8) {
    let count = usize::from(parameter >> 2);
    match parameter % 4 {
        0 | 1 => {
            let Ok(range) = ranges::decode_range(bytes) else { return };
            assert_eq!(ranges::decode_range(&ranges::encode_range(&range)), Ok(range.clone()));
            drop(range.bounds());
        }
        2 => {
            let Some(records) = ranges::decode_records(bytes, count) else { return };
            let mut again = Vec::new();
            for record in &records {
                let value = record.value.as_deref().unwrap_or_default();
                assert!(ranges::put_record(&mut again, record.key.as_bytes(), value, usize::MAX));
            }
            let again = ranges::decode_records(&again, count).expect("what we write can be read");
            assert!(again.iter().map(|record| &record.key).eq(records.iter().map(|record| &record.key)));
        }
        _ => {
            let Ok(keys) = named::decode_long_keys(bytes, count as u32) else { return };
            let again = named::encode_long_keys(keys.iter().map(|(nsid, key)| (*nsid, key)));
            assert_eq!(named::decode_long_keys(&again, count as u32), Ok(keys));
        }
    }
}

/// What Read Changes returns: what is read is read again as the same when it is written.
fn changes(bytes: &[u8]) {
    let Some(reply) = stream_of_changes::decode_changes(bytes) else { return };
    let again = stream_of_changes::decode_changes(&stream_of_changes::encode_changes(&reply));
    let again = again.expect("what we write can be read");
    assert_eq!((again.next, again.newest, again.generation), (reply.next, reply.newest, reply.generation));
    assert_eq!(again.parts, reply.parts);
}

fn list(bytes: &[u8]) {
    let Some(keys) = keyvalue::decode_list(bytes) else { return };
    assert_eq!(keyvalue::decode_list(&keyvalue::encode_list(&keys, usize::MAX)), Some(keys));
}

fn command(bytes: &[u8]) {
    let Ok((command, data)) = Command::read_from_prefix(bytes) else { return };
    if let Ok(Some(key)) = keyvalue::get_key(&command) {
        let mut again = command;
        keyvalue::put_key(&mut again, &key);
        assert_eq!(keyvalue::get_key(&again), Ok(Some(key)));
    }
    let (first, count) = blocks::get_range(&command);
    let mut again = command;
    assert!(blocks::put_range(&mut again, first, count as u32).is_some() && again == command);
    if let Ok(ranges) = blocks::decode_ranges(&command, data) {
        let again = blocks::encode_ranges(&ranges).expect("what was read can be written");
        assert_eq!(blocks::decode_ranges(&command, &again), Ok(ranges));
    }
    if let Ok(wish) = Wish::decode(&command, data) {
        let (again, keys) = wish.encode(command.nsid.get());
        assert_eq!(Wish::decode(&again, &keys), Ok(wish));
    }
    let connect = Connect::of(&command);
    assert_eq!(Connect::of(&connect.command()).queue, connect.queue);
    assert!(matches!(Property::of(&command).bytes(), 4 | 8));
    if let (Ok(at), Ok((rules, dry_run))) = (versions::get_at(&command), versions::get_merge(&command)) {
        let mut again = command;
        versions::put_merge(&mut again, &rules, dry_run);
        assert_eq!(versions::get_merge(&again), Ok((rules, dry_run)));
        versions::put_at(&mut again, at);
        assert_eq!(versions::get_at(&again), Ok(at));
    }
    if let Some(request) = LogRequest::of(&command) {
        assert_eq!(LogRequest::of(&request.command(command.nsid.get())).map(|again| again.lid), Some(request.lid));
    }
}

/// Lists, and what is ours: what is read is written as it was read.
fn vendor(bytes: &[u8], parameter: u8) {
    let count = usize::from(parameter >> 3);
    match parameter % 8 {
        0 => drop(read_controller_list(bytes)),
        1 => {
            let Ok(keys) = named::decode_keys(bytes, count as u32) else { return };
            let again = named::encode_keys(keys.iter().copied());
            assert_eq!(named::decode_keys(&again, count as u32), Ok(keys));
        }
        2 => drop(named::decode_found(bytes, count)),
        3 => {
            let Ok(key) = kaml::Key::new(b"key") else { return };
            let Some(past) = versions::decode_history(bytes, count, key) else { return };
            assert_eq!(versions::decode_history(&versions::encode_history(&past), count, key), Some(past));
        }
        4 => drop(versions::decode_stats(bytes)),
        5 => drop(versions::decode_differences(bytes, count)),
        6 => drop(vendor::decode_namespaces(bytes)),
        _ => {
            let _ = (versions::decode_merged(bytes), vendor::DevicePage::read(bytes));
            let Some(report) = Report::decode(bytes) else { return };
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
    }
}

/// Pages of a backup as a host reads them, its commands, the outline of a base as a target reads it, and a whole stream.
fn backup(bytes: &[u8], parameter: u8) {
    match parameter % 4 {
        0 => {
            let Some((page, count)) = BackupPage::decode(bytes) else { return };
            let mut again = bytes[..HEAD_BYTES + count].to_vec();
            page.encode(&mut again);
            assert_eq!(BackupPage::decode(&again), Some((page, count)));
        }
        1 => {
            let Ok((command, _)) = Command::read_from_prefix(bytes) else { return };
            let mut again = command;
            backup::Place::of(&command).put(&mut again);
            assert_eq!(backup::Place::of(&again), backup::Place::of(&command));
            let Some((piece_bytes, has_base)) = backup::get_begin(&command) else { return };
            assert_eq!(backup::get_begin(&backup::begin(1, piece_bytes, has_base)), Some((piece_bytes, has_base)));
        }
        2 => {
            let Ok(mut base) = BackupBase::from_outline(std::io::Cursor::new(bytes.to_vec()), "base") else { return };
            let count = base.count_keys().unwrap_or(0);
            assert!(count <= bytes.len() as u64);
        }
        _ => {
            let Ok(info) = verify_backup(&mut &bytes[..], "stream") else { return };
            assert_eq!(info.bytes, bytes.len() as u64);
        }
    }
}

/// A compressed value as flash has it: whatever is stored, the value is as long as it states, or nothing. The parameter is the method and a part of
/// the length.
fn compressed(bytes: &[u8], parameter: u8) {
    let mut value = Vec::new();
    let stated = (u32::from(parameter >> 2) * 97) | (u32::from(parameter & 3) << 30);
    for stored in [bytes, &[bytes, &stated.to_le_bytes()].concat()] {
        match (unpack(stored, &mut value), stored.last_chunk()) {
            (Ok(()), Some(footer)) => {
                assert_eq!(value.len() as u32, u32::from_le_bytes(*footer) & ((1 << 30) - 1));
            }
            (Ok(()), None) => panic!("nothing states how long it is"),
            (Err(_), _) => assert!(value.is_empty()),
        }
    }
}

/// Attributes of a new namespace, and changes of them: what is read is read again as the same when it is written.
fn attributes(bytes: &[u8], parameter: u32) {
    if let Ok((create, _)) = Create::read_from_prefix(bytes) {
        drop(create.kaml.read());
    }
    if let Ok((attributes, _)) = Attributes::read_from_prefix(bytes)
        && let Ok(wanted) = attributes.read()
        && wanted.keys.is_some()
    {
        let again = Attributes::of(&wanted).expect("what was read can be written");
        assert_eq!(again.read(), Ok(wanted));
    }
    if let Ok(change) = decode_change(parameter, bytes) {
        let (bits, again) = encode_change(&change).expect("what was read can be written");
        assert_eq!(decode_change(bits, again.as_bytes()), Ok(change));
    }
}

fn text(bytes: &[u8]) {
    let mut field = [0; 256];
    field[..bytes.len().min(256)].copy_from_slice(&bytes[..bytes.len().min(256)]);
    get_nqn(&field);
    get_ascii(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        drop(text.parse::<RemoteUrl>());
    }
}

/// Messages of authentication in both directions, secrets, and the commands that carry messages: what is read is read again as the same
/// when it is written.
fn auth(bytes: &[u8], parameter: u8) {
    match parameter % 4 {
        0 => {
            let Ok(message) = FromHost::read(bytes) else { return };
            assert_eq!(FromHost::read(&message.write()), Ok(message));
        }
        1 => {
            let Ok(message) = FromController::read(bytes) else { return };
            assert_eq!(FromController::read(&message.write()), Ok(message));
        }
        2 => {
            let Some(secret) = std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<Secret>().ok()) else {
                return;
            };
            assert_eq!(secret.to_text().parse::<Secret>(), Ok(secret));
        }
        _ => drop(Command::read_from_prefix(bytes).map(|(command, _)| Carrier::length_of(&command))),
    }
}

/// Keys and identities of TLS, which are written as they were read, and what a host sends first.
fn tls(bytes: &[u8], parameter: u8) {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    match parameter % 3 {
        0 => {
            let Ok(key) = text.parse::<TlsKey>() else { return };
            assert_eq!(key.to_text().parse(), Ok(key));
        }
        1 => {
            let Some(identity) = Identity::parse(text) else { return };
            assert_eq!(identity.to_text(), text);
        }
        _ => {
            let key = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:".parse().expect("a key");
            has_key(bytes, &key);
        }
    }
}
