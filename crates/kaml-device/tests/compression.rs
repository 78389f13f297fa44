//! Compressed records on a medium: power cuts, and contents that nobody stored.

mod common;

use common::{Life, geometry, value as noise};
use kaml_device::{
    Body, Buffered, Compression, Condition, Core, Error, Found, Key, KeyKind, NamespaceOptions, Op, StageError,
};
use kaml_flash::{AlignedBuf, Io, Medium, MemoryMedium, Packing};

const KEYS: u64 = 300;

fn text(number: u64) -> Vec<u8> {
    (0..20 + number % 40).flat_map(|n| format!("{{\"record\":{number},\"line\":{n}}}").into_bytes()).collect()
}

fn op(namespace: u32, key: u64, body: Body<'_>) -> Op<'_> {
    Op { namespace, key: Key::from(key).into(), body, condition: Condition::Always, expires: Default::default() }
}

fn life() -> (Life, u32) {
    let medium = MemoryMedium::new(geometry(Packing::Across, 20));
    Core::format(&medium).unwrap();
    let mut life = Life::open(&medium, 1).unwrap();
    let options = NamespaceOptions::records(KeyKind::U64).with_compression(Compression::Zstd);
    let id = life.core.create_namespace("n", &options).unwrap();
    settle(&mut life);
    (life, id)
}

fn settle(life: &mut Life) {
    let request = life.core.request_root(true);
    life.until(|core| core.roots_done() >= request).expect("power stays");
}

/// Compresses a value as a driver does, and puts it.
fn put(life: &mut Life, id: u32, key: u64, value: &[u8]) -> bool {
    let crc32c = kaml_crc::crc32c(value);
    let plain = op(id, key, Body::Value { value, crc32c });
    let mut packed = Vec::new();
    let has_saved = life.core.reader().pack(&plain, value, &mut packed);
    let body = Body::Packed { value: &packed, crc32c: kaml_crc::crc32c(&packed) };
    let stored = if has_saved { op(id, key, body) } else { plain };
    life.commit(|core: &mut Core| -> Result<u64, StageError> { core.stage(&[stored]) }).expect("power stays").unwrap();
    has_saved
}

/// Reads a value, or what is wrong with it.
fn get(life: &mut Life, id: u32, key: u64) -> Result<Vec<u8>, Error> {
    life.core.load_index(&life.medium, id).unwrap();
    let key = Key::from(key);
    let read = match life.core.reader().find(id, key).unwrap() {
        Found::Absent => panic!("key {key} is missing"),
        Found::Flash(read) => read,
        Found::Buffered => match life.core.read_buffered(id, key).unwrap() {
            Buffered::Value(value) => return Ok(value),
            Buffered::Packed(packed) => return packed.unpack(),
            Buffered::Programmed(read) => read,
            Buffered::Absent => panic!("found, then not"),
        },
    };
    let mut io = Io::Read { at: read.at, into: AlignedBuf::zeroed(read.bytes) };
    life.medium.execute(&mut io).unwrap();
    let Io::Read { into, .. } = io else { unreachable!("still a read") };
    let (mut copied, found) = (Vec::new(), read.value(&into));
    match read.copy_value(&into, &mut copied) {
        Ok(()) => assert_eq!(found.as_ref().map(|found| found.of(&into)), Ok(&copied[..])),
        Err(ref error) => assert_eq!((found.as_ref().err(), copied.len()), (Some(error), 0)),
    }
    found.map(|found| found.of(&into).to_vec())
}

/// Goal:   compressed records survive power cuts, from the ring and from pages, and the attribute does too.
/// Method: put records, cut power before and after they are programmed, open and compare; several lives.
#[test]
fn compressed_records_survive_power_cuts() {
    let (mut life, id) = life();
    for round in 0..6 {
        for key in (0..KEYS).filter(|key| key % 3 == round % 3) {
            assert!(put(&mut life, id, key, &text(key * 7 + round)));
        }
        if round % 2 == 0 {
            settle(&mut life);
        }
        let medium = life.medium.clone();
        drop(life); // not closed: the next life replays the ring
        life = Life::open(&medium, round).unwrap();
        assert_eq!(life.core.namespaces()[0].compression, Compression::Zstd);
        for key in 0..KEYS {
            let Some(last) = (0..=round).rev().find(|round| key % 3 == round % 3) else { continue };
            assert_eq!(get(&mut life, id, key).unwrap(), text(key * 7 + last), "key {key} in round {round}");
        }
        life.audit();
    }
}

/// Goal:   a record whose checksum fits, and whose bytes do not become what they state, is damaged: it is reported with its key, by reads from write
///         buffers and from flash and by checks, and others are read.
/// Method: store such bytes as compressed ones: of no method, cut off, with other lengths.
#[test]
fn what_cannot_be_decompressed_is_damage() {
    let (mut life, id) = life();
    let mut whole = Vec::new();
    let value = text(5);
    let plain = op(id, 0, Body::Value { value: &value, crc32c: 0 });
    assert!(life.core.reader().pack(&plain, &value, &mut whole));
    let footer = |len: u32, method: u32| (len | method << 30).to_le_bytes();
    let data = &whole[..whole.len() - 4];
    let len = value.len() as u32;
    let hostile = [
        Vec::new(),
        b"abc".to_vec(),
        [data, &footer(len, 0)].concat(),
        [data, &footer(len, 1)].concat(),
        [data, &footer(len, 3)].concat(),
        [data, &footer(len - 1, 2)].concat(),
        [data, &footer(len + 1, 2)].concat(),
        [data, &footer((1 << 30) - 1, 2)].concat(),
        [&data[..data.len() - 1], &footer(len, 2)].concat(),
    ];
    for (key, bytes) in (1..).zip(&hostile) {
        let stored = op(id, key, Body::Packed { value: bytes, crc32c: kaml_crc::crc32c(bytes) });
        life.commit(|core: &mut Core| core.stage(&[stored])).unwrap().unwrap();
    }
    assert!(put(&mut life, id, 100, &value));
    assert!(!put(&mut life, id, 101, &noise(1, 700)), "it saves nothing");
    for settles in [false, true] {
        if settles {
            settle(&mut life);
        }
        for key in 1..=hostile.len() as u64 {
            let refused = get(&mut life, id, key).unwrap_err();
            assert!(matches!(&refused, Error::Corrupt { namespace, .. } if *namespace == id), "key {key}: {refused}");
        }
        assert_eq!(get(&mut life, id, 100).unwrap(), value);
    }
    let mut problems = Vec::new();
    for block in life.core.blocks_in_use() {
        problems
            .extend(kaml_device::BlockAudit::read(&life.core.reader(), &life.medium, block).judge(&life.core).problems);
    }
    assert_eq!(problems.len(), hostile.len(), "{problems:?}");
    assert!(problems.iter().all(|problem| problem.contains("cannot be decompressed")), "{problems:?}");
}
