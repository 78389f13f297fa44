//! The whole life of a device through the `kaml` program: every subcommand, its JSON, its errors and exit codes.

mod world;

use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use world::{World, end, picture, tree_of};

/// Goal:   what is put is got, byte for byte, whatever the door it came in by; deleting removes it.
/// Method: values by argument, by standard input and by file; read back to standard output and to a file; delete.
#[test]
fn records_come_and_go() {
    let world = World::new();
    world.ok(&["put", "data.kaml", "notes", "hello", "world"]);
    assert_eq!(world.ok(&["get", "data.kaml", "notes", "hello"]), "world");
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
    assert!(world.pipe(&["put", "data.kaml", "notes", "piped", "-"], &bytes).status.success());
    world.ok(&["get", "data.kaml", "notes", "piped", "--output", "out.bin"]);
    assert_eq!(fs::read(world.path("out.bin")).unwrap(), bytes);
    world.ok(&["put", "data.kaml", "notes", "00ff", "--hex", "--file", "out.bin"]);
    assert_eq!(world.run(&["get", "data.kaml", "notes", "0x00ff", "--hex"]).stdout, bytes);
    world.ok(&["put", "data.kaml", "notes", "empty", ""]);
    assert_eq!(world.ok(&["get", "data.kaml", "notes", "empty"]), "");

    let mut keys: Vec<String> = world.ok(&["list", "data.kaml", "notes"]).lines().map(str::to_owned).collect();
    keys.sort();
    assert_eq!(keys, ["0x00ff", "empty", "hello", "piped"]);
    assert_eq!(world.ok(&["list", "data.kaml", "notes", "--limit", "2"]).lines().count(), 2);

    world.ok(&["delete", "data.kaml", "notes", "hello"]);
    world.ok(&["delete", "data.kaml", "notes", "hello"]);
    assert!(world.fails(3, &["get", "data.kaml", "notes", "hello"]).contains("hello"));
    world.fails(3, &["delete", "data.kaml", "notes", "hello", "--must-exist"]);
    world.ok(&["check", "data.kaml"]);
}

/// Goal:   every key that is listed can be given to the other commands as it is listed, and text is shown as text.
/// Method: text, text that looks like other things, bytes; what is listed is got and deleted.
#[test]
fn listed_keys_can_be_given_back() {
    let world = World::new();
    for (key, flag) in
        [("Zürich", ""), ("two words", ""), ("0x00ff", "--text"), ("ff00", "--hex"), ("0xa", ""), ("42", "")]
    {
        let arguments = ["put", "data.kaml", "notes", key, key, flag];
        world.ok(&arguments[..if flag.is_empty() { 5 } else { 6 }]);
    }
    world.ok(&["put", "data.kaml", "notes", "--", "-dash", "-dash"]);
    let mut listed: Vec<String> = world.ok(&["list", "data.kaml", "notes"]).lines().map(str::to_owned).collect();
    listed.sort();
    let dash = "0x2d64617368";
    assert_eq!(listed, [dash, "0x307830306666", "0xa", "0xff00", "42", "Zürich", "two words"]);
    for key in &listed {
        let value = world.ok(&["get", "data.kaml", "notes", key]);
        assert!(value == *key || ["-dash", "0x00ff", "ff00"].contains(&value.as_str()), "{key}: {value}");
        world.ok(&["delete", "data.kaml", "notes", key, "--must-exist"]);
    }
    assert_eq!(world.ok(&["list", "data.kaml", "notes"]), "");
}

/// Goal:   commands that need the device's file report it when they are given one that is served, and make no file of that name.
/// Method: each with an address.
#[test]
fn what_is_served_is_not_here() {
    let world = World::new();
    let url = "nvme+tcp://127.0.0.1:4420/nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427";
    for arguments in [
        &["check", url][..],
        &["salvage", url],
        &["salvage", "data.kaml", "--into", url],
        &["create", url, "--capacity", "64MiB"],
        &["namespace", "delete", url, "notes", "--damaged"],
        &["quickstart", ".", "--keep", url],
        &["serve", url],
    ] {
        assert!(
            world.fails(2, arguments).contains("stop the server and run the command on the device file or disk"),
            "{arguments:?}"
        );
    }
    assert_eq!(fs::read_dir(world.dir.path()).unwrap().count(), 1);
}

/// Goal:   conditions hold or end with their own exit code, and change nothing then.
/// Method: put if absent twice, put if present on an absent key.
#[test]
fn conditions_are_kept() {
    let world = World::new();
    world.ok(&["put", "data.kaml", "notes", "a", "first", "--if-absent"]);
    assert!(world.fails(4, &["put", "data.kaml", "notes", "a", "second", "--if-absent"]).contains('a'));
    assert_eq!(world.ok(&["get", "data.kaml", "notes", "a"]), "first");
    world.ok(&["put", "data.kaml", "notes", "a", "third", "--if-present"]);
    world.fails(4, &["put", "data.kaml", "notes", "b", "x", "--if-present"]);
    world.fails(3, &["get", "data.kaml", "notes", "b"]);
}

/// Goal:   namespaces can be made, listed, renamed, moved and deleted; integer keys are integers; logs that do not
///         exist, or are named twice, are refused.
/// Method: do each, look at the JSON after each.
#[test]
fn namespaces_come_and_go() {
    let world = World::new();
    world.ok(&["ns", "create", "data.kaml", "counters", "--keys", "u64", "--logs", "0"]);
    world.ok(&["put", "data.kaml", "counters", "42", "one"]);
    assert_eq!(world.ok(&["get", "data.kaml", "counters", "42", "--u64"]), "one");
    assert_eq!(world.ok(&["list", "data.kaml", "counters"]), "42\n");
    assert!(world.fails(2, &["put", "data.kaml", "counters", "word", "x"]).contains("no 64-bit integer"));

    let list = world.json(&["namespace", "list", "data.kaml", "--json"]);
    let names: Vec<_> = list.as_array().unwrap().iter().map(|ns| ns["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["notes", "counters"]);
    assert_eq!((&list[1]["keys"], &list[1]["record_count"]), (&"u64".into(), &1.into()));
    assert_eq!(list[1]["logs"], serde_json::json!([0]));

    world.fails(1, &["namespace", "create", "data.kaml", "notes"]);
    world.fails(2, &["namespace", "create", "data.kaml", "x", "--logs", "9999"]);
    for change in [["create", "data.kaml", "x"], ["set", "data.kaml", "counters"]] {
        let twice = [&["namespace"][..], &change, &["--logs", "0,0"]].concat();
        assert!(world.fails(2, &twice).contains("log 0 is named twice"));
    }
    world.ok(&["namespace", "set", "data.kaml", "counters", "--rename", "numbers", "--logs", "all"]);
    world.fails(2, &["namespace", "set", "data.kaml", "numbers"]);
    assert_eq!(world.ok(&["get", "data.kaml", "numbers", "42"]), "one");
    world.ok(&["namespace", "delete", "data.kaml", "numbers"]);
    assert!(world.fails(3, &["get", "data.kaml", "numbers", "42"]).contains("numbers"));
}

/// Goal:   block namespaces are made and shown; what makes no sense, and records in them, are refused.
/// Method: do each, look at the JSON and the table.
#[test]
fn block_namespaces() {
    let world = World::new();
    let create = |more: &[&'static str]| [&["ns", "create", "data.kaml", "disk"], more].concat();
    world.fails(2, &create(&["--block", "1000", "--size", "1000000"]));
    world.fails(2, &create(&["--block", "4096", "--size", "1000"]));
    for incomplete in [create(&["--block", "4096"]), create(&["--block", "4096", "--size", "1GiB", "--keys", "u64"])] {
        assert_eq!(world.run(&incomplete).status.code(), Some(2));
    }
    world.fails(2, &create(&["--block", "4096", "--size", "1GiB", "--unit", "5000"]));
    let made = world.json(&create(&["--block", "512", "--size", "1GiB", "--json"]));
    assert_eq!((&made["keys"], &made["block_bytes"]), (&"blocks".into(), &512.into()));
    assert_eq!((&made["unit_bytes"], &made["block_count"]), (&4096.into(), &(2u64 << 20).into()));
    assert!(world.ok(&["namespace", "list", "data.kaml"]).contains("1.00 GiB of 512 B blocks"));
    assert!(world.fails(2, &["put", "data.kaml", "disk", "1", "x"]).contains("holds blocks"));
    world.fails(2, &["list", "data.kaml", "disk"]);
    let list = world.json(&["namespace", "list", "data.kaml", "--json"]);
    assert_eq!((&list[0]["block_bytes"], &list[1]["block_count"]), (&Value::Null, &(2u64 << 20).into()));
}

/// Goal:   every `--json` is one JSON document (`list`: one a line) with the promised fields.
/// Method: run each and look at a field of each.
#[test]
fn json_everywhere() {
    let world = World::empty();
    let created = world.json(&["create", "data.kaml", "--capacity", "64MiB", "--json"]);
    assert_eq!(created["durability"], "power");
    assert_eq!(world.json(&["namespace", "create", "data.kaml", "notes", "--json"])["name"], "notes");
    assert_eq!(world.json(&["put", "data.kaml", "notes", "k", "value", "--json"])["bytes"], 5);
    assert_eq!(world.json(&["get", "data.kaml", "notes", "k", "--json"])["value"], "value");
    assert!(world.pipe(&["put", "data.kaml", "notes", "raw", "-"], &[255, 0]).status.success());
    assert_eq!(world.json(&["get", "data.kaml", "notes", "raw", "--json"])["value_base64"], "/wA=");
    for line in world.ok(&["list", "data.kaml", "notes", "--json"]).lines() {
        assert!(serde_json::from_str::<Value>(line).unwrap()["key"].is_string(), "{line}");
    }
    let info = world.json(&["info", "data.kaml", "--json"]);
    assert_eq!(info["namespaces"][0]["record_count"], 2);
    assert!(info["stats"]["capacity_bytes"].as_u64().unwrap() > 0 && info["device"]["uuid"].is_string());
    assert!(world.ok(&["info", "data.kaml"]).contains("notes"));
    let check = world.json(&["check", "data.kaml", "--json"]);
    assert_eq!((&check["records"], &check["problems"]), (&2.into(), &serde_json::json!([])));
    assert_eq!(world.json(&["delete", "data.kaml", "notes", "k", "--json"])["key"], "k");
}

/// Goal:   what cannot be done ends with the right exit code and one clear line.
/// Method: one of each kind of mistake.
#[test]
fn mistakes_are_answered() {
    let world = World::new();
    assert!(world.fails(1, &["info", "absent.kaml"]).contains("absent.kaml"));
    fs::write(world.path("foreign"), vec![b'x'; 1 << 20]).unwrap();
    assert!(world.fails(1, &["info", "foreign"]).contains("foreign"));
    world.fails(1, &["create", "data.kaml", "--capacity", "64MiB"]);
    for geometry in [&["4096"][..], &["64MiB", "--dies", "0"], &["64MiB", "--block-bytes", "77"]] {
        world.fails(2, &[&["create", "tiny.kaml", "--capacity"], geometry].concat());
    }
    world.fails(3, &["put", "data.kaml", "nowhere", "k", "v"]);
    world.fails(2, &["put", "data.kaml", "notes", "seventeen-bytes!!", "v"]);
    world.fails(2, &["put", "data.kaml", "notes", "", "v"]);
    world.fails(2, &["get", "data.kaml", "notes", "xyz", "--hex"]);
    world.fails(1, &["put", "data.kaml", "notes", "k", "--file", "absent"]);
    world.fails(1, &["import", "data.kaml", "absent", "-n", "notes"]);
    for usage in [&["create", "x.kaml"][..], &["create", "x.kaml", "--capacity", "12 parsecs"], &["frobnicate"], &[]] {
        assert_eq!(world.run(usage).status.code(), Some(2), "{usage:?}");
    }
    // Force is force.
    world.ok(&["create", "data.kaml", "--capacity", "64MiB", "--force"]);
    world.fails(3, &["list", "data.kaml", "notes"]);
}

/// Goal:   a mistyped command gets an error that names what is wrong, by the names that were given.
/// Method: each; exit codes and words.
#[test]
fn mistakes_are_named() {
    let world = World::new();
    world.ok(&["namespace", "create", "data.kaml", "past", "--versioned"]);
    world.ok(&["put", "data.kaml", "notes", "temperature", "-5"]);
    assert_eq!(world.ok(&["get", "data.kaml", "notes", "temperature"]), "-5");
    for arguments in
        [&["snapshot", "data.kaml", "notes"][..], &["get", "data.kaml", "notes", "temperature", "--back", "1"]]
    {
        assert!(world.fails(2, arguments).contains("namespace `notes` does not keep versions"), "{arguments:?}");
    }
    world.fails(3, &["undo", "data.kaml", "past", "absent"]);
    world.ok(&["put", "data.kaml", "past", "known", "once"]);
    world.ok(&["snapshot", "data.kaml", "past"]);
    let said = world.fails(3, &["get", "data.kaml", "past", "known", "--back", "4"]);
    assert!(said.contains("`known` did not exist 4 changes ago"), "{said}");
    let said = world.fails(3, &["get", "data.kaml", "past", "other", "--as-of", "1"]);
    assert!(said.contains("no key `other` in snapshot 1"), "{said}");
    assert_eq!(world.run(&["history", "data.kaml", "past", "known", "--limit", "0"]).status.code(), Some(2));
    world.ok(&["namespace", "create", "data.kaml", "disk", "--block", "4096", "--size", "1MiB"]);
    for arguments in [
        &["put", "data.kaml", "disk", "a", "b"][..],
        &["get", "data.kaml", "disk", "a"],
        &["delete", "data.kaml", "disk", "a"],
        &["list", "data.kaml", "disk"],
        &["export", "data.kaml", "nowhere", "-n", "disk"],
    ] {
        let said = world.fails(2, arguments);
        assert!(said.contains("namespace `disk` holds blocks"), "{arguments:?}: {said}");
    }
    let said = world.fails(2, &["namespace", "set", "data.kaml", "notes", "--merge-when-low"]);
    assert!(said.contains("namespace `notes` does not keep versions"), "{said}");
    world.ok(&["namespace", "create", "data.kaml", "ints", "--keys", "u64"]);
    assert!(world.fails(2, &["put", "data.kaml", "ints", "abcdefgh", "v"]).contains("no 64-bit integer"));
    assert_eq!(world.run(&["undo", "data.kaml", "past", "absent", "--count", "0"]).status.code(), Some(2));
    let said = world.fails(1, &["get", "data.kaml", "notes", "temperature", "--output", "nowhere/file"]);
    assert_eq!(said, "kaml: nowhere/file: No such file or directory (os error 2)\n");
    tree_of(&world.path("tree"));
    world.ok(&["import", "data.kaml", "tree/deep", "-n", "files"]);
    let said = world.fails(2, &["export", "data.kaml", "data.kaml", "-n", "files"]);
    assert!(said.contains("data.kaml: is no directory"), "{said}");
    assert_eq!(fs::read_dir(world.dir.path()).unwrap().count(), 2, "something was left behind");
}

/// Goal:   a second process is refused while a first has the device, and reports it.
/// Method: leave an import waiting on its standard input, then put.
#[test]
fn a_second_opener_is_refused() {
    let world = World::new();
    let mut first = world
        .command(&["import", "data.kaml", "-", "--namespace", "notes"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = first.stdin.take().unwrap();
    input.write_all(b"{\"key\":\"a\",\"value\":\"1\"}\n").unwrap();
    let second = (0..500).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let output = world.run(&["put", "data.kaml", "notes", "b", "2"]);
        (!output.status.success()).then_some(output)
    });
    let second = second.expect("the first never had the device");
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("in use"), "{second:?}");
    drop(input);
    assert!(first.wait().unwrap().success());
    assert_eq!(world.ok(&["get", "data.kaml", "notes", "a"]), "1");
}

/// Goal:   damage is found and named, never served, and everything else remains readable.
/// Method: store a recognisable value and others, flip a bit of every copy of it in the file, get it, get another, check.
#[test]
fn damage_is_named() {
    let world = World::new();
    let needle: Vec<u8> = (0..5000u32).map(|i| ((i * i) >> 3) as u8 ^ 0x5a).collect();
    assert!(world.pipe(&["put", "data.kaml", "notes", "victim", "-"], &needle).status.success());
    world.ok(&["put", "data.kaml", "notes", "other", "fine"]);
    let mut bytes = fs::read(world.path("data.kaml")).unwrap();
    let piece = &needle[2000..2064];
    let places: Vec<usize> = (0..bytes.len() - 64).filter(|at| &bytes[*at..at + 64] == piece).collect();
    assert!(!places.is_empty(), "the value is nowhere in the file");
    places.iter().for_each(|at| bytes[*at] ^= 1);
    fs::write(world.path("data.kaml"), &bytes).unwrap();

    assert!(world.fails(1, &["get", "data.kaml", "notes", "victim"]).contains("victim"));
    assert_eq!(world.ok(&["get", "data.kaml", "notes", "other"]), "fine");
    let check = world.run(&["check", "data.kaml", "--json"]);
    assert_eq!(check.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!(report["problems"].as_array().unwrap().len(), 1, "{report}");
    assert!(report["problems"][0].as_str().unwrap().contains("victim"), "{report}");
}

/// Goal:   what is whole of a damaged device is copied to a new one, and everything else is listed.
/// Method: the index snapshot of one namespace is damaged after a clean close; another namespace keeps versions, a third has
///         a damaged record. The namespace can be deleted then, and so it can if nothing is wrong with it.
#[test]
fn damaged_devices_are_salvaged() {
    let world = World::new();
    world.ok(&["namespace", "create", "data.kaml", "past", "--versioned", "--merge-when-low", "--keep-last", "3"]);
    (0..50).for_each(|i| drop(world.ok(&["put", "data.kaml", "notes", &format!("key{i}"), &format!("value {i}")])));
    world.ok(&["put", "data.kaml", "past", "hello", "world"]);
    world.ok(&["put", "data.kaml", "notes", "torn", &"tear here".repeat(20)]);
    let mut image = fs::read(world.path("data.kaml")).unwrap();
    // Older snapshots of the index are still in the file: all of them are damaged.
    for (text, behind) in [(&b"KIX1"[..], 20), (&b"tear here"[..], 0)] {
        let at: Vec<usize> = (0..image.len() - text.len()).filter(|at| image[*at..].starts_with(text)).collect();
        at.iter().for_each(|at| image[at + behind] ^= 1);
    }
    fs::write(world.path("data.kaml"), &image).unwrap();
    world.fails(1, &["get", "data.kaml", "notes", "key7"]);
    let output = world.run(&["salvage", "data.kaml", "--into", "new.kaml", "--json"]);
    assert_eq!(output.status.code(), Some(1), "something was damaged: {output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Once more: what exists is replaced only if that is requested, and is never the damaged device.
    world.fails(1, &["salvage", "data.kaml", "--into", "new.kaml"]);
    world.fails(2, &["salvage", "data.kaml", "--into", "./data.kaml", "--force"]);
    let again = world.run(&["salvage", "data.kaml", "--into", "new.kaml", "--force", "--json"]);
    assert_eq!(again.stdout, output.stdout);
    let notes = &report["namespaces"][0];
    assert_eq!((&notes["name"], &notes["rebuilt"]), (&Value::from("notes"), &Value::from(true)), "{report}");
    assert_eq!((&notes["records"], &notes["unreadable"]), (&Value::from(50), &Value::from(1)), "{report}");
    let missing = &report["missing"][0];
    assert_eq!((&missing["namespace"], &missing["key"]), (&Value::from("notes"), &Value::from("torn")), "{report}");
    assert_eq!(world.ok(&["get", "new.kaml", "notes", "key7"]), "value 7");
    assert_eq!(world.ok(&["get", "new.kaml", "past", "hello"]), "world");
    assert_eq!(world.json(&["namespace", "list", "new.kaml", "--json"])[1]["merge_when_low"], true);
    assert!(world.ok(&["check", "new.kaml"]).contains("0 problems"));
    assert!(fs::read(world.path("data.kaml")).unwrap() == image, "the damaged device is as it was");
    assert!(world.ok(&["salvage", "new.kaml"]).contains("| notes"));
    world.ok(&["namespace", "delete", "data.kaml", "notes"]);
    let gone = world.json(&["namespace", "delete", "new.kaml", "notes", "--damaged", "--json"]);
    assert_eq!(gone["name"], "notes");
    for device in ["data.kaml", "new.kaml"] {
        assert_eq!(world.ok(&["get", device, "past", "hello"]), "world");
        assert!(world.ok(&["check", device]).contains("0 problems"));
        world.fails(3, &["namespace", "delete", device, "notes", "--damaged"]);
    }
}

/// Goal:   a person who overwrites the beginning of a device learns what remains, and gets it back.
/// Method: a megabyte of zeroes over a device that was closed.
#[test]
fn overwritten_devices_are_salvaged() {
    let world = World::new();
    (0..50).for_each(|i| drop(world.ok(&["put", "data.kaml", "notes", &format!("key{i}"), &format!("value {i}")])));
    let file = fs::File::options().write(true).open(world.path("data.kaml")).unwrap();
    file.write_all_at(&[0; 1 << 20], 0).unwrap();
    let said = world.fails(1, &["get", "data.kaml", "notes", "key7"]);
    assert!(said.contains("the beginning is damaged") && said.contains("`kaml salvage`"), "{said}");
    let output = world.run(&["salvage", "data.kaml", "--into", "new.kaml"]);
    assert_eq!(output.status.code(), Some(1), "something was damaged: {output:?}");
    for i in 0..50 {
        assert_eq!(world.ok(&["get", "new.kaml", "notes", &format!("key{i}")]), format!("value {i}"));
    }
}

/// Goal:   a person who opens a truncated copy of a device learns how much is missing, and gets back what remains.
/// Method: a device without its last eighth, and with the first 2000 bytes; a new device that already exists costs no scan.
#[test]
fn devices_cut_short_are_salvaged() {
    let world = World::new();
    let lines: String = (0..50).map(|i| format!("{{\"key\":\"key{i}\",\"value\":\"value {i}\"}}\n")).collect();
    fs::write(world.path("lines"), lines).unwrap();
    world.ok(&["import", "data.kaml", "lines", "-n", "notes"]);
    let file = fs::File::options().write(true).open(world.path("data.kaml")).unwrap();
    file.set_len(file.metadata().unwrap().len() / 8 * 7).unwrap();
    let said = world.fails(1, &["get", "data.kaml", "notes", "key7"]);
    assert!(said.contains("cut short") && said.contains("`kaml salvage`"), "{said}");
    let output = world.run(&["salvage", "data.kaml", "--into", "new.kaml"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("cut short"), "{output:?}");
    for i in 0..50 {
        assert_eq!(world.ok(&["get", "new.kaml", "notes", &format!("key{i}")]), format!("value {i}"));
    }
    file.set_len(2000).unwrap();
    assert!(world.fails(1, &["salvage", "data.kaml", "--into", "new.kaml"]).contains("new.kaml: not empty"));
    assert!(world.fails(1, &["salvage", "data.kaml"]).contains("2000 bytes are left of 8192"));
}

/// Goal:   quickstart prints its story, loses nothing, and its JSON carries the figures.
/// Method: run it on a small tree, with and without `--json`, once keeping the device, which must then be whole.
#[test]
fn quickstart_loses_nothing() {
    let world = World::empty();
    for i in 0..60u32 {
        let path = world.path(&format!("tree/{}/{i}.txt", i % 7));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![i as u8; (i * i * 11) as usize]).unwrap();
    }
    fs::create_dir_all(world.path("tree/.git")).unwrap();
    fs::write(world.path("tree/.git/skipped"), "x").unwrap();
    // Small devices take values of less than 3 MiB.
    fs::write(world.path("tree/0/0.txt"), vec![7; 2 << 20]).unwrap();
    fs::write(world.path("tree/passed over"), vec![7; 3 << 20]).unwrap();
    let report = world.json(&["quickstart", "tree", "--json", "--keep", "kept.kaml"]);
    assert_eq!((&report["files"], &report["verified_files"]), (&60.into(), &60.into()), "{report}");
    assert_eq!((&report["killed_by_signal"], &report["files_passed_over"]), (&9.into(), &1.into()), "{report}");
    assert!(report["past_files"].as_u64().unwrap() >= 59, "{report}");
    assert_eq!(report["problems"], serde_json::json!([]));
    let planned = report["planned_overwrites"].as_u64().unwrap();
    let acknowledged = report["acknowledged_overwrites"].as_u64().unwrap();
    assert!(acknowledged >= planned.div_ceil(2) && report["new_files"].as_u64().unwrap() >= acknowledged, "{report}");
    let count = world.json(&["namespace", "list", "kept.kaml", "--json"])[0]["record_count"].clone();
    assert_eq!(count, 120, "contents and metadata of each");
    world.fails(1, &["quickstart", "tree", "--keep", "kept.kaml"]);

    let screen = world.ok(&["quickstart", "tree"]);
    for words in ["60 files", "SIGKILL", "recovered", "every byte", "rolled back", "Nothing acknowledged was lost"] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    assert!(!screen.contains('\x1b'), "colour without a terminal");
    assert_eq!(fs::read_dir(world.dir.path()).unwrap().count(), 2, "something was left behind");
}

/// Goal:   a device is served to hosts until the process is asked to end, which it does in order; what hosts stored exists.
/// Method: the host of `kaml-nvme` stores and writes while `serve` runs; SIGINT; names that are none are a matter of usage.
#[test]
fn a_device_is_served() {
    let world = World::new();
    world.ok(&["namespace", "create", "data.kaml", "disk", "--block", "512", "--size", "1MiB"]);
    let (mut serving, url) = world.serve();
    let (address, subsystem) = url.strip_prefix("nvme+tcp://").unwrap().split_once('/').unwrap();
    let host = kaml_nvme::host::Controller::connect(address, subsystem, &Default::default()).unwrap();
    let queue = &host.queues()[0];
    let key = kaml::Key::new(b"served").unwrap();
    kaml_nvme::host::KeyValue::new(queue, 1).store(&key, b"over the wire", 0).unwrap();
    kaml_nvme::host::Blocks::new(&host, queue, 2).unwrap().write(3, &[7; 512]).unwrap();
    drop(host);
    end(&mut serving);
    assert_eq!(world.ok(&["get", "data.kaml", "notes", "served"]), "over the wire");
    world.fails(2, &["serve", "data.kaml", "--subsystem", "no-name"]);
    assert!(world.fails(2, &["serve", "data.kaml", "--listen", "4420"]).contains("--listen 4420: "));
}

/// Goal:   what an operator should look at is reported on standard error, and only as much as was requested.
/// Method: a host that may not connect, with the level that is usual, and with none.
#[test]
fn refused_connections_are_told() {
    let world = World::new();
    for (level, lines) in [(&[][..], 1), (&["--log-level", "off"], 0)] {
        let arguments = [&["data.kaml", "--allow-host", "nqn.2026-11.example:friend"], level].concat();
        let log = world.path("log");
        let (mut serving, url) = world.serve_saying(&arguments, fs::File::create(&log).unwrap().into());
        let (address, subsystem) = url.strip_prefix("nvme+tcp://").unwrap().split_once('/').unwrap();
        let host = "nqn.2026-11.example:\x1b[31mstranger".to_owned();
        let options = kaml_nvme::host::HostOptions { host, ..Default::default() };
        assert!(kaml_nvme::host::Controller::connect(address, subsystem, &options).is_err());
        end(&mut serving);
        let said = fs::read_to_string(&log).unwrap();
        assert_eq!(said.lines().count(), lines, "{said}");
        let told =
            ["WARN kaml_nvme::target", "refused: it is not one of the hosts that may connect", ":\\u{1b}[31mstranger"];
        assert!(lines == 0 || told.iter().all(|part| said.contains(part)), "{said}");
    }
}

/// Goal:   a device in memory is served as one on a file is.
/// Method: a namespace made over the wire, a record; a file next to it, or neither, is a matter of usage.
#[test]
fn a_device_in_memory_is_served() {
    let world = World::new();
    let (mut serving, url) = world.serve_with(&["--in-memory", "256MiB"]);
    let url = url.as_str();
    world.ok(&["namespace", "create", url, "records"]);
    world.ok(&["put", url, "records", "hello", "world"]);
    assert_eq!(world.ok(&["get", url, "records", "hello"]), "world");
    end(&mut serving);
    for wrong in [&["serve"][..], &["serve", "data.kaml", "--in-memory", "256MiB"]] {
        assert_eq!(world.run(wrong).status.code(), Some(2), "{wrong:?}");
    }
    assert!(world.fails(2, &["serve", "--in-memory", "1"]).contains("too few"));
    assert!(world.fails(1, &["serve", "--in-memory", "900TiB"]).contains("free memory"));
}

/// Goal:   a record's past can be read, undone, rolled back, compared and merged from the command line.
/// Method: the life of two records; exit codes of what does not exist.
#[test]
fn versions() {
    let world = World::new();
    let past = |more: &[&str]| {
        let at = 1 + usize::from(more[0] == "namespace");
        let mut all = more.to_vec();
        all.splice(at..at, ["data.kaml", "past"]);
        all.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let ok = |more: &[&str]| world.ok(&past(more).iter().map(String::as_str).collect::<Vec<_>>());
    let fails = |code, more: &[&str]| world.fails(code, &past(more).iter().map(String::as_str).collect::<Vec<_>>());
    let made: Value =
        serde_json::from_str(&world.ok(&["namespace", "create", "data.kaml", "past", "--versioned", "--json"]))
            .unwrap();
    assert_eq!(made["versioned"], true);
    ok(&["put", "a", "one"]);
    assert!(ok(&["snapshot"]).contains("snapshot 1"));
    ok(&["put", "a", "two", "--if-present"]);
    ok(&["put", "b", "more", "--if-absent"]);
    fails(4, &["put", "b", "more", "--if-absent"]);
    assert_eq!(ok(&["get", "a", "--as-of", "1"]), "one");
    assert_eq!(ok(&["get", "a", "--back", "1"]), "one");
    assert_eq!(ok(&["diff", "1"]).lines().collect::<std::collections::BTreeSet<_>>(), ["+ b", "~ a"].into());
    let told: Value = serde_json::from_str(&ok(&["history", "a", "--json"])).unwrap();
    assert_eq!((told.as_array().map(Vec::len), &told[0]["user_version"]), (Some(2), &Value::from(2)));
    ok(&["undo", "a"]);
    assert_eq!(ok(&["get", "a"]), "one");
    ok(&["delete", "a", "--must-exist"]);
    fails(3, &["delete", "a", "--must-exist"]);
    assert!(ok(&["rollback", "1"]).contains("snapshot 2"));
    assert_eq!(ok(&["list"]), "a\n");
    let list: Value = serde_json::from_str(&ok(&["snapshot", "--list", "--json"])).unwrap();
    assert_eq!(list.as_array().map(Vec::len), Some(2));
    ok(&["snapshot", "--forget", "1"]);
    fails(3, &["get", "a", "--as-of", "1"]);
    fails(3, &["history", "never"]);
    assert!(ok(&["merge", "--dry-run", "--keep-last", "2"]).contains("would go"));
    assert!(ok(&["merge"]).contains("are gone"));
    assert_eq!(ok(&["get", "a"]), "one");
    let refused = world.fails(2, &["snapshot", "data.kaml", "notes"]);
    assert!(refused.contains("does not keep versions"), "{refused}");
    let paper = ["namespace", "create", "data.kaml", "paper", "--versioned"];
    let with = |more: &[&'static str]| [&paper, more].concat();
    for of_none in [["--rows", "0"], ["--segment", "0"]] {
        let output = world.run(&with(&of_none));
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(of_none[0]), "{output:?}");
    }
    let made = world.ok(&with(&["--rows", "2", "--json"]));
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!((&made["index"], &made["rows"]), (&Value::from("columns"), &Value::from(2)));
    ["one", "two"].iter().for_each(|value| drop(world.ok(&["put", "data.kaml", "paper", "a", value])));
    assert_eq!(world.ok(&["get", "data.kaml", "paper", "a", "--back", "1"]), "one");
    world.ok(&["check", "data.kaml"]);
}

/// Goal:   commands on records work on a device that is served as they do on a file.
/// Method: the life of records, a tree, JSON Lines and versions through an address; the exit codes; then the file itself.
#[test]
fn a_served_device_is_a_device() {
    let world = World::new();
    let (mut serving, url) = world.serve();
    let url = url.as_str();
    world.ok(&["put", url, "notes", "hello", "world"]);
    assert_eq!(world.ok(&["get", url, "notes", "hello"]), "world");
    world.fails(4, &["put", url, "notes", "hello", "x", "--if-absent"]);
    world.fails(3, &["get", url, "notes", "none"]);
    world.fails(3, &["get", url, "nowhere", "hello"]);
    world.fails(3, &["delete", url, "notes", "none", "--must-exist"]);
    world.fails(2, &["get", "nvme+tcp://127.0.0.1", "notes", "hello"]);
    let lines: String = (0..600).map(|n| format!("{{\"key_u64\":{n},\"value\":\"value {n}\"}}\n")).collect();
    let imported = world.pipe(&["import", url, "-", "--namespace", "lines"], lines.as_bytes());
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    assert_eq!(world.ok(&["list", url, "lines"]).lines().count(), 600);
    assert_eq!(world.ok(&["export", url, "-", "--namespace", "lines"]).lines().count(), 600);
    tree_of(&world.path("tree"));
    let imported = world.run(&["import", url, "tree", "--namespace", "files"]);
    if imported.status.success() {
        world.ok(&["export", url, "restored", "--namespace", "files"]);
        assert_eq!(picture(&world.path("restored")), picture(&world.path("tree")));
    } else {
        // Commands of NVMe do not carry long keys: refused, and nothing is left.
        assert!(String::from_utf8_lossy(&imported.stderr).contains("not available over NVMe"), "{imported:?}");
        world.fails(3, &["list", url, "files"]);
    }
    world.ok(&["namespace", "create", url, "past", "--versioned"]);
    world.ok(&["put", url, "past", "a", "one"]);
    assert!(world.ok(&["snapshot", url, "past"]).contains("snapshot 1"));
    world.ok(&["put", url, "past", "a", "two"]);
    assert_eq!(world.ok(&["get", url, "past", "a", "--as-of", "1"]), "one");
    assert_eq!(world.ok(&["diff", url, "past", "1"]), "~ a\n");
    assert_eq!(world.json(&["history", url, "past", "a", "--json"]).as_array().map(Vec::len), Some(2));
    world.fails(3, &["get", url, "past", "a", "--as-of", "7"]);
    world.fails(2, &["snapshot", url, "notes"]);
    let info = world.json(&["info", url, "--json"]);
    assert_eq!(
        (&info["namespaces"][0]["name"], info["stats"]["put_count"].as_u64() > Some(600)),
        (&"notes".into(), true)
    );
    assert!(world.ok(&["info", url]).contains("notes"));
    world.ok(&["namespace", "set", url, "notes", "--rename", "letters", "--logs", "0"]);
    world.ok(&["namespace", "set", url, "past", "--merge-when-low", "--keep-last", "2"]);
    world.fails(2, &["namespace", "set", url, "letters", "--never-merge"]);
    world.fails(3, &["namespace", "set", url, "notes", "--logs", "0"]);
    world.fails(1, &["namespace", "set", url, "letters", "--rename", "past"]);
    let list = world.json(&["namespace", "list", url, "--json"]);
    let letters = list.as_array().unwrap().iter().find(|info| info["name"] == "letters").unwrap();
    let past = list.as_array().unwrap().iter().find(|info| info["name"] == "past").unwrap();
    assert_eq!((&letters["logs"], &past["merge_when_low"]), (&serde_json::json!([0]), &Value::from(true)));
    assert_eq!(world.ok(&["get", url, "letters", "hello"]), "world");
    world.ok(&["namespace", "delete", url, "lines"]);
    end(&mut serving);
    assert_eq!(world.ok(&["get", "data.kaml", "past", "a", "--back", "1"]), "one");
    world.fails(3, &["list", "data.kaml", "lines"]);
    world.ok(&["check", "data.kaml"]);
}
