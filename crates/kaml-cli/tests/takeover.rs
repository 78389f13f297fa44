//! `kaml serve --wait`: a second process takes over a device when the first one ends, however it ends.

mod world;

use kaml::{Condition, KeyRef, NamespaceId};
use kaml_nvme::host::{HostOptions, RemoteDevice, RemoteUrl};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use world::{World, end};

/// Longer than the kernel has ever kept the lock of a killed process: see [`held_by_the_dead`].
const PATIENCE: Duration = Duration::from_secs(600);
/// No host may wait longer for a standby.
const BLACKOUT_MAX: Duration = Duration::from_secs(5);
/// Keys that are written again and again.
const KEYS: u64 = 2000;

/// A `kaml serve` and what it prints.
struct Server {
    child: Child,
    says: Receiver<(Instant, Value)>,
}

impl Server {
    fn start(world: &World, arguments: &[&str]) -> Server {
        Server::start_as(world.command(&[&["serve", "--json"], arguments].concat()))
    }

    fn start_as(mut command: std::process::Command) -> Server {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdout, (sender, says)) = (child.stdout.take().unwrap(), channel());
        std::thread::spawn(move || {
            for said in serde_json::Deserializer::from_reader(stdout).into_iter() {
                let Ok(said) = said else { return };
                if sender.send((Instant::now(), said)).is_err() {
                    return;
                }
            }
        });
        Server { child, says }
    }

    fn next(&self) -> (Instant, Value) {
        self.says.recv_timeout(PATIENCE).expect("it says something, and does not end")
    }

    /// Until it waits for a process.
    fn awaits(&self, holder: &Server) {
        let (_, said) = self.next();
        assert_eq!(said["process"].as_u64(), Some(holder.child.id().into()), "{said}");
    }

    fn is_silent_for(&self, time: Duration) {
        assert_eq!(self.says.recv_timeout(time).err(), Some(RecvTimeoutError::Timeout));
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its exit code, soon after it was asked to end.
    fn ended(&mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < Duration::from_secs(5), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn connect(address: &str, listening: &Value) -> RemoteDevice {
    let url = format!("nvme+tcp://{address}/{}", listening["subsystem"].as_str().unwrap());
    RemoteDevice::open(&url.parse::<RemoteUrl>().unwrap(), &HostOptions::default()).unwrap()
}

/// What a host has written: of each key the last value that was acknowledged, and the one that was sent last.
#[derive(Default)]
struct Written {
    of: BTreeMap<u64, (u64, u64)>,
    acknowledged: u64,
    /// How many puts ended with an error and were sent again.
    failed: u64,
    /// When the last put was acknowledged, and the longest time between two since it was looked at.
    last: Option<Instant>,
    longest: Duration,
}

fn write(device: &RemoteDevice, notes: NamespaceId, written: &Mutex<Written>, stop: &AtomicBool) {
    for number in 1.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let key = number % KEYS;
        written.lock().unwrap().of.entry(key).or_default().1 = number;
        let value = format!("{number:0200}");
        while let Err(error) = device.put_if(notes, KeyRef::from(key), value.as_bytes(), Condition::Always) {
            println!("the host sees: {error}");
            written.lock().unwrap().failed += 1;
            assert!(!stop.load(Ordering::Relaxed), "{error}");
        }
        let mut written = written.lock().unwrap();
        written.of.get_mut(&key).unwrap().0 = number;
        written.acknowledged += 1;
        let now = Instant::now();
        written.longest = written.longest.max(written.last.map_or(Duration::ZERO, |last| now - last));
        written.last = Some(now);
    }
}

/// Waits until the kernel has released the lock of a process that was killed. It waits for operations of io_uring that are in flight: on Linux 6.18 that
/// took minutes in some of a few hundred kills.
fn held_by_the_dead(process: u32) {
    let (begun, process) = (Instant::now(), process.to_string());
    let is_held = || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.split_ascii_whitespace().nth(4) == Some(&process))
    };
    while is_held() {
        assert!(begun.elapsed() < PATIENCE, "the lock of a killed process is not released");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Every value is one that was sent, and none is older than what was acknowledged before.
fn compare(device: &RemoteDevice, notes: NamespaceId, written: &Mutex<Written>) {
    let before: Vec<(u64, u64)> = written.lock().unwrap().of.iter().map(|(key, (acked, _))| (*key, *acked)).collect();
    for (key, acknowledged) in before {
        let value = device.get(notes, KeyRef::from(key)).unwrap();
        let found = value.map_or(0, |value| String::from_utf8(value).unwrap().parse::<u64>().unwrap());
        let sent = written.lock().unwrap().of[&key].1;
        assert!((acknowledged..=sent).contains(&found), "key {key}: {found}, not {acknowledged} to {sent}");
    }
}

/// Goal:   when the process that serves a device is killed, a standby serves it at the same address, within seconds but for what the kernel delays; a host that writes all the time sees
///         no error, and every record that was acknowledged exists. The standby has never opened the device before.
/// Method: `KAML_ROUNDS` times (8): a host writes, SIGKILL, the standby listens, all records are compared, the next standby starts.
#[test]
fn a_standby_takes_over_after_a_kill() {
    let rounds: u32 = std::env::var("KAML_ROUNDS").ok().map_or(8, |text| text.parse().unwrap());
    let world = World::new();
    let address = free_address();
    let arguments = ["data.kaml", "--wait", "--listen", &address, "--allow-management"];
    let mut serving = Server::start(&world, &arguments);
    let (_, listening) = serving.next();
    let device = connect(&address, &listening);
    let notes = device.namespaces().unwrap()[0].id;
    let (written, stop) = (Arc::new(Mutex::new(Written::default())), Arc::new(AtomicBool::new(false)));
    let writer = {
        let (device, written, stop) = (connect(&address, &listening), Arc::clone(&written), Arc::clone(&stop));
        std::thread::spawn(move || write(&device, notes, &written, &stop))
    };
    let await_puts = |count: u64| {
        let (begun, first) = (Instant::now(), written.lock().unwrap().acknowledged);
        while written.lock().unwrap().acknowledged < first + count {
            assert!(begun.elapsed() < PATIENCE && !writer.is_finished(), "nothing is written");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let (mut blackouts, mut takeovers, mut held) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let standby = Server::start(&world, &arguments);
        standby.awaits(&serving);
        await_puts(200);
        let said = world.fails(1, &["put", "data.kaml", "notes", "a", "1"]);
        assert!(said.contains(&format!("in use by process {} (kaml)", serving.child.id())), "{said}");
        written.lock().unwrap().longest = Duration::ZERO;
        let killed = Instant::now();
        serving.child.kill().unwrap();
        serving.child.wait().unwrap();
        held_by_the_dead(serving.child.id());
        held.push(killed.elapsed());
        let (listens, said) = standby.next();
        assert!(said["address"] == address && listens > killed, "{said}");
        takeovers.push(listens - killed);
        await_puts(10);
        blackouts.push(written.lock().unwrap().longest);
        compare(&device, notes, &written);
        serving = standby;
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    compare(&device, notes, &written);
    drop(device);
    end(&mut serving.child);
    assert!(world.ok(&["check", "data.kaml"]).contains(" 0 problems"));
    // See `held_by_the_dead`: in some of a few hundred kills the kernel takes minutes, for what a dead process had in flight and for what the new one has.
    let late = blackouts.iter().filter(|time| **time > BLACKOUT_MAX).count();
    assert!(
        late <= rounds.div_ceil(8) as usize,
        "{late} of {rounds} blackouts are above {BLACKOUT_MAX:?}: {blackouts:?}"
    );
    assert!(late > 0 || written.lock().unwrap().failed == 0, "the host saw errors");
    for (what, times) in [
        ("until the kernel has released the device", &mut held),
        ("until the standby listens", &mut takeovers),
        ("until the next put is acknowledged", &mut blackouts),
    ] {
        times.sort();
        let late = times.iter().filter(|time| **time > BLACKOUT_MAX).count();
        let (median, max) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{rounds} rounds, {what}: median {median:?}, max {max:?}, {late} above {BLACKOUT_MAX:?}");
    }
}

/// Goal:   a server that is stopped keeps its device: a lease with a time would take that for its end, and the server would write after it continues. A
///         standby takes over when the stopped server is killed.
#[test]
fn a_stopped_server_keeps_its_device() {
    let world = World::new();
    let arguments = ["data.kaml", "--wait", "--listen", "127.0.0.1:0"];
    let mut serving = Server::start(&world, &arguments);
    serving.next();
    let mut standby = Server::start(&world, &arguments);
    standby.awaits(&serving);
    serving.signal(Signal::STOP);
    standby.is_silent_for(Duration::from_secs(2));
    serving.child.kill().unwrap();
    assert!(standby.next().1["address"].is_string());
    end(&mut standby.child);
}

/// Goal:   a standby that is asked to end does so at once, with the exit code of a server; one that has waited long enough names the device and the
///         process that has it; without --wait a device in use is refused. None of them disturbs the server.
#[test]
fn a_standby_ends_without_having_served() {
    let world = World::new();
    let (mut serving, _) = world.serve();
    let name = format!("in use by process {} (kaml)", serving.id());
    for signal in [Signal::TERM, Signal::INT] {
        let mut standby = Server::start(&world, &["data.kaml", "--wait"]);
        assert_eq!(standby.next().1["process"].as_u64(), Some(serving.id().into()));
        let begun = Instant::now();
        standby.signal(signal);
        assert_eq!(standby.ended(), Some(0));
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    }
    let output = world.run(&["serve", "data.kaml", "--wait=1", "--listen", "127.0.0.1:0"]);
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(out.contains("waiting for data.kaml, ") && out.contains(&name), "{out}");
    assert!(output.status.code() == Some(1) && err.contains("data.kaml") && err.contains(&name), "{err}");
    assert!(err.contains("; waited for 1 s"), "{err}");
    let said = world.fails(1, &["serve", "data.kaml"]);
    assert!(said.contains(&name) && said.contains("take over when it ends with --wait"), "{said}");
    world.fails(1, &["serve", "none.kaml", "--wait"]);
    world.fails(2, &["serve", "data.kaml", "--wait", "--listen", "4420"]);
    assert_eq!(world.run(&["serve", "--in-memory", "64M", "--wait"]).status.code(), Some(2));
    end(&mut serving);
    world.ok(&["put", "data.kaml", "notes", "a", "1"]);
}

/// Goal:   a standby of several devices holds none of them as long as one is in use; it serves what its configuration states at the end, and notifies the
///         service manager when it waits and when it serves.
/// Method: another process serves the second device, and the first one is used meanwhile; a mistake and then another listener in the file, with SIGHUP; a
///         socket as the service manager has one.
#[test]
fn a_standby_takes_over_several_devices() {
    let world = World::new();
    world.ok(&["create", "second.kaml", "--capacity", "64MiB"]);
    world.ok(&["namespace", "create", "second.kaml", "notes"]);
    let file = world.path("serve.toml");
    let text = |listen: &str| {
        format!(
            "log-level = \"info\"\n[[device]]\npath = \"data.kaml\"\nlisten = [\"127.0.0.1:0\"]\n[[device]]\npath = \"second.kaml\"\nlisten = [\"{listen}\"]\n"
        )
    };
    fs::write(&file, text("127.0.0.1:0")).unwrap();
    let serving = Server::start(&world, &["second.kaml", "--listen", "127.0.0.1:0"]);
    serving.next();
    let manager = UnixDatagram::bind(world.path("manager")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let notified = || {
        let mut bytes = [0; 1000];
        let count = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    };
    let mut command = world.command(&["serve", "--config", "serve.toml", "--json", "--wait"]);
    let log = fs::File::create(world.path("log")).unwrap();
    command.env("NOTIFY_SOCKET", world.path("manager")).stderr(log);
    let mut standby = Server::start_as(command);
    standby.awaits(&serving);
    let said = notified();
    assert!(said.contains("READY=1\n") && said.contains("STATUS=waiting for "), "{said}");
    assert!(said.contains("second.kaml, in use by process"), "{said}");
    for number in 0..5 {
        world.ok(&["put", "data.kaml", "notes", &number.to_string(), "value"]);
    }
    let address = free_address();
    for (text, named) in [("[[device]]\n".to_owned(), "is that of before"), (text(&address), "was read again")] {
        fs::write(&file, text).unwrap();
        standby.signal(Signal::HUP);
        let begun = Instant::now();
        while !fs::read_to_string(world.path("log")).unwrap().contains(named) {
            assert!(begun.elapsed() < PATIENCE, "{:?}", fs::read_to_string(world.path("log")));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    drop(serving);
    let (_, said) = standby.next();
    assert!(said[1]["address"] == address.as_str(), "{said}");
    let said_to_manager = notified();
    assert!(said_to_manager.contains("STATUS=serving"), "{said_to_manager}");
    for device in said.as_array().unwrap() {
        let url =
            format!("nvme+tcp://{}/{}", device["address"].as_str().unwrap(), device["subsystem"].as_str().unwrap());
        world.ok(&["put", &url, "notes", "key", "value"]);
    }
    end(&mut standby.child);
}
