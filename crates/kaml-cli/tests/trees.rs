//! Trees of files, whole and with more in them than files: what is left out, what stands in the way, what is interrupted.

mod world;

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use world::{World, picture, tree_of};

/// Runs the program so that permissions hold for it, as for anybody but root.
fn as_anybody(world: &World, arguments: &[&str]) -> Output {
    spawn_as_anybody(world, arguments).wait_with_output().unwrap()
}

fn spawn_as_anybody(world: &World, arguments: &[&str]) -> Child {
    let mut command = world.command(arguments);
    if rustix::process::geteuid().is_root() {
        command = Command::new("setpriv");
        command.args(["--bounding-set", "-dac_override,-dac_read_search", env!("CARGO_BIN_EXE_kaml")]).args(arguments);
        command.current_dir(world.dir.path());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("`setpriv` of util-linux, if root runs this")
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Goal:   a tree that holds the device is imported without it, whatever its name there; what has no contents is left out too;
///         both are said.
/// Method: the device in the tree, a hard link to it, a socket, a pipe; then the tree again through a device elsewhere.
#[test]
fn the_device_is_left_out() {
    let world = World::new();
    fs::create_dir(world.path("sub")).unwrap();
    fs::write(world.path("sub/file"), "text").unwrap();
    fs::hard_link(world.path("data.kaml"), world.path("sub/hard")).unwrap();
    symlink("data.kaml", world.path("link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(world.path("sub/socket")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, world.path("sub/pipe"), rustix::fs::Mode::RWXU).unwrap();
    let output = world.run(&["import", "data.kaml", ".", "-n", "files", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    for (path, is) in [
        ("./data.kaml", "the device itself"),
        ("./sub/hard", "the device itself"),
        ("./sub/socket", "a socket"),
        ("./sub/pipe", "a pipe"),
    ] {
        assert!(said.contains(&format!("kaml: {path} is left out: it is {is}\n")), "{said}");
    }
    assert_eq!(said.lines().count(), 4, "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["entries"], report["left_out"].as_array().unwrap().len()), (&3.into(), 4), "{report}");
    world.ok(&["export", "data.kaml", "copy", "-n", "files"]);
    assert!(world.path("copy/sub/file").exists() && world.path("copy/link").is_symlink());
    assert!(!world.path("copy/data.kaml").exists());
}

/// Goal:   an export never puts anything in the place of the device that it reads.
/// Method: import a tree with a file and a link of the device's names through another device; export it over the device.
#[test]
fn an_export_spares_its_device() {
    let world = World::new();
    fs::create_dir(world.path("tree")).unwrap();
    fs::write(world.path("tree/data.kaml"), "no device").unwrap();
    world.ok(&["import", "data.kaml", "tree", "-n", "files"]);
    for link in [false, true] {
        if link {
            fs::remove_file(world.path("tree/data.kaml")).unwrap();
            symlink("elsewhere", world.path("tree/data.kaml")).unwrap();
            world.ok(&["import", "data.kaml", "tree", "-n", "files"]);
        }
        let said = world.fails(2, &["export", "data.kaml", ".", "-n", "files"]);
        assert!(said.contains("./data.kaml: is the device itself"), "{said}");
    }
    world.ok(&["check", "data.kaml"]);
}

/// Goal:   a tree with directories that nobody may write to is restored, and restored again over itself, by anybody; what no
///         record speaks of keeps its mode.
/// Method: modes from none to all, deep ones in closed ones; export twice, with a change between; a directory that is opened
///         and has no record; as root without the right to pass over permissions.
#[test]
fn closed_directories_are_restored() {
    let world = World::new();
    let source = world.path("tree");
    tree_of(&source);
    fs::create_dir_all(source.join("a/b/c")).unwrap();
    for name in ["a/1", "a/b/2", "a/b/c/3"] {
        fs::write(source.join(name), name).unwrap();
    }
    world.ok(&["create", "large.kaml", "--capacity", "256MiB"]);
    for (name, mode) in [("a/b/c", 0o555), ("a/b", 0o500), ("a", 0o555), ("deep/er", 0o555)] {
        set_mode(&source.join(name), mode);
    }
    world.ok(&["import", "large.kaml", "tree", "-n", "t"]);
    let export = ["export", "large.kaml", "copy", "-n", "t"];
    for _ in 0..2 {
        let output = as_anybody(&world, &export);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(picture(&source), picture(&world.path("copy")));
        let [a, b] = ["copy/a", "copy/a/b"].map(|name| world.path(name));
        [&a, &b].iter().for_each(|path| set_mode(path, 0o700));
        fs::write(world.path("copy/a/b/2"), "changed").unwrap();
        [&b, &a].iter().for_each(|path| set_mode(path, 0o000));
    }
    // Something is in the way: what was opened is as it was.
    let over = world.path("over");
    fs::create_dir_all(over.join("a/b/2/in the way")).unwrap();
    [over.join("a/b"), over.join("a")].iter().for_each(|path| set_mode(path, 0o511));
    let output = as_anybody(&world, &["export", "large.kaml", "over", "-n", "t"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for name in ["a", "a/b"] {
        assert_eq!(fs::metadata(over.join(name)).unwrap().permissions().mode() & 0o777, 0o511, "{name}");
    }
    for name in ["copy/a", "copy/a/b", "copy/a/b/c", "tree/a", "tree/a/b", "tree/a/b/c"] {
        set_mode(&world.path(name), 0o700); // so that anybody can clean up
    }
}

/// Goal:   links that stand in the target are not followed out of it, and are named.
/// Method: links where the tree has a directory, a file, a link; what they lead to is as it was.
#[test]
fn links_in_the_target_are_not_followed() {
    let world = World::new();
    fs::create_dir_all(world.path("tree/dir")).unwrap();
    fs::write(world.path("tree/dir/file"), "from the tree").unwrap();
    fs::write(world.path("tree/file"), "from the tree").unwrap();
    symlink("file", world.path("tree/link")).unwrap();
    world.ok(&["import", "data.kaml", "tree", "-n", "t"]);
    fs::create_dir_all(world.path("out")).unwrap();
    fs::write(world.path("out/file"), "precious").unwrap();
    fs::create_dir_all(world.path("copy")).unwrap();
    for name in ["copy/file", "copy/link"] {
        symlink("../out/file", world.path(name)).unwrap();
    }
    world.ok(&["export", "data.kaml", "copy", "-n", "t"]);
    assert_eq!(picture(&world.path("tree")), picture(&world.path("copy")));
    fs::remove_dir_all(world.path("copy/dir")).unwrap();
    symlink("../out", world.path("copy/dir")).unwrap();
    let said = world.fails(1, &["export", "data.kaml", "copy", "-n", "t"]);
    assert!(said.contains("copy/dir: is a symbolic link, and is not followed"), "{said}");
    assert_eq!(fs::read(world.path("out/file")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(world.path("out")).unwrap().count(), 1);
}

/// Goal:   an export that is killed, or interrupted, leaves no half file under a name that was asked for.
/// Method: kill the export of large files again and again, at a later moment each time; what stands is whole. Then JSON Lines.
#[test]
fn killed_exports_leave_no_half_files() {
    let world = World::empty();
    world.ok(&["create", "data.kaml", "--capacity", "512MiB"]);
    fs::create_dir(world.path("tree")).unwrap();
    const BYTES: usize = 12 << 20;
    for i in 0..8u8 {
        fs::write(world.path(&format!("tree/{i}")), vec![i; BYTES]).unwrap();
    }
    world.ok(&["import", "data.kaml", "tree", "-n", "t"]);
    for (round, signal) in (1..12).zip([Signal::KILL, Signal::INT].into_iter().cycle()) {
        let target = format!("copy{round}");
        let mut command = world.command(&["export", "data.kaml", &target, "-n", "t"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(10 * round));
        let _ = kill_process(Pid::from_child(&child), signal);
        child.wait().unwrap();
        for entry in fs::read_dir(world.path(&target)).into_iter().flatten() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let is_whole = entry.metadata().unwrap().len() == BYTES as u64;
            assert!(is_whole || (name.starts_with(".kaml-export-") && signal == Signal::KILL), "{name}");
        }
        fs::remove_dir_all(world.path(&target)).unwrap_or_default();
    }
    // A value that is not there any more: the file that stands is as it was.
    fs::write(world.path("t.jsonl"), "old").unwrap();
    let mut child = world.command(&["export", "data.kaml", "t.jsonl", "-n", "t", "--format", "jsonl"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    child.kill().unwrap();
    if child.wait().unwrap().success() {
        return; // it was quicker
    }
    assert_eq!(fs::read(world.path("t.jsonl")).unwrap(), b"old");
}

/// Goal:   trees and records are not mixed, by whichever name.
/// Method: a tree into a namespace of records, of integers, of blocks; under the name of a tree's metadata; a tree again.
#[test]
fn trees_mix_with_nothing() {
    let world = World::new();
    fs::create_dir(world.path("tree")).unwrap();
    fs::write(world.path("tree/file"), "text").unwrap();
    world.ok(&["put", "data.kaml", "notes", "k", "v"]);
    world.ok(&["namespace", "create", "data.kaml", "ints", "--keys", "u64"]);
    world.ok(&["namespace", "create", "data.kaml", "disk", "--block", "4096", "--size", "1MiB"]);
    let import = |name| ["import", "data.kaml", "tree", "-n", name];
    for (name, why) in [("notes", "no tree"), ("ints", "keys that are integers"), ("disk", "takes blocks")] {
        assert!(world.fails(2, &import(name)).contains(why), "{name}");
    }
    world.ok(&import("t.meta"));
    assert!(world.fails(2, &import("t")).contains("`t.meta` holds records"));
    world.ok(&import("t.meta"));
    let namespaces = world.json(&["namespace", "list", "data.kaml", "--json"]);
    assert_eq!(namespaces.as_array().unwrap().len(), 5, "{namespaces}");
}

/// Goal:   records that were put beside a tree are not left out of its export unsaid; of a tree alone nothing is said.
/// Method: a tree with large and small files, a link, empty ones, a file that became a directory; then a record in its namespace.
#[test]
fn records_beside_a_tree_are_told() {
    let world = World::empty();
    world.ok(&["create", "data.kaml", "--capacity", "256MiB"]);
    tree_of(&world.path("tree"));
    world.ok(&["import", "data.kaml", "tree", "-n", "t"]);
    fs::remove_dir_all(world.path("tree/deep")).unwrap();
    fs::write(world.path("tree/deep"), "now a file").unwrap();
    world.ok(&["import", "data.kaml", "tree", "-n", "t"]);
    let export = ["export", "data.kaml", "copy", "-n", "t", "--json"];
    let output = world.run(&export);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    world.ok(&["put", "data.kaml", "t", "hello", "world"]);
    let output = world.run(&export);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.ends_with("left out; --format jsonl writes all records: 1\n"), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["left_out_records"], 1, "{report}");
}

/// Goal:   a file that may be written only where it stands is, and durable like any other; that it is half written is said.
/// Method: export over one in a directory in which nothing may be made, as anybody; then interrupted once it has begun.
#[test]
fn files_in_closed_directories_are_written_in_place() {
    let world = World::empty();
    world.ok(&["create", "data.kaml", "--capacity", "512MiB"]);
    fs::create_dir(world.path("tree")).unwrap();
    (0..8u8).for_each(|i| fs::write(world.path(&format!("tree/{i}")), vec![i | 0x80; 12 << 20]).unwrap());
    world.ok(&["import", "data.kaml", "tree", "-n", "t"]);
    let (dir, file) = (world.path("closed"), world.path("closed/t.jsonl"));
    fs::create_dir(&dir).unwrap();
    fs::write(&file, "old").unwrap();
    set_mode(&dir, 0o555);
    let export = ["export", "data.kaml", "closed/t.jsonl", "-n", "t", "--format", "jsonl"];
    let mut child = spawn_as_anybody(&world, &export);
    while fs::read(&file).unwrap() == b"old" && child.try_wait().unwrap().is_none() {}
    let _ = kill_process(Pid::from_child(&child), Signal::INT);
    let output = child.wait_with_output().unwrap();
    if !output.status.success() {
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*said), (Some(130), "kaml: interrupted: closed/t.jsonl is half written\n"));
    }
    let output = as_anybody(&world, &export);
    assert!(output.status.success(), "{output:?}");
    let lines = fs::read(&file).unwrap().iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(lines, world.ok(&["list", "data.kaml", "t"]).lines().count());
    set_mode(&dir, 0o755); // so that anybody can clean up
}

/// Goal:   a tree that cannot be imported leaves no namespace behind, and what was stored of one or of lines is told.
/// Method: a directory that does not let anybody in; a file that does not let itself be read; a bad line behind good ones.
#[test]
fn failed_imports_tell_what_is_stored() {
    let world = World::new();
    fs::create_dir_all(world.path("tree/closed")).unwrap();
    set_mode(&world.path("tree/closed"), 0o000);
    let said = |arguments: &[&str]| {
        let output = as_anybody(&world, arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let import = ["import", "data.kaml", "tree", "-n", "t"];
    assert!(said(&import).ends_with("; 0 entries are stored\n"));
    assert_eq!(world.json(&["namespace", "list", "data.kaml", "--json"]).as_array().unwrap().len(), 1);
    set_mode(&world.path("tree/closed"), 0o755);
    let long = "t".repeat(251); // with `.meta` more than a name may have
    assert!(world.fails(2, &["import", "data.kaml", "tree", "-n", &long]).contains("name"));
    assert_eq!(world.json(&["namespace", "list", "data.kaml", "--json"]).as_array().unwrap().len(), 1);
    fs::write(world.path("tree/file"), "text").unwrap();
    set_mode(&world.path("tree/file"), 0o000);
    let complaint = said(&import);
    assert!(complaint.contains("tree/file: ") && complaint.contains(" entries are stored"), "{complaint}");
    let lines: String = (0..5).map(|i| format!("{{\"key\":\"{i}\",\"value\":\"\"}}\n")).collect();
    fs::write(world.path("lines"), lines + "rubbish\n").unwrap();
    let complaint = said(&["import", "data.kaml", "lines", "-n", "notes", "--batch", "2"]);
    assert!(complaint.ends_with("lines, line 6: not a JSON object; 4 records are stored\n"), "{complaint}");
    assert_eq!(world.ok(&["list", "data.kaml", "notes"]).lines().count(), 4);
}

/// Goal:   a tree in which a directory has become a file, or a link, since it was imported is as it is now.
/// Method: import, change, import again, export.
#[test]
fn directories_become_files() {
    let world = World::new();
    for name in ["tree/a/deep", "tree/b", "tree/c"] {
        fs::create_dir_all(world.path(name)).unwrap();
        fs::write(world.path(name).join("file"), name).unwrap();
    }
    world.ok(&["import", "data.kaml", "tree", "--namespace", "t"]);
    for name in ["tree/a", "tree/b"] {
        fs::remove_dir_all(world.path(name)).unwrap();
    }
    fs::write(world.path("tree/a"), "now a file").unwrap();
    symlink("c", world.path("tree/b")).unwrap();
    world.ok(&["import", "data.kaml", "tree", "--namespace", "t"]);
    world.ok(&["export", "data.kaml", "restored", "--namespace", "t"]);
    assert_eq!(picture(&world.path("tree")), picture(&world.path("restored")));
}

/// Goal:   a tree that is imported and exported is the same tree: contents, modes, times, links, empty directories;
///         files larger than one Put takes included. Importing again replaces.
/// Method: import, export, compare; change a large and a small file, import again, export elsewhere, compare.
#[test]
fn trees_survive() {
    let world = World::empty();
    world.ok(&["create", "data.kaml", "--capacity", "256MiB"]);
    let source = world.path("source");
    tree_of(&source);
    let report = world.json(&["import", "data.kaml", "source", "--namespace", "files", "--json"]);
    assert_eq!(report["entries"], 8);
    world.ok(&["export", "data.kaml", "copy", "--namespace", "files"]);
    assert_eq!(picture(&source), picture(&world.path("copy")));

    fs::write(source.join("large.bin"), vec![3; 5_000_000]).unwrap();
    fs::write(source.join("deep/er/b.bin"), "small now").unwrap();
    world.ok(&["import", "data.kaml", "source", "-n", "files"]);
    world.ok(&["export", "data.kaml", "again", "-n", "files"]);
    assert_eq!(picture(&source), picture(&world.path("again")));
    // The parts of the old large file are gone: those of the new one, and one record for each other file and link.
    let info = world.json(&["info", "data.kaml", "--json"]);
    let parts = 5_000_000u64.div_ceil(info["device"]["value_bytes_max"].as_u64().unwrap().min(4 << 20));
    let contents = info["namespaces"].as_array().unwrap().iter().find(|space| space["name"] == "files").unwrap();
    assert_eq!(contents["record_count"], parts + 4, "{info}");
    world.ok(&["check", "data.kaml"]);
}

/// Goal:   a file is overwritten only with what was asked for, and the device never; what cannot be written is named.
/// Method: export a namespace that is not there, and one of blocks, over a file; export and get over the device; a full target.
#[test]
fn exports_spare_files() {
    let world = World::new();
    world.ok(&["put", "data.kaml", "notes", "k", "v"]);
    world.ok(&["namespace", "create", "data.kaml", "disk", "--block", "4096", "--size", "1MiB"]);
    fs::write(world.path("old"), "precious").unwrap();
    world.fails(3, &["export", "data.kaml", "old", "--namespace", "missing"]);
    world.fails(2, &["export", "data.kaml", "old", "--namespace", "disk"]);
    assert_eq!(fs::read(world.path("old")).unwrap(), b"precious");
    symlink("data.kaml", world.path("link")).unwrap();
    for target in ["data.kaml", "link"] {
        let complaint = world.fails(2, &["export", "data.kaml", target, "--namespace", "notes"]);
        assert!(complaint.contains("is the device itself"), "{complaint}");
        world.fails(2, &["get", "data.kaml", "notes", "k", "--output", target]);
    }
    let complaint = world.fails(1, &["export", "data.kaml", "/dev/full", "--namespace", "notes"]);
    assert!(complaint.starts_with("kaml: /dev/full: "), "{complaint}");
    assert_eq!(world.ok(&["get", "data.kaml", "notes", "k"]), "v");
}
