//! A directory in which tests run the `kaml` program, and what they look at there.
//!
//! Lives here:       running the program, demands on its answers, trees of files.
//! Lives elsewhere:  what is tested (the other files next to this directory).
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The program of the package whose tests these are.
pub const PROGRAM: &str = match (option_env!("CARGO_BIN_EXE_kaml"), option_env!("CARGO_BIN_EXE_kaml-bench")) {
    (Some(program), _) | (None, Some(program)) => program,
    (None, None) => panic!("no program is tested"),
};

/// A directory with a device in it, and the program run there.
pub struct World {
    pub dir: TempDir,
}

impl World {
    /// With nothing in it.
    pub fn empty() -> World {
        World { dir: tempfile::tempdir().unwrap() }
    }

    /// With `data.kaml`, 64 MiB, and a namespace `notes`.
    pub fn new() -> World {
        let world = World::empty();
        world.ok(&["create", "data.kaml", "--capacity", "64MiB"]);
        world.ok(&["namespace", "create", "data.kaml", "notes"]);
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).current_dir(self.dir.path()).env_remove("RUST_LOG");
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs, demands success, answers standard output.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.ok(arguments);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// Runs, demands this exit code and one line on standard error, answers the line.
    pub fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(complaint.starts_with(&complains()) && complaint.lines().count() == 1, "{arguments:?}: {complaint}");
        complaint
    }

    /// Serves the device; returns its address when it listens.
    pub fn serve(&self) -> (Child, String) {
        self.serve_with(&["data.kaml"])
    }

    pub fn serve_with(&self, arguments: &[&str]) -> (Child, String) {
        self.serve_saying(arguments, Stdio::inherit())
    }

    /// As [`World::serve_with`], with its output to people sent elsewhere.
    pub fn serve_saying(&self, arguments: &[&str], stderr: Stdio) -> (Child, String) {
        let mut serve = [&["serve", "--listen", "127.0.0.1:0", "--json"], arguments].concat();
        if !arguments.contains(&"--hosts") {
            serve.push("--allow-management");
        }
        let mut serving = self.command(&serve).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut said = String::new();
        let mut stdout = std::io::BufReader::new(serving.stdout.take().unwrap());
        while serde_json::from_str::<Value>(&said).is_err() {
            assert_ne!(std::io::BufRead::read_line(&mut stdout, &mut said).unwrap(), 0, "it ended: {said}");
        }
        let said: Value = serde_json::from_str(&said).unwrap();
        let (address, subsystem) = (said["address"].as_str().unwrap(), said["subsystem"].as_str().unwrap());
        (serving, format!("nvme+tcp://{address}/{subsystem}"))
    }

    pub fn pipe(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    }
}

/// Directories, files of many sizes, a link; modes and times.
pub fn tree_of(root: &Path) {
    fs::create_dir_all(root.join("deep/er/empty")).unwrap();
    fs::write(root.join("a.txt"), "text").unwrap();
    fs::write(root.join("empty.txt"), "").unwrap();
    fs::write(root.join("deep/er/b.bin"), vec![7; 300_000]).unwrap();
    let large: Vec<u8> = (0..9_500_000u32).map(|i| (i ^ i >> 9) as u8).collect();
    fs::write(root.join("large.bin"), large).unwrap();
    fs::set_permissions(root.join("a.txt"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("a.txt", root.join("link")).unwrap();
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    fs::File::open(root.join("deep/er/b.bin")).unwrap().set_modified(long_ago).unwrap();
    fs::File::open(root.join("deep")).unwrap().set_modified(long_ago).unwrap();
}

/// Path, mode, modification time, contents or link target of everything below.
pub fn picture(root: &Path) -> Vec<(PathBuf, u32, std::time::SystemTime, Vec<u8>)> {
    let mut rows = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let contents = match metadata.file_type() {
            kind if kind.is_dir() => {
                todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                Vec::new()
            }
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
            kind if kind.is_file() => fs::read(&path).unwrap(),
            _ => Vec::new(), // a pipe would wait for a writer
        };
        let mode = if path == root { 0 } else { metadata.permissions().mode() };
        let time = if path == root { std::time::UNIX_EPOCH } else { metadata.modified().unwrap() };
        rows.push((path.strip_prefix(root).unwrap().to_owned(), mode, time, contents));
    }
    rows.sort();
    rows
}

/// Asks a target to end, which it does in order.
pub fn end(serving: &mut Child) {
    let pid = rustix::process::Pid::from_child(serving);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(serving.wait().unwrap().code(), Some(0));
}

/// How the program begins a complaint.
fn complains() -> String {
    format!("{}: ", Path::new(PROGRAM).file_name().unwrap().to_str().unwrap())
}

/// Bytes of all files below a directory that takes space there.
pub fn bytes_below(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        found => found.map_or(0, |found| found.blocks() * 512),
    });
    bytes.sum()
}

/// Starts a command, sends a signal when it has written something, and demands that it ends with 130, soon, with nothing left
/// of what it and its children made.
pub fn interrupted(world: &World, arguments: &[&str], signal: Signal, written: u64) -> String {
    let scratch = world.path("tmp");
    fs::create_dir_all(&scratch).unwrap();
    let names = || {
        let listed = [world.dir.path(), &scratch].map(|dir| fs::read_dir(dir).unwrap());
        listed.into_iter().flatten().map(|entry| entry.unwrap().path()).collect::<std::collections::BTreeSet<_>>()
    };
    let (names_before, bytes_before) = (names(), bytes_below(world.dir.path()));
    let mut command = world.command(arguments);
    // A group of its own: a child process that is left running would be seen in it.
    command.env("TMPDIR", &scratch).process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let pid = Pid::from_child(&child);
    let begin = Instant::now();
    while bytes_below(world.dir.path()) < bytes_before + written {
        assert!(child.try_wait().unwrap().is_none(), "{arguments:?}: ended by itself: {:?}", child.wait_with_output());
        assert!(begin.elapsed() < Duration::from_secs(60), "{arguments:?}: writes nothing");
        std::thread::sleep(Duration::from_millis(2));
    }
    kill_process(pid, signal).unwrap();
    let begin = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{arguments:?}: {output:?}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{arguments:?}: took {:?}", begin.elapsed());
    assert_eq!(names(), names_before, "{arguments:?}");
    while rustix::process::test_kill_process_group(pid).is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{arguments:?}: a child process continues");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(names(), names_before, "{arguments:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let last = said.lines().last().unwrap_or_default();
    assert!(
        last.starts_with(&format!("{}interrupted", complains())) && !said.contains("panicked"),
        "{arguments:?}: {said}"
    );
    said
}
