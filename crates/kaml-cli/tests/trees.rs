//! Trees of files, whole and with more in them than files: what remains out, what is in the way, what is interrupted.

mod world;

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
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

/// Goal:   a tree that holds the device is imported without it, whatever its name there; sockets are left out too; both are reported.
/// Method: the device in the tree, a hard link to it, a socket; then the tree again through a device elsewhere.
#[test]
fn the_device_is_left_out() {
    let world = World::new();
    fs::create_dir(world.path("sub")).unwrap();
    fs::write(world.path("sub/file"), "text").unwrap();
    fs::hard_link(world.path("data.kaml"), world.path("sub/hard")).unwrap();
    symlink("data.kaml", world.path("link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(world.path("sub/socket")).unwrap();
    let output = world.run(&["import", "data.kaml", ".", "-n", "files", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    for (path, is) in
        [("./data.kaml", "the device itself"), ("./sub/hard", "the device itself"), ("./sub/socket", "a socket")]
    {
        assert!(said.contains(&format!("kaml: {path} is left out: it is {is}\n")), "{said}");
    }
    assert_eq!(said.lines().count(), 3, "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["entries"], report["left_out"].as_array().unwrap().len()), (&3.into(), 3), "{report}");
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
    // Something blocks the name of a file: the directories above it match their records.
    let over = world.path("over");
    fs::create_dir_all(over.join("a/b/2/in the way")).unwrap();
    [over.join("a/b"), over.join("a")].iter().for_each(|path| set_mode(path, 0o511));
    let output = as_anybody(&world, &["export", "large.kaml", "over", "-n", "t"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for (name, mode) in [("a", 0o555), ("a/b", 0o500)] {
        assert_eq!(fs::metadata(over.join(name)).unwrap().permissions().mode() & 0o777, mode, "{name}");
    }
    for name in ["copy/a", "copy/a/b", "copy/a/b/c", "tree/a", "tree/a/b", "tree/a/b/c"] {
        set_mode(&world.path(name), 0o700); // so that anybody can clean up
    }
}

/// Goal:   links that are in the target are not followed out of it, and are named.
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
    let output = world.run(&["export", "data.kaml", "copy", "-n", "t"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("copy/dir: is a symbolic link, and is not followed"), "{said}");
    assert_eq!(fs::read(world.path("out/file")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(world.path("out")).unwrap().count(), 1);
}

/// Goal:   an export that is killed, or interrupted, leaves no half file under a name that was requested.
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
        // The next one removes what this one left, and does what it did not.
        world.ok(&["export", "data.kaml", &target, "-n", "t"]);
        assert_eq!(picture(&world.path("tree")), picture(&world.path(&target)));
        fs::remove_dir_all(world.path(&target)).unwrap_or_default();
    }
    // The value does not exist any more: the existing file is unchanged.
    fs::write(world.path("t.jsonl"), "old").unwrap();
    let mut child = world.command(&["export", "data.kaml", "t.jsonl", "-n", "t", "--format", "jsonl"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    child.kill().unwrap();
    if child.wait().unwrap().success() {
        return; // it was quicker
    }
    assert_eq!(fs::read(world.path("t.jsonl")).unwrap(), b"old");
}

/// Goal:   a tree in a versioned namespace is what it is in an ordered one, and keeps its earlier states: also of files longer than a segment and
///         than any value.
/// Method: a tree is imported, imported again without change, changed and imported with --delete; listed, read and exported as it is and as it was,
///         before and after a merge; compared with the same tree in an ordered namespace.
#[test]
fn versioned_namespaces_keep_states_of_trees() {
    let world = World::new();
    let device = "data.kaml";
    world.ok(&["namespace", "create", device, "past", "--versioned"]);
    tree_of(&world.path("tree"));
    let export = |name: &str, flags: &[&str]| {
        let target = world.path(name);
        world.ok(&[&["export", device, name, "-n", "past"], flags].concat());
        let found = picture(&target);
        fs::remove_dir_all(target).unwrap();
        found
    };
    let before = picture(&world.path("tree"));
    world.ok(&["import", device, "tree", "-n", "past"]);
    world.ok(&["import", device, "tree", "-n", "past"]);
    world.ok(&["import", device, "tree", "-n", "ordered"]);
    let list = |name: &str| world.ok(&["ls", device, name, "-R", "-l"]);
    assert_eq!(list("past"), list("ordered"));
    assert_eq!(world.ok(&["ls", device, "past", "deep"]), world.ok(&["ls", device, "ordered", "deep"]));
    assert_eq!(export("copy", &[]), before);
    assert!(world.ok(&["snapshot", device, "past"]).contains("snapshot 1"));

    fs::write(world.path("tree/a.txt"), "changed").unwrap();
    fs::write(world.path("tree/large.bin"), vec![9; 3_000_000]).unwrap();
    fs::remove_file(world.path("tree/deep/er/b.bin")).unwrap();
    fs::create_dir(world.path("tree/more")).unwrap();
    fs::write(world.path("tree/more/file"), vec![5; 400_000]).unwrap();
    let after = picture(&world.path("tree"));
    world.ok(&["import", device, "tree", "-n", "past", "--delete"]);
    assert_eq!(export("copy", &[]), after);
    assert_eq!(world.ok(&["cat", device, "past", "a.txt"]), "changed");
    let of_snapshot = || {
        assert_eq!(export("then", &["--as-of", "1"]), before);
        assert_eq!(world.ok(&["cat", device, "past", "a.txt", "--as-of", "1"]), "text");
        assert_eq!(world.ok(&["ls", device, "past", "-R", "-l", "--as-of", "1"]), list("ordered"));
        world.fails(3, &["cat", device, "past", "more/file", "--as-of", "1"]);
    };
    of_snapshot();
    world.ok(&["merge", device, "past", "--keep-last", "1"]);
    of_snapshot();
    assert_eq!(export("copy", &[]), after);
    world.ok(&["check", device]);

    world.ok(&["rollback", device, "past", "1"]);
    assert_eq!(export("copy", &[]), before);
    world.ok(&["rollback", device, "past", "2"]);
    assert_eq!(export("copy", &["--prefix", "more"]).len(), 2);
    let refused = world.fails(2, &["ls", device, "ordered", "--as-of", "1"]);
    assert!(refused.contains("keeps no versions"), "{refused}");
    world.ok(&["namespace", "create", device, "numbers", "--versioned", "--keys", "u64"]);
    let refused = world.fails(2, &["import", device, "tree", "-n", "numbers"]);
    assert!(refused.contains("numbers"), "{refused}");
    // Records of a program are no part of the tree, whatever their keys.
    world.ok(&["put", device, "past", "c234567890123456", "of a program"]);
    world.ok(&["put", device, "past", "m234567890123456", "of a program"]);
    world.ok(&["import", device, "tree", "-n", "past", "--delete"]);
    assert_eq!(export("copy", &[]), after);
    assert_eq!(world.ok(&["get", device, "past", "c234567890123456"]), "of a program");
}

/// Goal:   pieces that a killed import left in a versioned namespace are deleted by the next one.
/// Method: imports that are killed after several times; then two that are not, and one that finds nothing to delete.
#[test]
fn killed_imports_into_versioned_namespaces_leave_nothing() {
    let world = World::new();
    // It has room for everything that the imports put: in a versioned namespace nothing is released before a merge.
    world.ok(&["create", "large.kaml", "--capacity", "512MiB"]);
    world.ok(&["namespace", "create", "large.kaml", "past", "--versioned"]);
    tree_of(&world.path("tree"));
    let import = ["import", "large.kaml", "tree", "-n", "past"];
    for wait_ms in [20, 60, 120, 250] {
        let mut child = world.command(&import).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    world.ok(&import);
    world.ok(&import);
    let report: serde_json::Value =
        serde_json::from_str(&world.ok(&["import", "large.kaml", "tree", "-n", "past", "--json"])).unwrap();
    assert_eq!(report.get("removed_uploads"), None, "{report}");
    world.ok(&["export", "large.kaml", "copy", "-n", "past"]);
    assert_eq!(picture(&world.path("copy")), picture(&world.path("tree")));
    world.ok(&["check", "large.kaml"]);
}

/// Goal:   a namespace that cannot hold a tree is refused with what to do; records of programs and a tree share an ordered one, and an
///         export writes both.
/// Method: a tree into namespaces of records, of integers, of blocks, of versions; a line with a large value into the last; an ordered one with a program's records, also one whose key no tree has.
#[test]
fn trees_and_records_share_ordered_namespaces() {
    let world = World::new();
    fs::create_dir(world.path("tree")).unwrap();
    fs::write(world.path("tree/file"), "text").unwrap();
    world.ok(&["namespace", "create", "data.kaml", "ints", "--keys", "u64"]);
    world.ok(&["namespace", "create", "data.kaml", "past", "--versioned"]);
    world.ok(&["namespace", "create", "data.kaml", "disk", "--block", "4096", "--size", "1MiB"]);
    let import = |name| ["import", "data.kaml", "tree", "-n", name];
    fs::write(world.path("line.jsonl"), format!("{{\"key\": \"big\", \"value\": \"{}\"}}\n", "x".repeat(557_000)))
        .unwrap();
    let lines = |name| ["import", "data.kaml", "line.jsonl", "-n", name];
    world.ok(&lines("past"));
    assert_eq!(world.ok(&["get", "data.kaml", "past", "big"]).len(), 557_000);
    world.ok(&lines("notes"));
    world.ok(&["delete", "data.kaml", "notes", "big"]);
    for name in ["notes", "ints", "disk"] {
        assert!(world.fails(2, &import(name)).contains("--keys ordered"), "{name}");
    }
    for name in ["notes", "ints", "disk"] {
        assert!(world.fails(2, &["ls", "data.kaml", name]).contains("--keys ordered"), "{name}");
    }
    world.ok(&["namespace", "create", "data.kaml", "t", "--keys", "ordered"]);
    world.ok(&["put", "data.kaml", "t", "of/a/program", "its value"]);
    world.ok(&import("t"));
    assert_eq!(world.ok(&["get", "data.kaml", "t", "file"]), "text");
    assert_eq!(world.ok(&["ls", "data.kaml", "t"]), "file\nof\n");
    assert_eq!(world.ok(&["ls", "data.kaml", "t", "of/a"]), "program\n");
    world.ok(&["export", "data.kaml", "copy", "-n", "t"]);
    assert_eq!(fs::read(world.path("copy/of/a/program")).unwrap(), b"its value");
    assert_eq!(fs::read(world.path("copy/file")).unwrap(), b"text");
    // A program writes a file, and deletes one.
    world.ok(&["put", "data.kaml", "t", "file", "changed"]);
    assert!(world.ok(&["ls", "data.kaml", "t", "-l"]).contains("            7 20"));
    world.ok(&["export", "data.kaml", "copy", "-n", "t"]);
    assert_eq!(fs::read(world.path("copy/file")).unwrap(), b"changed");
    world.ok(&["delete", "data.kaml", "t", "file", "--must-exist"]);
    assert_eq!(world.ok(&["ls", "data.kaml", "t"]), "of\n");
    for key in ["0x2e2e2f78", "0x610062"] {
        world.ok(&["put", "data.kaml", "t", key, "x", "--hex"]); // `../x`, and `a`, NUL, `b`
    }
    let output = world.run(&["export", "data.kaml", "copy", "-n", "t", "--format", "tree"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("`../x` leads out of the tree") && said.contains("belong to no tree"), "{said}");
    assert_eq!((output.status.code(), world.path("x").exists()), (Some(1), false));
}

/// Path, kind and mode, owner, size, blocks if there are few, device, time, attributes, contents or target, and the first path of the same file.
type Row = (PathBuf, u32, (u32, u32), u64, bool, u64, (i64, i64), Vec<(String, Vec<u8>)>, Vec<u8>, PathBuf);

/// All that an export restores.
fn portrait(root: &Path) -> Vec<Row> {
    let (mut rows, mut names) = (Vec::new(), std::collections::BTreeMap::new());
    let mut entries: Vec<_> =
        picture(root).into_iter().map(|(path, ..)| path).filter(|path| path != Path::new("")).collect();
    entries.sort();
    for path in entries {
        let at = root.join(&path);
        let found = fs::symlink_metadata(&at).unwrap();
        let mut list = vec![0; 1 << 12];
        let length = rustix::fs::llistxattr(&at, &mut list[..]).unwrap_or(0);
        let mut attributes = Vec::new();
        for name in list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; 1 << 12];
            let length = rustix::fs::lgetxattr(&at, name, &mut value[..]).unwrap();
            value.truncate(length);
            attributes.push((String::from_utf8(name.to_vec()).unwrap(), value));
        }
        attributes.sort();
        let contents = match found.file_type() {
            kind if kind.is_symlink() => fs::read_link(&at).unwrap().into_os_string().into_encoded_bytes(),
            kind if kind.is_file() => fs::read(&at).unwrap(),
            _ => Vec::new(),
        };
        let size = if found.is_file() { found.len() } else { 0 };
        let is_sparse = found.is_file() && found.blocks() * 512 + 65536 < size;
        let first = names.entry((found.dev(), found.ino())).or_insert(path.clone()).clone();
        rows.push((
            path,
            found.mode(),
            (found.uid(), found.gid()),
            size,
            is_sparse,
            found.rdev(),
            (found.mtime(), found.mtime_nsec()),
            attributes,
            contents,
            first,
        ));
    }
    rows
}

/// Every kind of file that this user can make, with odd names, lengths around those of pieces, holes and attributes.
fn nasty_tree(root: &Path) {
    use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, makedev, mkfifoat, mknodat};
    let is_root = rustix::process::geteuid().is_root();
    fs::create_dir_all(root.join("deep/er/empty")).unwrap();
    let odd = ["line\nbreak", " space ", "-flag", "\u{1}", "a b", "a-b", "a0", "日本", &"x".repeat(255)];
    for name in odd.iter().map(std::ffi::OsStr::new).chain([std::ffi::OsStr::from_bytes(b"no text \xff\xfe")]) {
        fs::write(root.join(name), name.as_bytes()).unwrap();
    }
    for (number, bytes) in [0, 1, 262_143, 262_144, 262_145, 524_288, 1_000_000].into_iter().enumerate() {
        let contents: Vec<u8> = (0..bytes as u32).map(|i| (i ^ i >> 9) as u8).collect();
        fs::write(root.join(format!("deep/{number}")), contents).unwrap();
    }
    for (name, at, bytes) in
        [("sparse", 30_000_000, 50_000_000), ("small sparse", 100_000, 200_000), ("hole", 0, 9_000_000)]
    {
        let file = fs::File::create(root.join(name)).unwrap();
        file.set_len(bytes).unwrap();
        if at > 0 {
            file.write_all_at(b"data in a hole", at).unwrap();
        }
    }
    let long = ["d".repeat(250), "e".repeat(250), "f".repeat(250), "g".repeat(253)].join("/");
    fs::create_dir_all(root.join(&long).parent().unwrap()).unwrap();
    fs::write(root.join(long), "1006 bytes").unwrap();
    symlink("../nowhere", root.join("deep/link")).unwrap();
    symlink(std::ffi::OsStr::from_bytes(b"no text \xff"), root.join("odd link")).unwrap();
    for (first, other) in [("deep/1", "deep/er/hard"), ("deep/5", "A hard"), ("deep/link", "link of a link")] {
        fs::hard_link(root.join(first), root.join(other)).unwrap();
    }
    mkfifoat(CWD, root.join("pipe"), Mode::from_raw_mode(0o640)).unwrap();
    fs::hard_link(root.join("pipe"), root.join("pipe again")).unwrap();
    let set =
        |name: &str, attribute: &str, value: &[u8]| lsetxattr(root.join(name), attribute, value, XattrFlags::empty());
    if set("hole", "user.name", b"text").is_ok() {
        set("deep/6", "user.bytes", &[0, 255, 10]).unwrap();
        set("deep/er", "user.directory", b"").unwrap();
    }
    if is_root {
        for (name, kind, device) in
            [("character", FileType::CharacterDevice, makedev(1, 3)), ("block", FileType::BlockDevice, makedev(7, 300))]
        {
            // A container may forbid it.
            let _ = mknodat(CWD, root.join(name), kind, Mode::from_raw_mode(0o600), device);
        }
        for (name, mode) in [("deep/2", 0o6755), ("deep/er", 0o3775), ("pipe", 0o622)] {
            std::os::unix::fs::chown(root.join(name), Some(1234), Some(4321)).unwrap();
            set_mode(&root.join(name), mode);
        }
        std::os::unix::fs::lchown(root.join("odd link"), Some(1234), Some(4321)).unwrap();
        // Capabilities, as `setcap cap_net_raw+ep` makes them.
        let capability = [&[1, 0, 0, 2, 0, 32, 0, 0][..], &[0; 12]].concat();
        let _ = set("deep/3", "security.capability", &capability);
    }
    let times =
        [("deep/0", -5, 999_999_999), ("odd link", 1_000_000_000, 5), ("deep/er", 1, 0), ("pipe", 4_000_000_000, 1)];
    for (name, tv_sec, tv_nsec) in times {
        let time = rustix::fs::Timespec { tv_sec, tv_nsec };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, root.join(name), &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// Goal:   a tree with all that a file system has is the same after import and export: contents, kinds, names, modes, owners, times, attributes,
///         hard links, holes; also below a path, and on the smallest device; sockets are left out; each file reads as it is.
/// Method: such a tree; two exports, of the root and of a prefix, and a part of it, where hard links become copies; `cat`, `get` and `ls` of files.
#[test]
fn nasty_trees_survive() {
    let world = World::empty();
    world.ok(&["create", "data.kaml", "--capacity", "32MiB"]);
    let tree = world.path("tree");
    nasty_tree(&tree);
    let wanted = portrait(&tree);
    assert!(wanted.iter().any(|row| row.4), "some files are sparse");
    world.ok(&["import", "data.kaml", "tree", "-n", "t"]);
    world.ok(&["export", "data.kaml", "copy", "-n", "t"]);
    let found = portrait(&world.path("copy"));
    for (wanted, found) in wanted.iter().zip(&found) {
        assert!(
            wanted == found,
            "{:?} {:?}",
            (&wanted.0, wanted.1, wanted.2, wanted.3, wanted.4, wanted.6, &wanted.7, &wanted.9),
            (&found.0, found.1, found.2, found.3, found.4, found.6, &found.7, &found.9)
        );
    }
    assert_eq!(wanted.len(), found.len());
    for name in ["deep/6", "A hard", "deep/5", "deep/er/hard", "small sparse", "hole"] {
        let contents = fs::read(tree.join(name)).unwrap();
        assert!(world.run(&["cat", "data.kaml", "t", name]).stdout == contents, "{name}");
        assert!(world.run(&["get", "data.kaml", "t", name]).stdout == contents, "{name}");
        let range = world.run(&["cat", "data.kaml", "t", name, "--offset", "262140", "--length", "9"]).stdout;
        assert_eq!(range, contents.iter().skip(262_140).take(9).copied().collect::<Vec<u8>>(), "{name}");
    }
    assert!(world.fails(3, &["cat", "data.kaml", "t", "deep/none"]).contains("no file"));
    assert!(world.fails(1, &["cat", "data.kaml", "t", "deep"]).contains("is no file"));
    let listed = world.ok(&["ls", "data.kaml", "t", "-R", "--json"]);
    assert_eq!(listed.lines().count(), wanted.len());
    let sizes = listed.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["bytes"].as_u64());
    let files = wanted.iter().filter(|row| row.1 & 0o170_000 == 0o100_000).map(|row| row.3);
    assert_eq!(sizes.flatten().sum::<u64>(), files.sum::<u64>());
    world.ok(&["export", "data.kaml", "part", "-n", "t", "--prefix", "deep/er"]);
    assert_eq!(fs::read(world.path("part/hard")).unwrap(), fs::read(tree.join("deep/1")).unwrap());
    assert!(world.path("part/empty").is_dir());
    world.ok(&["check", "data.kaml"]);
}

/// Goal:   a part of a namespace is imported and exported by its path, and nothing else is touched; wrong paths are refused.
/// Method: two trees below two paths; each exported; one imported again with `--delete`; paths that lead out, and one that is missing.
#[test]
fn prefixes_are_trees() {
    let world = World::new();
    for (tree, name) in [("one", "1"), ("two", "2")] {
        fs::create_dir_all(world.path(tree).join("sub")).unwrap();
        fs::write(world.path(tree).join("sub").join(name), name).unwrap();
    }
    world.ok(&["import", "data.kaml", "one", "-n", "t", "--prefix", "a/b/"]);
    world.ok(&["import", "data.kaml", "two", "-n", "t", "--prefix", "a/b-c"]);
    for (tree, prefix) in [("one", "a/b"), ("two", "a/b-c/")] {
        world.ok(&[
            "export",
            "data.kaml",
            prefix.trim_end_matches('/').rsplit('/').next().unwrap(),
            "-n",
            "t",
            "--prefix",
            prefix,
        ]);
        let target = prefix.trim_end_matches('/').rsplit('/').next().unwrap();
        assert_eq!(picture(&world.path(tree)), picture(&world.path(target)));
    }
    fs::remove_file(world.path("one/sub/1")).unwrap();
    let report = world.json(&["import", "data.kaml", "one", "-n", "t", "--prefix", "a/b", "--delete", "--json"]);
    assert_eq!((&report["deleted"], &report["entries"]), (&1.into(), &1.into()), "{report}");
    assert_eq!(world.ok(&["ls", "data.kaml", "t", "-R"]), "a/b-c/sub\na/b-c/sub/2\na/b/sub\n");
    assert_eq!(world.ok(&["ls", "data.kaml", "t", "a"]), "b-c\nb\n");
    assert_eq!(world.ok(&["ls", "data.kaml", "t"]), "a\n");
    world.fails(3, &["ls", "data.kaml", "t", "b"]);
    world.fails(3, &["export", "data.kaml", "none", "-n", "t", "--prefix", "b"]);
    for prefix in ["../a", "/a", "a//b"] {
        world.fails(2, &["import", "data.kaml", "one", "-n", "t", "--prefix", prefix]);
        world.fails(2, &["export", "data.kaml", "none", "-n", "t", "--prefix", prefix]);
    }
    assert!(!world.path("none").exists());
}

/// Goal:   a tree that an earlier version imported is exported as it was; an import into its namespace is refused with what to do.
/// Method: a device that version 0.1 made: text, a link, parts, an empty file and directory, a name that is no text; the records next to it.
#[test]
fn trees_of_earlier_versions_are_exported() {
    let world = World::empty();
    let unpack = "gzip -dc < \"$0\" | gzip -dc > data.kaml";
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tree-of-0.1.kaml.gz.gz");
    let unpacked = Command::new("sh").args(["-c", unpack, data]).current_dir(world.dir.path()).status().unwrap();
    assert!(unpacked.success());
    let output = world.run(&["export", "data.kaml", "copy", "-n", "t", "--json"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let found: Vec<_> =
        picture(&world.path("copy")).into_iter().map(|(path, mode, _, bytes)| (path, mode, bytes)).collect();
    let large: Vec<u8> = (0..600_000u32).map(|i| (i / 1000) as u8).collect();
    let expected: [(&[u8], u32, &[u8]); 8] = [
        (b"", 0, b""),
        (b"a.txt", 0o100_640, b"text\n"),
        (b"dir", 0o40_755, b""),
        (b"dir/empty", 0o40_755, b""),
        (b"large.bin", 0o100_644, &large),
        (b"link", 0o120_777, b"a.txt"),
        (b"none", 0o100_644, b""),
        (b"odd\xff", 0o100_644, b"odd"),
    ];
    let expected =
        expected.map(|(path, mode, bytes)| (PathBuf::from(std::ffi::OsStr::from_bytes(path)), mode, bytes.to_vec()));
    assert!(found == expected, "{:?}", found.iter().map(|row| (&row.0, row.1)).collect::<Vec<_>>());
    let modified = fs::symlink_metadata(world.path("copy/link")).unwrap();
    assert_eq!((modified.mtime(), modified.mtime_nsec()), (1_000_000_000, 123_456_789));
    let refused = world.fails(2, &["import", "data.kaml", "copy", "-n", "t"]);
    assert!(refused.contains("tree of an earlier version"), "{refused}");
    world.ok(&["import", "data.kaml", "copy", "-n", "new"]);
    world.ok(&["export", "data.kaml", "again", "-n", "new"]);
    assert_eq!(picture(&world.path("copy")), picture(&world.path("again")));
    world.ok(&["put", "data.kaml", "t", "hello", "world"]);
    let output = world.run(&["export", "data.kaml", "copy", "-n", "t"]);
    assert!(String::from_utf8(output.stderr).unwrap().ends_with("--format jsonl writes all records: 1\n"));
}

/// Goal:   an import into a device that becomes full is a typed error; every path is whole, old or new, and what did not fit leaves nothing. After
///         files are deleted there is room again.
/// Method: small files, then a large one that does not fit and one that replaces a stored one; compare all that is listed; delete, import again.
#[test]
fn full_devices_have_whole_files() {
    let world = World::empty();
    world.ok(&["create", "data.kaml", "--capacity", "32MiB"]);
    fs::create_dir(world.path("tree")).unwrap();
    fs::write(world.path("tree/first"), vec![1; 3 << 20]).unwrap();
    for i in 0..20 {
        fs::write(world.path(&format!("tree/small{i}")), vec![i; 1000]).unwrap();
    }
    world.ok(&["import", "data.kaml", "tree", "-n", "t"]);
    let before = world.json(&["info", "data.kaml", "--json"])["namespaces"][0]["record_count"].clone();
    fs::write(world.path("tree/first"), vec![2; 40 << 20]).unwrap();
    fs::write(world.path("tree/second"), vec![3; 40 << 20]).unwrap();
    let said = world.fails(1, &["import", "data.kaml", "tree", "-n", "t"]);
    assert!(said.contains("full") && said.contains("entries are stored"), "{said}");
    world.ok(&["check", "data.kaml"]);
    assert!(world.run(&["cat", "data.kaml", "t", "first"]).stdout == vec![1; 3 << 20]);
    world.fails(3, &["cat", "data.kaml", "t", "second"]);
    for i in 0..20 {
        assert_eq!(world.run(&["get", "data.kaml", "t", &format!("small{i}")]).stdout, vec![i; 1000]);
    }
    let after = world.json(&["info", "data.kaml", "--json"])["namespaces"][0]["record_count"].clone();
    assert_eq!(before, after, "no piece of what did not fit is left");
    fs::remove_file(world.path("tree/second")).unwrap();
    fs::write(world.path("tree/first"), vec![4; 10 << 20]).unwrap();
    world.ok(&["import", "data.kaml", "tree", "-n", "t", "--delete"]);
    assert!(world.run(&["cat", "data.kaml", "t", "first"]).stdout == vec![4; 10 << 20]);
}

/// Goal:   a file that can only be written in place is, and is durable like any other; a half-written one is reported.
/// Method: export over one in a directory in which nothing can be made, as anybody; then interrupted after it has begun.
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

/// Goal:   a tree that cannot be imported leaves no namespace, and the command reports what it stored of a tree or of lines.
/// Method: a directory that does not let anybody in; a file that does not let itself be read; a bad line after good ones.
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
    let complaint = said(&["import", "data.kaml", "tree/closed", "-n", "t"]);
    assert!(complaint.contains("tree/closed: Permission denied"), "{complaint}");
    assert_eq!(world.json(&["namespace", "list", "data.kaml", "--json"]).as_array().unwrap().len(), 1);
    set_mode(&world.path("tree/closed"), 0o755);
    let long = "t".repeat(256); // more than a name may have
    assert!(world.fails(2, &["import", "data.kaml", "tree", "-n", &long]).contains("name"));
    assert_eq!(world.json(&["namespace", "list", "data.kaml", "--json"]).as_array().unwrap().len(), 1);
    fs::write(world.path("tree/file"), "text").unwrap();
    set_mode(&world.path("tree/file"), 0o000);
    let complaint = said(&import);
    assert!(
        complaint.contains("tree/file: Permission denied") && complaint.contains("1 path is not stored"),
        "{complaint}"
    );
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
    // The pieces of the old large files are gone: those of the new one, one record for each small file, and the metadata.
    let info = world.json(&["info", "data.kaml", "--json"]);
    let contents = info["namespaces"].as_array().unwrap().iter().find(|space| space["name"] == "files").unwrap();
    assert_eq!(contents["record_count"], 5_000_000u64.div_ceil(256 << 10) + 3 + 8, "{info}");
    // What has gone is kept, until it is to be deleted.
    fs::remove_dir_all(source.join("deep")).unwrap();
    fs::remove_file(source.join("large.bin")).unwrap();
    world.ok(&["import", "data.kaml", "source", "-n", "files"]);
    world.ok(&["export", "data.kaml", "kept", "-n", "files"]);
    assert!(world.path("kept/deep/er/b.bin").exists() && world.path("kept/large.bin").exists());
    let report = world.json(&["import", "data.kaml", "source", "-n", "files", "--delete", "--json"]);
    assert_eq!(report["deleted"], 5, "{report}");
    world.ok(&["export", "data.kaml", "less", "-n", "files"]);
    assert_eq!(picture(&source), picture(&world.path("less")));
    assert_eq!(world.json(&["namespace", "list", "data.kaml", "--json"])[0]["record_count"], 2 + 3);
    world.ok(&["check", "data.kaml"]);
}

/// Goal:   a file is overwritten only with what was requested, and the device never; what cannot be written is named.
/// Method: export a namespace that does not exist, and one of blocks, over a file; export and get over the device; a full target.
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
