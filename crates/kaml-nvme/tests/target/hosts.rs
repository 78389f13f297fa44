//! Hosts that vanish, and those that come after them.

use crate::world::{World, key};
use kaml::store::Backing;
use kaml::{BlockOptions, Condition, Key, KeyRef, NamespaceOptions};
use kaml_nvme::host::{Controller, HostOptions, KeyValue, Queue, RemoteDevice, Wait};
use kaml_nvme::wire::command::{Command, nvm};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Goal:   commands of a host that has vanished are over before another host, or the same one again, has a queue: nothing that it
///         stores is overwritten later.
/// Method: many values on their way when their host vanishes, long ones and such as come with their commands; the next host stores
///         short ones under the same keys at once.
#[test]
fn what_a_lost_host_asked_for_is_over_when_the_next_one_connects() {
    let world = World::new();
    let nsid = world.namespace("a");
    let mut on_their_way = 0;
    for round in 0..20u8 {
        let keys: Vec<Key> = (0..60u64).map(|key| Key::from(u64::from(round) << 32 | key)).collect();
        let bytes = if round % 2 == 0 { 256 << 10 } else { 4096 };
        let lost = world.host();
        on_their_way += keys.len() - begin_to_store(&lost.queues()[0], nsid, &keys, &vec![round; bytes]);
        drop(lost);
        let next = world.host();
        let store = KeyValue::new(&next.queues()[0], nsid);
        keys.iter().for_each(|key| store.store(key, &[round], 0).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        for key in &keys {
            let (value, bytes) = store.retrieve(key, 16).unwrap().unwrap();
            assert_eq!((value, bytes), (vec![round], 1), "{key} in round {round}");
        }
    }
    assert!(on_their_way > 200, "{on_their_way}");
}

/// Returns how many are stored already.
fn begin_to_store(queue: &Queue, nsid: u32, keys: &[Key], value: &[u8]) -> usize {
    let store = KeyValue::new(queue, nsid);
    let mut answers = Vec::new();
    for key in keys {
        let _never_waited_for = queue.enqueue(store.storing(key, value.len(), 0), value, 0).unwrap().unwrap();
    }
    queue.poll(Wait::Yes, &mut answers).unwrap();
    answers.len()
}

/// Goal:   what a host needed to know that has gone is not found out: others need not wait for it.
/// Method: a thousand Verifies of 256 MiB each, which take workers many seconds; their host leaves, and the next one stores a value that
///         takes a worker.
#[test]
fn what_a_lost_host_wanted_to_know_is_left() {
    let world = World::new();
    let nsid = world.namespace("a");
    let options = NamespaceOptions::from(BlockOptions::new(4096, 1 << 16));
    let disk = world.device.create_namespace("disk", &options).unwrap();
    let lost = world.host_with(|options| options.depth = 1000);
    let mut verify = Command::new(nvm::VERIFY, disk);
    verify.cdw12 = 0xffff.into();
    for _ in 0..1000 {
        let _never_waited_for = lost.queues()[0].enqueue(verify, &[], 0).unwrap().unwrap();
    }
    lost.queues()[0].send().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    drop(lost);
    let begin = Instant::now();
    KeyValue::new(&world.host().queues()[0], nsid).store(&key(b"k"), &[1; 40_000], 0).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
}

/// Whether something is over in time; what hangs is left behind.
fn ends(what: impl FnOnce() + Send + 'static) -> bool {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        what();
        tell.send(())
    });
    told.recv_timeout(Duration::from_secs(20)).is_ok()
}

/// Goal:   a thread that waits for a place on a queue gets it when another thread takes its response, though nothing more is received then.
/// Method: a queue for one command, whose response waits for a while before it is taken; another thread needs to send meanwhile.
#[test]
fn answers_that_are_taken_make_room() {
    let world: &World = Box::leak(Box::new(World::new()));
    let nsid = world.namespace("a");
    let host: &Controller = Box::leak(Box::new(world.host_with(|options| options.depth = 1)));
    let queue = &host.queues()[0];
    let ticket = KeyValue::new(queue, nsid).submit_retrieve(&key(b"x"), 16).unwrap();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        queue.wait(ticket).unwrap();
    });
    assert!(ends(move || assert!(!KeyValue::new(queue, nsid).exist(&key(b"x")).unwrap())), "it waits for ever");
}

/// Goal:   batched reads end, however many threads share a queue and however few commands it takes.
/// Method: fewer places than one thread likes to have in flight, down to one, and more threads than fill a usual queue; values that
///         fit the first room, and such as take a second command.
#[test]
fn batched_reads_share_a_queue() {
    for (depth, threads, bytes) in [(1, 2, 8), (16, 2, 8), (128, 12, 8), (128, 12, 8000)] {
        let world: &World = Box::leak(Box::new(World::new()));
        let nsid = world.namespace("a");
        let keys: Vec<Key> = (0..64u64).map(Key::from).collect();
        keys.iter().for_each(|key| world.device.put(nsid, *key, &vec![1; bytes]).unwrap());
        let url = format!("nvme+tcp://{}/{}", world.address, world.subsystem).parse().unwrap();
        let remote = RemoteDevice::open(&url, &HostOptions { depth, ..HostOptions::default() }).unwrap();
        let read = move || {
            let names: Vec<KeyRef<'_>> = keys.iter().map(KeyRef::from).collect();
            for _ in 0..20 {
                let mut found = [0; 64];
                remote
                    .reader()
                    .get_many(nsid, &names, &mut |place, value| found[place] += value.unwrap().unwrap().len());
                assert_eq!(found, [bytes; 64]);
            }
        };
        let all = move || std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(&read))));
        assert!(ends(all), "{threads} threads with {depth} places for values of {bytes} bytes wait for ever");
    }
}

/// Goal:   a target that is silent, as one is whose machine or network is gone, does not keep its host waiting: it is connected to again.
/// Method: connections by way of somebody who stops passing anything on, but keeps them; new ones are passed on.
#[test]
fn silent_targets_are_lost() {
    let world: &World = Box::leak(Box::new(World::new()));
    let nsid = world.namespace("a");
    let way = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = way.local_addr().unwrap();
    let times: &AtomicU32 = Box::leak(Box::default());
    let pass_on = move |mut from: TcpStream, mut to: TcpStream, time: u32| {
        let (mut bytes, mut count) = ([0; 4096], 1);
        while count > 0 {
            count = from.read(&mut bytes).unwrap_or(0);
            if times.load(Relaxed) == time && to.write_all(&bytes[..count]).is_err() {
                return;
            }
        }
    };
    std::thread::spawn(move || {
        for host in way.incoming().flatten() {
            let target = TcpStream::connect(&world.address).unwrap();
            let time = times.load(Relaxed);
            let back = (target.try_clone().unwrap(), host.try_clone().unwrap());
            std::thread::spawn(move || pass_on(host, target, time));
            std::thread::spawn(move || pass_on(back.0, back.1, time));
        }
    });
    let url = format!("nvme+tcp://{address}/{}", world.subsystem).parse().unwrap();
    let options = HostOptions { keep_alive: Duration::from_secs(1), ..HostOptions::default() };
    let remote = RemoteDevice::open(&url, &options).unwrap();
    remote.put_if(nsid, key(b"k"), b"v", Condition::Always).unwrap();
    times.fetch_add(1, Relaxed);
    let read = move || assert_eq!(remote.get(nsid, key(b"k")).unwrap().as_deref(), Some(&b"v"[..]));
    assert!(ends(read), "it waits for ever");
}
