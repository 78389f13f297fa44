//! What an import and an export of a tree keep, and what they leave when they fail or are killed.

mod world;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use world::World;

/// A user and a group that no file of root's belongs to.
const NOBODY: u32 = 65534;

/// Runs the program as that user, in that group alone.
fn as_nobody(world: &World, arguments: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_kaml")]).args(arguments);
    command.current_dir(world.dir.path()).stdin(Stdio::null()).output().expect("`setpriv` of util-linux")
}

fn mode(path: &Path) -> (u32, u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn import(tree: &str) -> [&str; 5] {
    ["import", "data.kaml", tree, "-n", "t"]
}

/// Records in a namespace.
fn records(world: &World, name: &str) -> u64 {
    let info = world.json(&["namespace", "list", "data.kaml", "--json"]);
    let found = info.as_array().unwrap().iter().find(|space| space["name"] == name).unwrap();
    found["record_count"].as_u64().unwrap()
}

/// Goal:   an export never gives set-ID bits to somebody else's file: root releases it to its owner, others leave the bits out,
///         and so does root when it is asked to keep no owner, or the record names none.
/// Method: set-ID files and directories of root and of nobody; export as root, with `--no-owner`, and as nobody; then with
///         records as older builds wrote them.
#[test]
fn set_id_bits_stay_with_their_owner() {
    if !geteuid().is_root() {
        return; // who is not root has no files of others
    }
    let world = World::new();
    let tree = world.path("tree");
    fs::create_dir_all(tree.join("dir")).unwrap();
    fs::create_dir(tree.join("plain")).unwrap();
    for (name, owner, mode) in [
        ("mine", NOBODY, 0o6755),
        ("roots", 0, 0o4755),
        ("group", NOBODY, 0o2711),
        ("dir", NOBODY, 0o2775),
        ("plain", NOBODY, 0o1750),
    ] {
        if !tree.join(name).is_dir() {
            fs::write(tree.join(name), name).unwrap();
        }
        chown(tree.join(name), Some(owner), Some(owner)).unwrap();
        set_mode(&tree.join(name), mode);
    }
    symlink("mine", tree.join("link")).unwrap();
    lchown(tree.join("link"), Some(NOBODY), Some(NOBODY)).unwrap();
    world.ok(&import("tree"));
    let names = ["mine", "roots", "group", "dir", "plain", "link"];
    let modes = |root: &str| names.map(|name| mode(&world.path(root).join(name)));

    world.ok(&["export", "data.kaml", "root", "-n", "t"]);
    assert_eq!(modes("root"), modes("tree"));
    let expected = |owner: u32| [0o755, 0o755, 0o711, 0o775, 0o1750, 0o777].map(|mode| (owner, owner, mode));

    let output = world.run(&["export", "data.kaml", "none", "-n", "t", "--no-owner", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let mut without = expected(0);
    without[1].2 = 0o4755; // root's own
    assert_eq!(modes("none"), without);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["set_id_dropped"], 3, "{report}");

    set_mode(world.dir.path(), 0o777);
    set_mode(&world.path("data.kaml"), 0o666);
    let output = as_nobody(&world, &["export", "data.kaml", "nobody", "-n", "t"]);
    assert!(output.status.success(), "{output:?}");
    let mut nobodys = expected(NOBODY);
    (nobodys[0].2, nobodys[2].2, nobodys[3].2) = (0o6755, 0o2711, 0o2775);
    assert_eq!(modes("nobody"), nobodys);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("1 paths that had one have no set-user-ID or set-group-ID bit"), "{said}");

    // As a program may have stored them: without an owner.
    for key in world.ok(&["list", "data.kaml", "t", "--hex"]).lines().filter(|key| key.ends_with("00")) {
        let record = world.ok(&["get", "data.kaml", "t", key, "--hex"]);
        let mut record: Value = serde_json::from_str(&record).unwrap();
        record.as_object_mut().unwrap().remove("owner").unwrap();
        world.ok(&["put", "data.kaml", "t", key, "--hex", &record.to_string()]);
    }
    world.ok(&["export", "data.kaml", "old", "-n", "t"]);
    assert_eq!(modes("old"), expected(0));
}

/// Goal:   whatever moment an import is killed or interrupted at, each file is whole, old or new, and the next import leaves no piece without a file.
/// Method: kill imports of two large files, which change each time, at later and later moments; read the files; import another directory,
///         which removes what is left, or the same one; count records.
#[test]
fn killed_imports_leave_nothing_for_good() {
    let world = World::empty();
    world.ok(&["create", "data.kaml", "--capacity", "512MiB", "--durability", "process"]);
    fs::create_dir(world.path("tree")).unwrap();
    fs::create_dir(world.path("nothing")).unwrap();
    let files = [("a", 30 << 20), ("b", 17 << 20), ("small", 1)];
    let write = |round: u8| {
        files.iter().for_each(|(name, bytes)| fs::write(world.path("tree").join(name), vec![round; *bytes]).unwrap());
    };
    write(0);
    world.ok(&import("tree"));
    let of_files = records(&world, "t");
    let (mut unfinished, mut handled) = (0, 0);
    for (round, signal) in (1..18).zip([Signal::KILL, Signal::INT, Signal::KILL].into_iter().cycle()) {
        write(round);
        let mut child = world.command(&import("tree")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(15 + 6 * u64::from(round)));
        let _ = kill_process(Pid::from_child(&child), signal);
        let ended = child.wait().unwrap();
        // On a busy machine the signal can come before the program has done anything, its handler included.
        let is_early = ended.signal() == Some(Signal::INT.as_raw());
        assert!(signal == Signal::KILL || is_early || matches!(ended.code(), Some(0 | 130)), "{ended}");
        handled += u64::from(signal == Signal::INT && !is_early);
        for (name, bytes) in files {
            let found = world.run(&["cat", "data.kaml", "t", name]).stdout;
            assert!(found.len() == bytes && found.iter().all(|byte| *byte == found[0]), "round {round}: {name}");
        }
        match records(&world, "t") > of_files {
            true if signal == Signal::INT => panic!("round {round}: an interrupted import leaves pieces"),
            is_more => unfinished += u64::from(is_more),
        }
        world.ok(&import(if round % 2 == 0 { "nothing" } else { "tree" }));
        assert_eq!(records(&world, "t"), of_files, "round {round}");
    }
    assert!(unfinished > 0, "none was killed while it stored pieces");
    assert!(handled > 0, "no import handled a signal");
    world.ok(&["check", "data.kaml"]);
}

/// Goal:   what cannot be read does not keep the others from being stored; each is named, and the exit code is 1.
/// Method: a file and two directories that nobody may read, one of which can be listed; a name with a line break; as anybody.
#[test]
fn unreadable_files_do_not_end_an_import() {
    let world = World::new();
    for name in ["tree/closed", "tree/listed", "tree/z"] {
        fs::create_dir_all(world.path(name)).unwrap();
        fs::write(world.path(name).join("file"), name).unwrap();
    }
    fs::write(world.path("tree/two\nlines"), "x").unwrap();
    fs::write(world.path("tree/good"), "x").unwrap();
    let closed = [("tree/two\nlines", 0o000), ("tree/closed", 0o000), ("tree/listed", 0o444)];
    closed.iter().for_each(|(name, mode)| set_mode(&world.path(name), *mode));
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-dac_override,-dac_read_search", env!("CARGO_BIN_EXE_kaml")]);
    if !geteuid().is_root() {
        command = Command::new(env!("CARGO_BIN_EXE_kaml"));
    }
    command.args(import("tree")).arg("--json").current_dir(world.dir.path()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let lines: Vec<_> = said.lines().collect();
    let denied = "Permission denied (os error 13)";
    let named = ["tree/closed", "tree/listed/file", "tree/two\\nlines"].map(|path| format!("kaml: {path}: {denied}"));
    assert_eq!(lines[..3], named, "{said}");
    assert_eq!(lines[3..], ["kaml: tree: 3 paths are not stored; the others are"], "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["entries"], report["failed"].as_array().unwrap().len()), (&5.into(), 3), "{report}");
    world.ok(&["export", "data.kaml", "copy", "-n", "t"]);
    assert!(world.path("copy/good").exists() && world.path("copy/z/file").exists());
    closed.iter().for_each(|(name, _)| set_mode(&world.path(name), 0o755));
    set_mode(&world.path("copy/closed"), 0o755);
}

/// Goal:   a path that is too long is named, the others are stored, nothing is deleted, and the exit code is 1.
/// Method: paths of 1007 and of 1008 bytes; with `--delete`, and with a prefix that makes both too long.
#[test]
fn long_paths_are_named() {
    let world = World::new();
    let deep = format!("{0}/{0}/{0}/{1}", "d".repeat(250), "e".repeat(252)); // 1005 bytes
    fs::create_dir_all(world.path("tree").join(&deep)).unwrap();
    for name in ["1", "22"] {
        fs::write(world.path("tree").join(&deep).join(name), name).unwrap();
    }
    let output = world.run(&[&import("tree")[..], &["--delete", "--json"]].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("/22: a path of 1008 bytes; a tree takes at most 1007") && said.contains("nothing is deleted"),
        "{said}"
    );
    assert!(said.ends_with("1 path is not stored; the others are\n"), "{said}");
    assert_eq!(world.ok(&["get", "data.kaml", "t", &format!("{deep}/1")]), "1");
    let output = world.run(&[&import("tree")[..], &["--prefix", "p"]].concat());
    assert!(String::from_utf8(output.stderr).unwrap().ends_with("2 paths are not stored; the others are\n"));
}

/// Goal:   what cannot be restored does not keep the others from being restored; each is named, and the exit code is 1.
/// Method: metadata that are none, a piece that is missing, one that is too short, a hard link to nothing, something in the way.
#[test]
fn damaged_files_do_not_end_an_export() {
    let world = World::new();
    fs::create_dir(world.path("tree")).unwrap();
    for name in ["1", "2", "3", "4", "5"] {
        fs::write(world.path("tree").join(name), vec![b'0'; if matches!(name, "1" | "2") { 600_000 } else { 10 }])
            .unwrap();
    }
    fs::hard_link(world.path("tree/3"), world.path("tree/6")).unwrap();
    symlink("no file", world.path("tree/link")).unwrap();
    world.ok(&import("tree"));
    let keys = world.ok(&["list", "data.kaml", "t", "--hex"]);
    let piece =
        |file: &str| keys.lines().find(|key| key.starts_with(file) && key.ends_with("01") && key.len() == 36).unwrap();
    world.ok(&["delete", "data.kaml", "t", piece("31"), "--hex"]);
    world.ok(&["put", "data.kaml", "t", piece("32"), "--hex", "short"]);
    world.ok(&["put", "data.kaml", "t", "3300", "--hex", "rubbish"]);
    fs::create_dir_all(world.path("copy/4/in the way")).unwrap();
    let output = world.run(&["export", "data.kaml", "copy", "-n", "t", "--json"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for what in [
        "copy/1: contents are missing",
        "copy/2: contents do not match",
        "copy/3: not a metadata record",
        "copy/4: ",
        "copy/6: ",
    ] {
        assert!(said.contains(what), "{what}: {said}");
    }
    assert!(said.ends_with("kaml: copy: 5 paths are not restored; the others are\n"), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["entries"], report["failed"].as_array().unwrap().len()), (&2.into(), 5), "{report}");
    assert_eq!(fs::read(world.path("copy/5")).unwrap(), b"0000000000");
    assert!(world.path("copy/link").is_symlink() && !world.path("copy/1").exists());
}

/// Goal:   a device that is half made has no name; the next command that writes there removes what a killed `create` leaves.
/// Method: kill `create --prewrite` when it has written something; create again; look at the directory.
#[test]
fn killed_creates_leave_no_device() {
    let world = World::empty();
    let create = ["create", "data.kaml", "--capacity", "8G", "--prewrite", "--json"];
    let mut child = world.command(&create).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun =
        || fs::read_dir(world.dir.path()).unwrap().flatten().any(|entry| entry.metadata().unwrap().blocks() > 99);
    while !begun() {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    assert!(!world.path("data.kaml").exists());
    let said = world.ok(&["create", "data.kaml", "--capacity", "64MiB"]);
    assert!(said.contains("file data.kaml"), "{said}");
    let names: Vec<_> = fs::read_dir(world.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["data.kaml"]);
}
