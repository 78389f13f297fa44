//! What a command reports is true after a crash, refusals and lookups included: nothing is decided by what is not durable.

use kaml::{
    Batch, BlockOptions, Condition, CreateOptions, Device, Error, Key, NamespaceId, NamespaceOptions, VersionOptions,
};
use kaml_device::Core;
use kaml_flash::{Geometry, Io, Medium, MediumError, MemoryMedium};
use kaml_testkit::{Access, Held, Watched, hold_back};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

fn formatted() -> MemoryMedium {
    let options = CreateOptions::new(64 << 20);
    let medium = MemoryMedium::new(Geometry::for_file(options.capacity_bytes, 512, &options).unwrap());
    Core::format(&medium).unwrap();
    medium
}

/// A device, and its flash: what a crash leaves can be opened next to it.
fn device() -> (Device, Arc<MemoryMedium>) {
    let medium = Arc::new(formatted());
    (Device::on_medium(medium.clone()).unwrap(), medium)
}

fn after_crash(medium: &MemoryMedium) -> Device {
    Device::on_medium(Arc::new(medium.clone_state())).unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name.as_bytes()).unwrap()
}

fn is_conflict<T: std::fmt::Debug>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(kaml::Error::Conflict { .. }))
}

/// A device with "old" in a namespace, and a Put on its way, for which nobody waits, of "lock" and without "old".
fn contended() -> (Device, Arc<MemoryMedium>, NamespaceId) {
    let (device, medium) = device();
    let space = device.create_namespace("n", &NamespaceOptions::default()).unwrap();
    device.put(space, key("old"), b"1").unwrap();
    let mut batch = Batch::new();
    batch.put(space, key("lock"), b"A").delete(space, key("old"));
    let _not_waited_for = device.submit(&batch).unwrap();
    assert_eq!(device.get(space, key("lock")).unwrap(), None, "it is not committed");
    (device, medium, space)
}

/// What was put by [`contended`] exists, for gets that begin now and after a crash.
fn is_settled(device: &Device, medium: &MemoryMedium, space: NamespaceId) -> bool {
    [device, &after_crash(medium)].iter().all(|device| {
        let found = |name| device.get(space, key(name)).unwrap();
        found("lock").as_deref() == Some(b"A") && found("old").is_none() && device.exists(space, key("lock")).unwrap()
    })
}

type Refused = fn(&Device, NamespaceId) -> Result<(), Error>;

/// Each is refused by the Put that is on its way.
const REFUSED: [(&str, Refused); 6] = [
    ("put_if absent", |device, space| device.put_if(space, key("lock"), b"B", Condition::IfAbsent)),
    ("put_if present", |device, space| device.put_if(space, key("old"), b"2", Condition::IfPresent)),
    ("large value", |device, space| device.put_if(space, key("lock"), &[7; 100_000], Condition::IfAbsent)),
    ("delete_if_present", |device, space| {
        let mut batch = Batch::new();
        batch.delete_if_present(space, key("old"));
        device.write(&batch)
    }),
    ("many conditions", |device, space| {
        let mut batch = Batch::new();
        (0..20u64).for_each(|other| {
            batch.put_if_absent(space, other, b"B");
        });
        batch.put_if_absent(space, key("lock"), b"B");
        device.write(&batch)
    }),
    ("submit", |device, space| {
        let mut batch = Batch::new();
        batch.put(space, key("other"), b"B").put_if_absent(space, key("lock"), b"B");
        device.submit(&batch)?.wait()
    }),
];

/// Goal:   a Put that is refused because of another one returns after that one is durable.
/// Method: a Put that nobody waits for is staged; each kind of conditional Put is refused by it; then what gets find, now and after a crash.
#[test]
fn refusals_wait_for_what_they_were_decided_by() {
    for (what, refused) in REFUSED {
        let (device, medium, space) = contended();
        let result = refused(&device, space);
        assert!(is_conflict(&result), "{what}: {result:?}");
        assert!(is_settled(&device, &medium, space), "{what}");
    }
}

/// Goal:   the same of event loops: the refusal comes with the poll that sees the frame committed, and not before.
/// Method: as above through a queue, also where the Put that decides is in the queue itself.
#[test]
fn refusals_of_queues_wait_too() {
    for own in [true, false] {
        let (device, medium, space) = contended();
        let mut queue = device.queue(8);
        if own {
            queue.put(0, space, key("mine"), b"A").unwrap();
        }
        let name = if own { "mine" } else { "lock" };
        queue.put_if(1, space, key(name), b"B", Condition::IfAbsent).unwrap();
        assert_eq!(queue.in_flight(), 1 + usize::from(own), "nothing completes before it is polled");
        let mut answers = Vec::new();
        while queue.in_flight() > 0 {
            queue.poll(true, &mut answers);
        }
        let refused = answers.iter().find(|answer| answer.token == 1).unwrap();
        assert!(is_conflict(&refused.result), "{refused:?}");
        assert!(is_settled(&device, &medium, space));
        assert_eq!(after_crash(&medium).exists(space, key("mine")).unwrap(), own);
    }
}

/// Goal:   where the frame that a refusal waits for is lost, the caller gets that error: nobody knows whether the reason is true.
/// Method: ring writes fail; blocked callers and a queue.
#[test]
fn refusals_by_what_is_lost_become_that_error() {
    for (what, refused) in REFUSED {
        let fails = Arc::new(AtomicBool::new(false));
        let now = fails.clone();
        let watch = move |seen: Access<'_>| match seen {
            Access::Operation(Io::Persist { .. }) if now.load(Ordering::SeqCst) => {
                Err(MediumError::ReadFailed { what: "the ring".into(), error: "gone".into() })
            }
            Access::Operation(_) | Access::RingRead => Ok(()),
        };
        let medium: Arc<dyn Medium> = Arc::new(Watched { medium: formatted(), watch, before: |queue| queue });
        let device = Device::on_medium(medium).unwrap();
        let space = device.create_namespace("n", &NamespaceOptions::default()).unwrap();
        device.put(space, key("old"), b"1").unwrap();
        let mut batch = Batch::new();
        batch.put(space, key("lock"), b"A").delete(space, key("old"));
        let _not_waited_for = device.submit(&batch).unwrap();
        fails.store(true, Ordering::SeqCst);
        let result = refused(&device, space);
        let stopped = |result: &Result<(), Error>| matches!(result, Err(kaml::Error::Stopped(_)));
        assert!(stopped(&result), "{what}: {result:?}");
    }
}

/// Goal:   a version that is refused because the key was changed returns after that change is durable.
/// Method: a version is on its way; another one is put on the condition that there is none.
#[test]
fn refusals_of_versions_wait_too() {
    let (device, medium) = device();
    let space = device.create_namespace("v", &VersionOptions::default().into()).unwrap();
    let mut batch = Batch::new();
    batch.put(space, key("k"), b"A");
    let _not_waited_for = device.submit(&batch).unwrap();
    for condition in [Condition::UnchangedSince(0), Condition::IfAbsent] {
        let result = device.put_if(space, key("k"), b"B", condition);
        assert!(is_conflict(&result), "{condition:?}: {result:?}");
        for device in [&device, &after_crash(&medium)] {
            assert_eq!(device.get(space, key("k")).unwrap().as_deref(), Some(&b"A"[..]), "{condition:?}");
            assert_eq!(device.history(space, key("k"), 9).unwrap().len(), 1);
        }
    }
}

/// Goal:   a trim that finds nothing to do, because of another one that is on its way, returns after that one is durable.
/// Method: a whole unit is trimmed in a queue that nobody polls; then a part of it by a blocking call.
#[test]
fn trims_that_find_nothing_wait_too() {
    for in_queue in [true, false] {
        let (device, medium) = device();
        let space = device.create_namespace("b", &BlockOptions::new(512, 800).into()).unwrap();
        device.block_write(space, 8, &[7; 4096]).unwrap();
        let mut other = device.queue(8);
        other.submit_block_trim(0, space, 8, 8).unwrap();
        match in_queue {
            true => {
                let mut queue = device.queue(8);
                queue.submit_block_trim(1, space, 9, 2).unwrap();
                let mut answers = Vec::new();
                queue.poll(true, &mut answers);
                assert!(answers[0].result.is_ok());
            }
            false => device.block_trim(space, 9, 2).unwrap(),
        }
        for device in [&device, &after_crash(&medium)] {
            let mut found = [1; 4096];
            device.block_read(space, 8, &mut found).unwrap();
            assert_eq!(found[512..1536], [0; 1024], "a trim was acknowledged");
        }
    }
}

/// How long an answer that must not come is waited for.
const A_WHILE: Duration = Duration::from_millis(100);

/// Goal:   namespaces appear, change their names and go after that is durable: lookups show what a crash would leave, and commands that a
///         change refuses wait for it.
/// Method: roots are held up while a namespace is created, renamed and deleted by a thread; others look it up, create it again and
///         use it.
#[test]
fn namespaces_are_what_a_root_says() {
    let is_held = Arc::new(AtomicBool::new(false));
    let held = is_held.clone();
    let (_, medium) =
        Held::with_queues(hold_back(move |io, _| matches!(io, Io::WriteRoot { .. }) && held.load(Ordering::SeqCst)));
    let device = Device::on_medium(medium).unwrap();
    let options = NamespaceOptions::default();
    let names = || device.namespaces().into_iter().map(|info| info.name).collect::<Vec<_>>();
    let hold = |is_on| is_held.store(is_on, Ordering::SeqCst);
    let _other = device.create_namespace("other", &options).unwrap();

    // Each step: a change whose root is held, what can be seen meanwhile, a command that waits, and what it comes to.
    std::thread::scope(|scope| {
        hold(true);
        let id = scope.spawn(|| device.create_namespace("fresh", &options).unwrap());
        std::thread::sleep(A_WHILE);
        assert!(device.namespace("fresh").is_err() && names() == ["other"]);
        let (say, said) = channel();
        scope.spawn({
            let (device, options) = (&device, &options);
            move || say.send(device.create_namespace("fresh", options)).unwrap()
        });
        assert!(said.recv_timeout(A_WHILE).is_err(), "a name is refused before it is taken");
        hold(false);
        let refused = said.recv().unwrap();
        assert!(matches!(refused, Err(kaml::Error::NamespaceExists(_))), "{refused:?}");
        let id = id.join().unwrap();
        assert_eq!(device.namespace("fresh").unwrap(), id);
        device.put(id, 1u64, b"one").unwrap();

        hold(true);
        let of_thread = &device;
        let renamed = scope.spawn(move || {
            let change = kaml::NamespaceChange { name: Some("renamed".into()), ..Default::default() };
            of_thread.set_namespace(id, &change).unwrap();
        });
        std::thread::sleep(A_WHILE);
        assert_eq!((device.namespace("fresh").unwrap(), device.namespace("renamed").is_err()), (id, true));
        hold(false);
        renamed.join().unwrap();
        assert_eq!((device.namespace("renamed").unwrap(), device.namespace("fresh").is_err()), (id, true));

        hold(true);
        let deleted = scope.spawn(move || of_thread.delete_namespace(id).unwrap());
        std::thread::sleep(A_WHILE);
        assert_eq!((device.namespace("renamed").unwrap(), names()), (id, vec!["other".into(), "renamed".into()]));
        type Use = fn(&Device, NamespaceId) -> Result<(), Error>;
        let uses: [Use; 7] = [
            |device, id| device.get(id, 1u64).map(drop),
            |device, id| device.exists(id, 1u64).map(drop),
            |device, id| device.list(id, None, 9).map(drop),
            |device, id| device.put(id, 1u64, b"again"),
            |device, id| device.delete_namespace(id),
            |device, id| device.queue(8).get(0, id, 1u64),
            |device, id| device.block_info(id).map(drop),
        ];
        let waiting: Vec<_> = uses
            .into_iter()
            .map(|use_it| {
                let (say, said) = channel();
                let device = &device;
                scope.spawn(move || say.send(use_it(device, id)).unwrap());
                said
            })
            .collect();
        for (at, said) in waiting.iter().enumerate() {
            assert!(said.recv_timeout(A_WHILE / 4).is_err(), "use {at} is refused before the namespace is gone");
        }
        hold(false);
        deleted.join().unwrap();
        for said in waiting {
            let refused = said.recv().unwrap();
            assert!(matches!(refused, Err(kaml::Error::UnknownNamespace(_))), "{refused:?}");
        }
        assert!(device.namespace("renamed").is_err());
    });
    device.close().unwrap();
}
