//! Records as lines of JSON: in and out, through files and streams, refused, interrupted.

mod world;

use kaml::store::Backing;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::process::Stdio;
use world::{World, end};

/// Goal:   JSON Lines survive a round trip, and a bad line is named, with what came before it stored.
/// Method: import, export, import into another namespace, compare as sets; then a bad third line.
#[test]
fn json_lines_survive() {
    let world = World::new();
    let lines = "{\"key\":\"a\",\"value\":\"1\"}\n\n{\"key_hex\":\"ff00\",\"value_base64\":\"/wA=\"}\n{\"key\":7,\"value\":\"x\"}\n";
    let output = world.pipe(&["import", "data.kaml", "-", "--namespace", "notes", "--json"], lines.as_bytes());
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap()["entries"], 3, "{output:?}");
    world.ok(&["export", "data.kaml", "notes.jsonl", "--namespace", "notes"]);
    world.ok(&["import", "data.kaml", "notes.jsonl", "--namespace", "others", "--batch", "2"]);
    let sorted = |namespace: &str| {
        let text = world.ok(&["export", "data.kaml", "-", "--namespace", namespace]);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted("notes"), sorted("others"));
    assert_eq!(sorted("notes").len(), 3);

    fs::write(world.path("bad.jsonl"), "{\"key\":\"p\",\"value\":\"1\"}\n{\"key\":\"q\",\"value\":\"2\"}\nrubbish\n")
        .unwrap();
    let complaint = world.fails(1, &["import", "data.kaml", "bad.jsonl", "-n", "bad", "--batch", "1"]);
    assert!(complaint.contains("bad.jsonl, line 3"), "{complaint}");
    assert_eq!(sorted("bad").len(), 2);
}

/// Goal:   many records of a few kilobytes go to small devices, too: imported in batches of any size, and salvaged.
/// Method: a device of 64 MiB, whose Puts are smaller than what would be collected for one; then a salvaged copy of it.
#[test]
fn batches_fit_small_devices() {
    let world = World::new();
    let line = |i: usize, bytes| format!("{{\"key\":\"k{i}\",\"value\":\"{}\"}}\n", "x".repeat(bytes));
    let large: String = (0..400).map(|i| line(i, if i % 2 == 0 { 16 << 10 } else { 0 })).collect();
    fs::write(world.path("large"), large).unwrap();
    fs::write(world.path("empty"), (0..30_000).map(|i| line(i, 0)).collect::<String>()).unwrap();
    world.ok(&["import", "data.kaml", "large", "--namespace", "notes"]);
    for lines in ["large", "empty"] {
        world.ok(&["import", "data.kaml", lines, "--namespace", lines, "--batch", "1000000"]);
    }
    let report = world.json(&["salvage", "data.kaml", "--into", "copy.kaml", "--json"]);
    assert_eq!(report["namespaces"][2]["records"], 30_000, "{report}");
    assert_eq!(world.ok(&["list", "copy.kaml", "large"]).lines().count(), 400);
}

/// Goal:   what cannot be imported leaves no namespace after; nothing leaves an empty one.
/// Method: a file that is no JSON Lines, a file of nothing.
#[test]
fn failed_imports_make_nothing() {
    let world = World::new();
    fs::write(world.path("table.csv"), "a,b\n1,2\n").unwrap();
    fs::write(world.path("empty"), "\n").unwrap();
    assert!(world.fails(1, &["import", "data.kaml", "table.csv", "-n", "csv"]).contains("table.csv, line 1"));
    world.ok(&["import", "data.kaml", "empty", "-n", "empty"]);
    let namespaces = world.json(&["namespace", "list", "data.kaml", "--json"]);
    let names: Vec<&str> = namespaces.as_array().unwrap().iter().map(|info| info["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["notes", "empty"]);
}

/// Goal:   `-` is a stream, whatever has that name.
/// Method: a directory of that name; a value to standard output; a tree, which no stream takes.
#[test]
fn dashes_are_streams() {
    let world = World::new();
    fs::create_dir(world.path("-")).unwrap();
    fs::write(world.path("-/file"), "text").unwrap();
    let piped = world.pipe(&["import", "data.kaml", "-", "-n", "notes"], b"{\"key\":\"k\",\"value\":\"v\"}\n");
    assert!(piped.status.success(), "{piped:?}");
    assert_eq!(world.ok(&["get", "data.kaml", "notes", "k", "--output", "-"]), "v");
    world.ok(&["import", "data.kaml", "./-", "-n", "tree"]);
    assert!(world.fails(2, &["export", "data.kaml", "-", "-n", "tree", "--format", "tree"]).contains("--format jsonl"));
    assert_eq!(world.ok(&["export", "data.kaml", "-", "-n", "tree"]).lines().count(), 2);
}

/// Goal:   what has no lines, as a disk's image, is refused and does not fill the memory first; lines of escapes are none of that.
/// Method: an endless file; the largest value, each byte of it written with six; one without an end.
#[test]
fn endless_lines_are_refused() {
    let world = World::new();
    let complaint = world.fails(1, &["import", "data.kaml", "/dev/zero", "-n", "notes"]);
    assert!(complaint.contains("/dev/zero, line 1: longer than"), "{complaint}");
    let bytes = world.json(&["info", "data.kaml", "--json"])["device"]["value_bytes_max"].as_u64().unwrap() as usize;
    let line = format!("{{\"key\":\"k\",\"value\":\"{}\"}}", "\\u0000".repeat(bytes));
    assert!(world.pipe(&["import", "data.kaml", "-", "-n", "notes"], line.as_bytes()).status.success());
    assert_eq!(world.run(&["get", "data.kaml", "notes", "k"]).stdout, vec![0; bytes]);
}

/// Goal:   standard output is that by its other names too: earlier contents of a file are kept, and only records are written to it.
/// Method: export and get to /dev/stdout, which is the end of a file that has something; with and without a report; a pipe.
#[test]
fn standard_output_has_other_names() {
    let world = World::new();
    world.ok(&["put", "data.kaml", "notes", "k", "v"]);
    let record = "{\"key\":\"k\",\"value\":\"v\"}\n";
    let export = ["export", "data.kaml", "/dev/stdout", "-n", "notes"];
    let get = ["get", "data.kaml", "notes", "k", "--output", "/proc/self/fd/1"];
    for (arguments, written) in [(&export[..], record), (&get, "v"), (&[&export[..], &["--json"]].concat(), record)] {
        fs::write(world.path("all"), "before\n").unwrap();
        let all = fs::File::options().append(true).open(world.path("all")).unwrap();
        let output = world.command(arguments).stdout(all).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        assert_eq!(fs::read_to_string(world.path("all")).unwrap(), format!("before\n{written}"), "{arguments:?}");
        assert_eq!(world.ok(arguments), written, "{arguments:?}");
        let report = serde_json::from_slice::<Value>(&output.stderr).ok();
        assert_eq!(report.map(|report| report["entries"].clone()), arguments.contains(&"--json").then(|| 1.into()));
    }
}

/// Goal:   a line that cannot be stored is named, whatever is wrong with it.
/// Method: a key that the namespace does not take, and a value that the device does not take, among good lines.
#[test]
fn lines_that_are_refused_are_named() {
    let world = World::new();
    world.ok(&["namespace", "create", "data.kaml", "ints", "--keys", "u64"]);
    fs::write(world.path("keys"), "{\"key_u64\":1,\"value\":\"\"}\n\n{\"key\":\"abc\",\"value\":\"\"}\n").unwrap();
    let complaint = world.fails(1, &["import", "data.kaml", "keys", "--namespace", "ints"]);
    assert!(complaint.contains("keys, line 3: key `abc`"), "{complaint}");
    let large = format!("{{\"key\":\"a\",\"value\":\"\"}}\n{{\"key\":\"b\",\"value\":\"{}\"}}\n", "x".repeat(2 << 20));
    fs::write(world.path("values"), large).unwrap();
    let complaint = world.fails(1, &["import", "data.kaml", "values", "--namespace", "notes"]);
    assert!(complaint.contains("values, line 2: a value of 2097152 bytes"), "{complaint}");
}

/// Goal:   a reader that closes the pipe causes no panic.
/// Method: list many keys into a pipe that is closed at once.
#[test]
fn a_closed_pipe_is_quiet() {
    let world = World::new();
    let lines: String = (0..20_000).map(|i| format!("{{\"key\":\"{i}\",\"value\":\"x\"}}\n")).collect();
    assert!(world.pipe(&["import", "data.kaml", "-", "-n", "notes"], lines.as_bytes()).status.success());
    let mut child =
        world.command(&["list", "data.kaml", "notes"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    assert_eq!(output.status.code(), Some(0));
}

/// Goal:   Ctrl-C ends an import with 130 after a whole batch, and what it stored exists.
/// Method: keep an import busy with an endless input, interrupt it, count the records.
#[test]
fn an_interrupted_import_is_whole() {
    let world = World::new();
    let mut child = world
        .command(&["import", "data.kaml", "-", "-n", "notes", "--batch", "10"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let feeder = std::thread::spawn(move || {
        (0..).find(|i| writeln!(input, "{{\"key\":\"{}\",\"value\":\"{i}\"}}", i % 5000).is_err());
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let records = world.json(&["namespace", "list", "data.kaml", "--json"])[0]["record_count"].as_u64().unwrap();
    assert!(records > 0 && records.is_multiple_of(10), "{records}");
}

/// Goal:   Ctrl-C at once ends an import that waits for input and an export that waits for a reader.
/// Method: a pipe with half a batch in it, a named pipe that nobody opens; a full pipe; the device closed in order by the imports.
#[test]
fn what_waits_for_ever_can_be_interrupted() {
    let world = World::new();
    let line = |i: usize| format!("{{\"key\":\"{i}\",\"value\":\"{}\"}}\n", "x".repeat(1000));
    let lines: String = (0..300).map(line).collect();
    assert!(world.pipe(&["import", "data.kaml", "-", "-n", "notes"], lines.as_bytes()).status.success());
    rustix::fs::mkfifoat(rustix::fs::CWD, world.path("fifo"), rustix::fs::Mode::RWXU).unwrap();
    let interrupted = |arguments: &[&str]| {
        let mut command = world.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        write!(input, "{}{}", line(1000), line(1001)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
        let begin = std::time::Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(begin.elapsed().as_secs() < 20, "{arguments:?}: does not end");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(interrupted(&["import", "data.kaml", "-", "-n", "notes"]), "kaml: interrupted: 0 records are stored\n");
    assert!(interrupted(&["import", "data.kaml", "-", "-n", "notes", "--batch", "1"]).contains("2 records"));
    assert!(interrupted(&["import", "data.kaml", "fifo", "-n", "notes"]).contains("0 records"));
    assert_eq!(interrupted(&["export", "data.kaml", "-", "-n", "notes"]), "kaml: interrupted\n");
    assert_eq!(interrupted(&["export", "data.kaml", "fifo", "-n", "notes"]), "kaml: interrupted\n");
    assert_eq!(world.ok(&["list", "data.kaml", "notes"]).lines().count(), 302);
}

/// Goal:   an export of a device that is served shows one moment while others delete records of it.
/// Method: it is held up by a pipe that nobody empties until all records are deleted; all of them are exported.
#[test]
fn exports_of_served_devices_show_one_moment() {
    let world = World::new();
    let value = "v".repeat(1000);
    let lines: String = (0..2000).map(|key| format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}\n")).collect();
    assert!(world.pipe(&["import", "data.kaml", "-", "--namespace", "notes"], lines.as_bytes()).status.success());
    let (mut serving, url) = world.serve();
    let mut export = world.command(&["export", &url, "-", "--namespace", "notes"]);
    let mut export = export.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = export.stdout.take().unwrap();
    let mut first = [0];
    stdout.read_exact(&mut first).unwrap();
    let device = kaml_nvme::host::RemoteDevice::open(&url.parse().unwrap(), &Default::default()).unwrap();
    let keys = (0..2000).map(|key: u32| kaml::Key::new(key.to_string().as_bytes()).unwrap());
    let mut all = kaml::Batch::new();
    for key in keys {
        all.delete(1, key);
    }
    Backing::write(&device, &all).unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert!(export.wait().unwrap().success());
    let text = char::from(first[0]).to_string() + &rest;
    let count = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["value"] == value)
        .count();
    assert_eq!((count, text.lines().count()), (2000, 2000));
    end(&mut serving);
}

/// Goal:   what cannot be written is a failure, whatever command writes it; a message is one line, whatever names are in it.
/// Method: each kind of output to a full device, help and version included; names and keys with line breaks and escape sequences.
#[test]
fn full_outputs_and_odd_names() {
    let world = World::new();
    world.ok(&["put", "data.kaml", "notes", "k", "v"]);
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["get", "--help"],
        &["get", "data.kaml", "notes", "k"],
        &["get", "data.kaml", "notes", "k", "--json"],
        &["list", "data.kaml", "notes"],
        &["info", "data.kaml"],
        &["check", "data.kaml", "--json"],
        &["namespace", "list", "data.kaml"],
        &["export", "data.kaml", "-", "-n", "notes"],
    ] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output =
            world.command(arguments).stdin(Stdio::null()).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("standard output: No space left on device"), "{arguments:?}: {said}");
    }
    world.fails(3, &["get", "data.kaml", "notes", "two\nlines"]);
    world.fails(3, &["get", "data.kaml", "two\nlines", "k"]);
    let said = world.fails(1, &["import", "data.kaml", "no\x1b[2J\nfile", "-n", "notes"]);
    assert!(said.contains("no\\u{1b}[2J\\nfile"), "{said}");
}
