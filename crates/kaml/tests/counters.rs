//! Counters and expected values, through the interface of the library.

use kaml::{
    AsyncQueue, Batch, CreateOptions, Device, Error, Expiry, KeyKind, NamespaceOptions, OpenOptions, Operand,
    VersionOptions,
};
use std::time::Duration;

fn counter(value: Option<Vec<u8>>) -> i64 {
    i64::from_le_bytes(value.unwrap().try_into().unwrap())
}

/// Goal:   many threads that add to the same counters lose nothing, each sees a sum that nobody else sees, and everything is durable.
/// Method: four threads, a file, keys of each kind; sums compared at the end and after opening again.
#[test]
fn threads_add_to_the_same_counters() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.kaml");
    let device = Device::create(&path, &CreateOptions::new(64 << 20)).unwrap();
    let long = "a counter with a key of more than sixteen bytes";
    for (name, keys) in [("any", KeyKind::Any), ("ordered", KeyKind::Ordered)] {
        let space = device.ensure_namespace(name, &NamespaceOptions::records(keys)).unwrap();
        let add = || {
            let mut sums = Vec::new();
            for round in 0..50 {
                sums.push(space.add("short", 3).unwrap());
                let mut batch = Batch::new();
                batch.apply(space.id(), long, Operand::Add(1)).put(space.id(), "last", &[round]);
                batch.apply(space.id(), "largest", Operand::Max(round.into()));
                assert_eq!(device.write_returning(&batch).unwrap().len(), 2);
            }
            sums
        };
        let mut sums: Vec<i64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        sums.sort();
        assert_eq!(sums, (1..=200).map(|n| n * 3).collect::<Vec<i64>>());
        assert_eq!((counter(space.get(long).unwrap()), counter(space.get("largest").unwrap())), (200, 49));
    }
    device.close().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    let space = device.ensure_namespace("ordered", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    assert_eq!(space.add(long, 1).unwrap(), 201, "the counter is read from flash");
    let mut batch = Batch::new();
    batch.apply(space.id(), long, Operand::Add(-1)).expires(Expiry::After(Duration::from_secs(60)));
    device.submit(&batch).unwrap().wait().unwrap();
    assert_eq!(counter(space.get(long).unwrap()), 200);
    assert!(matches!(space.expiry(long).unwrap(), Some(Expiry::At(_))));
}

/// Goal:   values of any length are replaced only if they are what is expected; of many that try, one succeeds.
/// Method: four threads that replace a value in turn; large values; a batch that spans namespaces.
#[test]
fn compare_and_set_is_atomic() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let space = device.ensure_namespace("n", &NamespaceOptions::default()).unwrap();
    space.put("turn", b"0").unwrap();
    let run = || {
        let mut won = 0u64;
        while won < 25 {
            let old = space.get("turn").unwrap().unwrap();
            let next = (String::from_utf8(old.clone()).unwrap().parse::<u64>().unwrap() + 1).to_string();
            match space.compare_and_set("turn", Some(&old), Some(next.as_bytes())) {
                Ok(()) => won += 1,
                Err(error) => assert!(error.is_conflict(), "{error}"),
            }
        }
    };
    std::thread::scope(|scope| drop((0..4).map(|_| scope.spawn(run)).collect::<Vec<_>>()));
    assert_eq!(space.get("turn").unwrap().as_deref(), Some(&b"100"[..]));
    let large = vec![5; 100_000];
    space.compare_and_set("large", None, Some(&large)).unwrap();
    device.settle().unwrap();
    assert!(matches!(space.compare_and_set("large", Some(b"x"), None), Err(Error::ValueDiffers { present: true, .. })));
    space.compare_and_set("large", Some(&large), Some(&[6; 50_000])).unwrap();
    space.compare_and_set("large", Some(&[6; 50_000]), None).unwrap();
    assert!(!space.exists("large").unwrap());
    let other = device.ensure_namespace("other", &NamespaceOptions::default()).unwrap();
    let mut batch = Batch::new();
    batch.expect(space.id(), "turn", Some(b"99")).put(other.id(), "a", b"1").put_if_absent(other.id(), "b", b"1");
    assert!(device.write(&batch).unwrap_err().is_conflict());
    assert!(!other.exists("a").unwrap());
}

/// Goal:   operands are refused where they cannot be, with a reason, and change nothing.
/// Method: each kind of namespace, a queue, values that are no counters, sums that do not fit.
#[test]
fn operands_are_refused() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let space = device.ensure_namespace("n", &NamespaceOptions::default()).unwrap();
    space.put("text", b"text").unwrap();
    let refused = space.add("text", 1).unwrap_err();
    assert!(
        matches!(refused, Error::NotACounter { bytes: 4, .. }) && refused.to_string().contains("4 bytes"),
        "{refused}"
    );
    space.add("full", i64::MAX).unwrap();
    assert!(matches!(space.add("full", 1), Err(Error::CounterOverflow { .. })));
    assert_eq!(space.apply("full", Operand::Min(7)).unwrap(), 7);
    let versions = device.ensure_namespace("v", &VersionOptions::default().into()).unwrap();
    assert!(matches!(versions.add("a", 1), Err(Error::KeepsVersions(_))));
    let mut queue: AsyncQueue = device.queue(8);
    let mut batch = Batch::new();
    batch.apply(space.id(), "full", Operand::Add(1));
    assert!(matches!(queue.write(1, &batch), Err(Error::OperandInQueue)));
    assert!(matches!(device.write(&Batch::new()), Err(Error::EmptyBatch)));
}
