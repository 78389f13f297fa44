//! Records that expire, on the command line.

mod world;

use serde_json::json;
use std::time::Duration;
use world::{World, end};

/// Goal:   times to live are set for records and namespaces, shown, changed, and kept by a salvage; what has expired is not found.
/// Method: a namespace and records with long times and a short one; commands one after the other, each in a process of its own.
#[test]
fn records_have_times_to_live() {
    let world = World::new();
    let created = world.json(&["namespace", "create", "data.kaml", "sessions", "--ttl", "1h", "--json"]);
    assert_eq!(created["default_ttl_ms"], json!(3_600_000));
    world.ok(&["put", "data.kaml", "sessions", "ada", "1"]);
    world.ok(&["put", "data.kaml", "sessions", "grace", "2", "--no-ttl"]);
    world.ok(&["put", "data.kaml", "sessions", "brief", "3", "--ttl", "1ms"]);
    world.ok(&["put", "data.kaml", "notes", "brief", "3", "--ttl", "1ms", "--if-absent"]);
    std::thread::sleep(Duration::from_millis(20));
    for namespace in ["sessions", "notes"] {
        assert!(world.fails(3, &["get", "data.kaml", namespace, "brief"]).contains("no key"));
    }
    assert_eq!(world.ok(&["count", "data.kaml", "sessions"]).trim(), "2");
    world.ok(&["put", "data.kaml", "notes", "brief", "4", "--if-absent"]);
    assert!(
        world.fails(4, &["put", "data.kaml", "notes", "brief", "5", "--ttl", "1h", "--if-absent"]).contains("exists")
    );
    assert!(world.ok(&["namespace", "list", "data.kaml"]).contains("bytes, for 1h"));
    world.ok(&["namespace", "set", "data.kaml", "sessions", "--no-ttl"]);
    world.ok(&["put", "data.kaml", "sessions", "later", "6"]);
    let set = world.json(&["namespace", "set", "data.kaml", "sessions", "--ttl", "90s", "--json"]);
    assert_eq!(set["default_ttl_ms"], json!(90_000));
    world.ok(&["get", "data.kaml", "sessions", "later"]);

    world.ok(&["salvage", "data.kaml", "--into", "whole.kaml"]);
    let spaces = world.json(&["namespace", "list", "whole.kaml", "--json"]);
    let space = spaces.as_array().unwrap().iter().find(|space| space["name"] == "sessions").unwrap();
    assert_eq!((&space["default_ttl_ms"], &space["record_count"]), (&json!(90_000), &json!(3)));
    world.ok(&["get", "whole.kaml", "sessions", "ada"]);
    let whole = kaml::Device::open(world.path("whole.kaml"), &kaml::OpenOptions::default()).unwrap();
    let sessions = whole.namespace("sessions").unwrap();
    let before = |name: &str| {
        let device = kaml::Device::open(world.path("data.kaml"), &kaml::OpenOptions::default()).unwrap();
        device.expiry(device.namespace("sessions").unwrap(), name).unwrap()
    };
    assert!(matches!(before("ada"), Some(kaml::Expiry::At(_))));
    for name in ["ada", "grace", "later"] {
        assert_eq!(whole.expiry(sessions, name).unwrap(), before(name), "{name} keeps its time");
    }
    assert_eq!(whole.namespaces().iter().find(|space| space.id == sessions).unwrap().expiring_count, 1);
}

/// Goal:   what makes no sense, or is not possible over the network, is refused with what to do.
/// Method: one of each.
#[test]
fn wrong_times_to_live_are_refused() {
    let world = World::new();
    // Mistakes in the arguments have further lines, with the usage.
    let usage = |arguments: &[&str]| {
        let refused = world.run(arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {refused:?}");
        String::from_utf8(refused.stderr).unwrap()
    };
    for wrong in ["1", "soon", "0s", "-1s"] {
        let complaint = usage(&["put", "data.kaml", "notes", "a", "1", &format!("--ttl={wrong}")]);
        assert!(complaint.contains("time to live"), "{wrong}: {complaint}");
    }
    world.ok(&["namespace", "create", "data.kaml", "past", "--versioned"]);
    let complaint = world.fails(2, &["namespace", "set", "data.kaml", "past", "--ttl", "1h"]);
    assert!(complaint.contains("retention"), "{complaint}");
    let complaint = usage(&["namespace", "create", "data.kaml", "v", "--versioned", "--ttl", "1h"]);
    assert!(complaint.contains("--versioned") && complaint.contains("--ttl"), "{complaint}");
    let (mut serving, url) = world.serve();
    let complaint = world.fails(2, &["put", &url, "notes", "a", "1", "--ttl", "1h"]);
    assert!(complaint.contains("over the network"), "{complaint}");
    let complaint = world.fails(2, &["namespace", "create", &url, "brief", "--ttl", "1h"]);
    assert!(complaint.contains("over the network"), "{complaint}");
    end(&mut serving);
}

/// Goal:   counters are changed without a read, and shown; what is no counter is refused.
/// Method: commands one after the other, each in a process of its own.
#[test]
fn counters_count() {
    let world = World::new();
    let add = |more: &[&str]| world.ok(&[&["add", "data.kaml", "notes", "visits"], more].concat()).trim().to_owned();
    assert_eq!([add(&[]), add(&["10"]), add(&["--", "-3"])], ["1", "11", "8"]);
    assert_eq!([add(&["17", "--max"]), add(&["5", "--min"])], ["17", "5"]);
    let answer = world.json(&["add", "data.kaml", "notes", "brief", "--ttl", "1ms", "--json"]);
    assert_eq!(answer["counter"], json!(1));
    std::thread::sleep(Duration::from_millis(20));
    world.fails(3, &["get", "data.kaml", "notes", "brief"]);
    world.ok(&["put", "data.kaml", "notes", "text", "text"]);
    let complaint = world.fails(2, &["add", "data.kaml", "notes", "text"]);
    assert!(complaint.contains("a counter 8"), "{complaint}");
}
