//! Returns that are lost on the wire.

use crate::world::{World, key};
use kaml::{Batch, Condition, Device, KeyKind, NamespaceId, NamespaceOptions, VersionOptions};
use kaml_nvme::host::{HostOptions, RemoteDevice, RemoteUrl};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Forwards connections to a target. When it is asked to, it drops the next bytes that the target sends, and closes that connection.
struct Proxy {
    address: String,
    cut: Arc<AtomicBool>,
    /// Nobody is connected while there is none.
    target: Arc<Mutex<Option<String>>>,
}

impl Proxy {
    fn to(target: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (cut, target) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Some(target.to_owned()))));
        let proxy = Proxy { address, cut: Arc::clone(&cut), target: Arc::clone(&target) };
        std::thread::spawn(move || {
            for host in listener.incoming().flatten() {
                let to = loop {
                    match target.lock().unwrap().clone() {
                        Some(to) => break to,
                        None => std::thread::sleep(Duration::from_millis(5)),
                    }
                };
                let Ok(target) = TcpStream::connect(to) else { return };
                let (from_host, to_target) = (host.try_clone().unwrap(), target.try_clone().unwrap());
                std::thread::spawn(move || forward(from_host, to_target, &AtomicBool::new(false)));
                let cut = Arc::clone(&cut);
                std::thread::spawn(move || forward(target, host, &cut));
            }
        });
        proxy
    }

    /// Loses the target's next answer.
    fn lose_next_answer(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    fn has_lost_it(&self) -> bool {
        !self.cut.load(Ordering::SeqCst)
    }

    fn lead_to(&self, target: Option<&str>) {
        *self.target.lock().unwrap() = target.map(str::to_owned);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut bytes = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if cut.swap(false, Ordering::SeqCst) || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

type Change<'a> = (&'a str, &'a dyn Fn() -> Result<(), kaml::Error>);

fn remote_through(proxy: &Proxy, world: &World) -> RemoteDevice {
    let url = format!("nvme+tcp://{}/{}", proxy.address, world.subsystem).parse::<RemoteUrl>().unwrap();
    RemoteDevice::open(&url, &HostOptions { keep_alive: Duration::ZERO, ..HostOptions::default() }).unwrap()
}

fn versioned(device: &Device) -> NamespaceId {
    let options = NamespaceOptions::from(VersionOptions::default());
    device.create_namespace("past", &options).unwrap()
}

/// Goal:   a change whose answer is lost takes effect once, and its caller gets its outcome.
/// Method: a proxy that loses the answer of a Put, of a delete, of a Put of two records, one of them elsewhere, of Puts under
///         conditions, one of which is refused, of an undo, a snapshot and a merge; the history after each.
#[test]
fn changes_whose_answer_is_lost_take_effect_once() {
    let world = World::new();
    let (plain, past) = (world.namespace("plain"), versioned(&world.device));
    let proxy = Proxy::to(&world.address);
    let remote = remote_through(&proxy, &world);
    let k = key(b"k");
    remote.put_if(past, k, b"0", Condition::Always).unwrap();
    let versions = || world.device.history(past, k, 100).unwrap().len();
    assert_eq!(versions(), 1);
    let put = |value: &'static [u8], condition| remote.put_if(past, k, value, condition);
    let delete = || {
        let mut batch = Batch::new();
        batch.delete(past, k);
        remote.write(&batch)
    };
    let put_two = || {
        let mut batch = Batch::new();
        batch.put(plain, k, b"2").put(past, k, b"2");
        remote.write(&batch)
    };
    let changes: [Change<'_>; 6] = [
        ("put", &|| put(b"1", Condition::Always)),
        ("delete", &delete),
        ("absent", &|| put(b"2", Condition::IfAbsent)),
        ("two records", &put_two),
        ("present", &|| put(b"3", Condition::IfPresent)),
        ("undo", &|| remote.undo(past, k, 1).map(|is_there| assert!(is_there))),
    ];
    for (number, (name, change)) in changes.into_iter().enumerate() {
        proxy.lose_next_answer();
        change().expect(name);
        assert!(proxy.has_lost_it(), "{name}");
        assert_eq!(versions(), number + 2, "{name}");
    }
    proxy.lose_next_answer();
    let refused = put(b"4", Condition::IfAbsent).unwrap_err();
    assert!(matches!(refused, kaml::Error::Conflict { present: true, .. }), "{refused}");
    let version = || world.device.version_stats(past).unwrap().user_version;
    let before = version();
    proxy.lose_next_answer();
    assert_eq!(remote.snapshot(past).unwrap(), before);
    assert!(proxy.has_lost_it());
    assert_eq!(version(), before + 1, "one snapshot");
    proxy.lose_next_answer();
    remote.put_if(plain, k, b"again", Condition::Always).unwrap();
    assert!(proxy.has_lost_it());
    assert_eq!(world.device.get(plain, k).unwrap().unwrap(), b"again");
}

/// Goal:   commands on keys above 16 bytes and on ranges survive the loss of a connection at each of their steps: a change takes effect once and
///         returns what it did, a read is named again on the new connection.
/// Method: a proxy that loses the answers of a put, a put under a condition, a get, a look, a page, a count and a delete of a range.
#[test]
fn long_keys_and_ranges_survive_lost_connections() {
    let world = World::new();
    let nsid = world.device.create_namespace("ordered", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    let proxy = Proxy::to(&world.address);
    let remote = remote_through(&proxy, &world);
    let name = |number: u32| format!("a key of more than 16 bytes {number:04}");
    (0..100).for_each(|number| world.device.put(nsid, &name(number), &[7; 100]).unwrap());
    let all = || (Unbounded, Unbounded);
    assert_eq!(remote.count_range(nsid, all()).unwrap(), 100);
    let steps: [(&str, &dyn Fn() -> bool); 7] = [
        ("put", &|| remote.put_if(nsid, &name(100), b"x", Condition::Always).is_ok()),
        ("absent", &|| remote.put_if(nsid, &name(101), b"x", Condition::IfAbsent).is_ok()),
        ("get", &|| remote.get(nsid, &name(5)).is_ok_and(|value| value == Some(vec![7; 100]))),
        ("exists", &|| remote.exists(nsid, &name(5)).is_ok_and(|exists| exists)),
        ("page", &|| remote.range(nsid, all(), true, 1000).is_ok_and(|records| records.len() == 102)),
        ("count", &|| remote.count_range(nsid, all()).is_ok_and(|count| count == 102)),
        ("delete", &|| {
            remote.delete_range(nsid, (Unbounded, Excluded(name(40).as_bytes()))).is_ok_and(|count| count == 40)
        }),
    ];
    for (step, act) in steps {
        proxy.lose_next_answer();
        assert!(act(), "{step}");
        assert!(proxy.has_lost_it(), "{step}");
    }
    assert_eq!(world.device.namespace_with_id(nsid).count::<&[u8]>(..).unwrap(), 62);
}

/// Goal:   a change whose answer is lost is not sent again to a target that was restarted since; its caller is informed that it may have
///         taken effect, and the next change succeeds.
/// Method: Puts with and without a condition to a namespace that keeps versions, and a snapshot; another server of the same device.
#[test]
fn restarted_targets_execute_nothing_again() {
    let mut world = World::new();
    let past = versioned(&world.device);
    let proxy = Proxy::to(&world.address);
    let remote = remote_through(&proxy, &world);
    let k = key(b"k");
    remote.put_if(past, k, b"0", Condition::Always).unwrap();
    let put = |condition| remote.put_if(past, k, b"1", condition);
    let changes: [Change<'_>; 3] = [
        ("put", &|| put(Condition::Always)),
        ("condition", &|| put(Condition::IfPresent)),
        ("snapshot", &|| remote.snapshot(past).map(drop)),
    ];
    for (number, (name, change)) in changes.iter().enumerate() {
        let versions = world.device.history(past, k, 100).unwrap().len();
        let version = world.device.version_stats(past).unwrap().user_version;
        proxy.lead_to(None);
        proxy.lose_next_answer();
        world = std::thread::scope(|scope| {
            let restarted = scope.spawn(|| {
                while !proxy.has_lost_it() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let device = world.device.clone();
                drop(world);
                let world = World::serving(device, |_| {});
                proxy.lead_to(Some(&world.address));
                world
            });
            let lost = change().expect_err(name).to_string();
            assert!(lost.contains("may have taken effect"), "{name}: {lost}");
            restarted.join().unwrap()
        });
        let is_put = usize::from(number < 2);
        assert_eq!(world.device.history(past, k, 100).unwrap().len(), versions + is_put, "{name}");
        assert_eq!(world.device.version_stats(past).unwrap().user_version, version + 1 - is_put as u32, "{name}");
        remote.put_if(past, k, b"next", Condition::IfPresent).unwrap();
        assert_eq!(world.device.history(past, k, 100).unwrap().len(), versions + is_put + 1, "{name}");
    }
}
