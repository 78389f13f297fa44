//! `kaml serve --config`: several devices in one process, as an operator sets them up.

mod world;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use world::{World, end};

const HOST: &str = "nqn.2026-11.example:host";
const OTHER: &str = "nqn.2026-11.example:other";
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts what the configuration states, and returns where each device is served.
fn start(world: &World, arguments: &[&str], log: &str) -> (Child, Vec<Value>) {
    let arguments = [&["serve", "--config", "serve.toml", "--json"], arguments].concat();
    let log = File::create(world.path(log)).unwrap();
    let mut serving = world.command(&arguments).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut said = String::new();
    let mut stdout = BufReader::new(serving.stdout.take().unwrap());
    while serde_json::from_str::<Value>(&said).is_err() {
        assert_ne!(stdout.read_line(&mut said).unwrap(), 0, "it ended: {said}");
    }
    let said: Value = serde_json::from_str(&said).unwrap();
    (serving, said.as_array().unwrap().clone())
}

fn url(listening: &Value) -> String {
    format!("nvme+tcp://{}/{}", listening["address"].as_str().unwrap(), listening["subsystem"].as_str().unwrap())
}

/// Goal:   one process serves several devices, one of them by two paths; hosts that the file names later are let in without a restart, a file with
///         a mistake changes nothing, and the process ends in order.
/// Method: a file, a device in memory; `put` and `get` by each path; the file is changed and SIGHUP sent; SIGINT; the log is JSON.
#[test]
fn several_devices_are_served_by_one_process() {
    let world = World::new();
    world.ok(&["put", "data.kaml", "notes", "key", "one"]);
    let text = |hosts: &str| {
        format!(
            "log-level = \"info\"\nlog-format = \"json\"\n\
             [[device]]\npath = \"data.kaml\"\nlisten = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\nallow-hosts = [{hosts}]\n\
             [[device]]\nin-memory = \"64MiB\"\nlisten = [\"127.0.0.1:0\"]\nallow-management = true\nmetrics = \"127.0.0.1:0\"\n"
        )
    };
    let file = world.path("serve.toml");
    fs::write(&file, text(&format!("{HOST:?}"))).unwrap();
    assert!(world.ok(&["serve", "--config", "serve.toml", "--check"]).contains("data.kaml can be served"));
    let (mut serving, listening) = start(&world, &[], "log");
    let [first, second] = &listening[..] else { panic!("{listening:?}") };
    let other_path = first["more_addresses"][0].as_str().unwrap();
    let urls = [url(first), format!("nvme+tcp://{other_path}/{}", first["subsystem"].as_str().unwrap())];
    for url in &urls {
        assert_eq!(world.ok(&["get", url, "notes", "key", "--host-nqn", HOST]), "one");
        world.fails(1, &["get", url, "notes", "key", "--host-nqn", OTHER]);
    }
    world.ok(&["namespace", "create", &url(second), "more"]);
    world.ok(&["put", &url(second), "more", "key", "two"]);
    assert_eq!(world.ok(&["get", &url(second), "more", "key"]), "two");
    assert!(second["metrics"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{second}");
    // A running server has the device open. The configuration is right nevertheless.
    world.ok(&["serve", "--config", "serve.toml", "--check"]);

    let hang_up = || kill_process(Pid::from_child(&serving), Signal::HUP).unwrap();
    let said = || fs::read_to_string(world.path("log")).unwrap();
    let wait_for = |what: &str| {
        let begun = Instant::now();
        while !said().contains(what) {
            assert!(begun.elapsed() < PATIENCE, "{}", said());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    fs::write(&file, "[[device]]\n").unwrap();
    hang_up();
    wait_for("are those of before");
    assert_eq!(world.ok(&["get", &urls[0], "notes", "key", "--host-nqn", HOST]), "one");
    fs::write(&file, text(&format!("{OTHER:?}")).replace("64MiB", "65MiB")).unwrap();
    hang_up();
    wait_for("were read again");
    let begun = Instant::now();
    while !world.run(&["get", &urls[1], "notes", "key", "--host-nqn", OTHER]).status.success() {
        assert!(begun.elapsed() < PATIENCE, "{}", said());
    }
    world.fails(1, &["get", &urls[0], "notes", "key", "--host-nqn", HOST]);
    assert!(said().contains("has it no more") && said().contains("from the next start on"), "{}", said());
    assert!(said().lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{}", said());
    end(&mut serving);
    assert_eq!(world.ok(&["get", "data.kaml", "notes", "key"]), "one");
}

/// Goal:   what is wrong is found before anything is served, with its place, and with the exit code of usage; nothing hangs and nothing is created.
/// Method: mistakes in the file, in what it names, and in the other flags.
#[test]
fn mistakes_are_found_by_a_check() {
    let world = World::new();
    let device = |more: &str| format!("[[device]]\npath = \"data.kaml\"\nlisten = [\"127.0.0.1:0\"]\n{more}");
    let file = world.path("serve.toml");
    for (text, code, named) in [
        (device("colour = 1\n"), 2, "line 4: unknown field `colour`"),
        (device("hosts = \"none.toml\"\n"), 1, "none.toml"),
        (device("subsystem = \"none\"\n"), 2, "not an NVMe qualified name"),
        (device("allow-hosts = [\"none\"]\n"), 2, "not an NVMe qualified name"),
        (device("").replace("data.kaml", "none.kaml"), 1, "none.kaml"),
        (device("").replace("127.0.0.1:0", "4420"), 2, "4420"),
        (device("in-memory = \"1G\"\n"), 2, "exclude each other"),
    ] {
        fs::write(&file, text).unwrap();
        for arguments in [&["serve", "--config", "serve.toml", "--check"][..], &["serve", "--config", "serve.toml"]] {
            let said = world.fails(code, arguments);
            assert!(said.contains(named), "{said}");
        }
    }
    world.fails(1, &["serve", "--config", "absent.toml", "--check"]);
    for more in [&["data.kaml"][..], &["--listen", "127.0.0.1:0"]] {
        let refused = world.run(&[&["serve", "--config", "serve.toml"], more].concat());
        assert_eq!(refused.status.code(), Some(2), "{more:?}");
    }
    world.fails(2, &["serve", "data.kaml", "--listen", "4420", "--check"]);
    assert!(!world.path("none.kaml").exists());
    world.ok(&["serve", "data.kaml", "--check"]);
}

/// Goal:   snapshots are taken by the schedule of the configuration, and the oldest ones go; hosts read what the newest one sees; the server ends at once.
/// Method: a schedule of one second that keeps two; wait for the third snapshot; a version that was put after it is not in it; SIGINT.
#[test]
fn snapshots_are_taken_by_schedule() {
    let world = World::new();
    world.ok(&["namespace", "create", "data.kaml", "past", "--versioned"]);
    world.ok(&["put", "data.kaml", "past", "key", "one"]);
    let schedule = "[[device.snapshots]]\nnamespace = \"past\"\nevery = \"1s\"\nkeep = 2\n";
    let text = format!("[[device]]\npath = \"data.kaml\"\nlisten = [\"127.0.0.1:0\"]\n{schedule}");
    fs::write(world.path("serve.toml"), text).unwrap();
    let (mut serving, listening) = start(&world, &[], "log");
    let url = url(&listening[0]);
    let snapshots = || -> Vec<u64> {
        let said: Value = serde_json::from_str(&world.ok(&["snapshot", &url, "past", "--list", "--json"])).unwrap();
        said.as_array().unwrap().iter().map(|one| one["snapshot"].as_u64().unwrap()).collect()
    };
    let begun = Instant::now();
    let newest = loop {
        let found = snapshots();
        assert!(found.len() <= 3, "one more than two while the oldest is being forgotten: {found:?}");
        match found[..] {
            [.., newest] if newest >= 3 => break newest,
            _ => assert!(begun.elapsed() < PATIENCE, "{found:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(begun.elapsed() >= Duration::from_secs(1), "three snapshots need two seconds between them");
    assert_eq!(world.ok(&["get", &url, "past", "key", "--as-of", &newest.to_string()]), "one");
    end(&mut serving);
    let said: Value = serde_json::from_str(&world.ok(&["snapshot", "data.kaml", "past", "--list", "--json"])).unwrap();
    assert_eq!(said.as_array().unwrap().len(), 2, "{said}");
}
