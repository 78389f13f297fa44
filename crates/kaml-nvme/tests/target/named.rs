//! Many keys at once, by the commands of ours.

use crate::world::{World, key};
use kaml::BlockOptions;
use kaml_nvme::host::{Error, KeyValue};
use kaml_nvme::wire::status::Status;

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    result.unwrap_err().status().expect("an answer of the controller")
}

/// Goal:   keys of several namespaces are read by a list, each with its own value, whatever the room.
/// Method: 300 keys over two namespaces, a third of them missing, values of 0 to 6000 bytes; rooms from a few values to all,
///         and one that is too small for the longest, which is returned without its bytes.
#[test]
fn keys_are_read_by_a_list() {
    let world = World::new();
    let spaces = [world.namespace("a"), world.namespace("b")];
    let value = |number: u64| (!number.is_multiple_of(3)).then(|| vec![number as u8; (number * 20) as usize]);
    let keys: Vec<_> = (0..300u64).map(|number| (spaces[(number / 7 % 2) as usize], kaml::Key::from(number))).collect();
    for (number, (space, key)) in keys.iter().enumerate() {
        if let Some(value) = value(number as u64) {
            world.device.put(*space, *key, &value).unwrap();
        }
    }
    let host = world.host();
    let space = KeyValue::new(&host.queues()[0], spaces[0]);
    let list = space.name_keys(&keys).unwrap();
    for room in [5000, 20_000, 2 << 20] {
        let mut found = Vec::new();
        while found.len() < keys.len() {
            found.extend(space.retrieve_named(list, found.len(), room).unwrap());
        }
        for (number, found) in found.into_iter().enumerate() {
            let expected = value(number as u64);
            let status = if expected.is_some() { Status::SUCCESS } else { Status::NO_SUCH_KEY };
            assert_eq!((found.status, found.value_bytes), (status, expected.as_ref().map_or(0, Vec::len)));
            let fits = expected.as_ref().is_some_and(|value| value.len() + 12 <= room);
            assert!(found.value == expected.filter(|_| fits), "key {number}, room {room}");
        }
    }
    let exist = [space.exist_named(list, 0, 100).unwrap(), space.exist_named(list, 100, 1000).unwrap()];
    assert_eq!((exist[0].len(), exist[1].len()), (100, 200));
    assert!(exist.concat().into_iter().enumerate().all(|(number, there)| there != number.is_multiple_of(3)));
    assert_eq!(status(space.retrieve_named(list, 300, 5000)), Status::INVALID_FIELD);
    assert_eq!(status(space.retrieve_named(list, 0, 11)), Status::SGL_LENGTH);
}

/// Goal:   lists cost a bounded amount of memory, and belong to one host; what makes no sense is refused.
/// Method: 64 more lists make the first one go; another host's number; no keys, too many, blocks, unknown namespaces.
#[test]
fn lists_are_few_and_private() {
    let world = World::new();
    let nsid = world.namespace("a");
    let disk = world.device.create_namespace("disk", &BlockOptions::new(512, 100).into()).unwrap();
    let (host, other) = (world.host(), world.host());
    let space = KeyValue::new(&host.queues()[0], nsid);
    let one = [(nsid, key(b"k"))];
    let first = space.name_keys(&one).unwrap();
    assert_eq!(space.exist_named(first, 0, 10).unwrap(), [false]);
    let strange = KeyValue::new(&other.queues()[0], nsid);
    assert_eq!(status(strange.exist_named(first, 0, 10)), Status::NO_SUCH_LIST);
    let later: Vec<u32> = (0..64).map(|_| space.name_keys(&one).unwrap()).collect();
    assert_eq!(status(space.exist_named(first, 0, 10)), Status::NO_SUCH_LIST);
    assert_eq!(space.exist_named(later[0], 0, 10).unwrap(), [false]);
    assert_eq!(status(space.name_keys(&[])), Status::INVALID_FIELD);
    assert_eq!(status(space.name_keys(&[one[0]; 4097])), Status::INVALID_FIELD);
    assert_eq!(status(space.name_keys(&[(disk, key(b"k"))])), Status::INVALID_NAMESPACE);
    assert_eq!(status(space.name_keys(&[(99, key(b"k"))])), Status::INVALID_NAMESPACE);
}
