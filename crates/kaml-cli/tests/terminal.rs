//! What a person sees and does at a terminal: progress bars, Ctrl-C while a target is silent.

mod world;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use world::World;

/// Runs with standard error on a terminal of this many columns; returns what was written there.
fn on_terminal(world: &World, columns: u16, arguments: &[&str]) -> String {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = fs::File::options().read(true).write(true).open(name).unwrap();
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(theirs.as_fd(), size).unwrap();
    let mut command = world.command(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(theirs).env("TERM", "xterm").env_remove("COLUMNS");
    let mut child = command.spawn().unwrap();
    drop(command); // its end of the terminal
    let mut written = Vec::new();
    let mut piece = [0; 4096];
    let mut ours = fs::File::from(ours);
    while let Ok(bytes @ 1..) = ours.read(&mut piece) {
        written.extend_from_slice(&piece[..bytes]); // fails when nobody has the other end open
    }
    assert!(child.wait().unwrap().success(), "{arguments:?}");
    String::from_utf8(written).unwrap()
}

/// Columns that each line takes, without what only moves and colours.
fn widths(written: &str) -> Vec<usize> {
    let mut lines = vec![String::new()];
    let mut chars = written.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => drop(chars.by_ref().skip(1).find(char::is_ascii_alphabetic)),
            '\r' | '\n' => lines.push(String::new()),
            c => lines.last_mut().unwrap().push(c),
        }
    }
    lines.iter().map(|line| line.chars().count()).collect()
}

/// Goal:   a progress bar takes one line, however wide the terminal is, and nothing where there is none.
/// Method: commands with a bar on terminals of 40, 80 and 200 columns; the widest line of each; without a terminal.
#[test]
fn bars_take_one_line() {
    let world = World::empty();
    world.ok(&["create", "data.kaml", "--capacity", "512MiB", "--durability", "process"]);
    fs::create_dir(world.path("tree")).unwrap();
    (0..40u8).for_each(|i| fs::write(world.path(&format!("tree/{i}")), vec![i; 1 << 20]).unwrap());
    let name = "a name that is much longer than a narrow terminal is wide, and than most wide ones are, for no good reason at all";
    let mut seen = 0;
    for columns in [40, 80, 200] {
        let [copy, new, lines] = ["copy", "new", "lines"].map(|name| format!("{name}{columns}"));
        world.ok(&["namespace", "create", "data.kaml", &new, "--keys", "ordered"]);
        for arguments in [
            &["import", "data.kaml", "tree", "-n", name][..],
            &["export", "data.kaml", &copy, "-n", name],
            &["export", "data.kaml", &lines, "-n", name, "--format", "jsonl"],
            &["import", "data.kaml", &lines, "-n", &new],
            &["check", "data.kaml"],
            &["create", &new, "--capacity", "300MiB", "--prewrite"],
            &["salvage", "data.kaml", "--into", &format!("{new}.salvaged"), "--durability", "process"],
        ] {
            let written = on_terminal(&world, columns, arguments);
            let widest = widths(&written).into_iter().max().unwrap_or(0);
            assert!(widest <= usize::from(columns), "{columns} columns, {arguments:?}: {widest}: {written:?}");
            seen += usize::from(written.contains(" %"));
        }
        world.ok(&["namespace", "delete", "data.kaml", &new]);
    }
    assert!(seen >= 9, "bars were seen {seen} times");
    assert!(world.run(&["check", "data.kaml"]).stderr.is_empty());
}

/// Demands that a command ends with 130 soon after Ctrl-C.
fn ends_promptly(mut child: Child) -> String {
    std::thread::sleep(Duration::from_millis(700));
    assert!(child.try_wait().unwrap().is_none(), "it ended by itself: {:?}", child.wait_with_output());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let begin = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(4), "took {:?}", begin.elapsed());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("kaml: interrupted"), "{said}");
    said
}

/// Goal:   Ctrl-C ends a command at once although its target is silent: before it has replied, and in the middle.
/// Method: a port that accepts a connection and sends nothing; a target that is stopped while trees and lines come and go.
#[test]
fn silent_targets_do_not_hold_a_command() {
    let world = World::empty();
    fs::create_dir(world.path("tree")).unwrap();
    (0..200u8).for_each(|i| fs::write(world.path(&format!("tree/{i}")), vec![i; 1 << 20]).unwrap());
    let spawn = |arguments: &[&str]| {
        let mut command = world.command(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nvme+tcp://{}/nqn.2026-11.example:silent", silent.local_addr().unwrap());
    ends_promptly(spawn(&["import", &url, "tree", "-n", "t"]));
    ends_promptly(spawn(&["export", &url, "copy", "-n", "t"]));

    world.ok(&["create", "data.kaml", "--capacity", "1GiB", "--durability", "process"]);
    let (mut serving, url) = world.serve();
    let stopped = |arguments: &[&str], after: u64| {
        let child = spawn(arguments);
        std::thread::sleep(Duration::from_millis(after));
        kill_process(Pid::from_child(&serving), Signal::STOP).unwrap();
        let said = ends_promptly(child);
        kill_process(Pid::from_child(&serving), Signal::CONT).unwrap();
        said
    };
    let said = stopped(&["import", &url, "tree", "-n", "t"], 150);
    assert!(said.contains("entries are stored, each whole"), "{said}");
    world.ok(&["import", &url, "tree", "-n", "t"]);
    let said = stopped(&["export", &url, "copy", "-n", "t"], 150);
    assert!(said.contains("entries are restored") || said.contains("is not written"), "{said}");
    let left = fs::read_dir(world.path("copy")).into_iter().flatten().flatten().map(|entry| entry.file_name());
    assert_eq!(left.filter(|name| name.to_string_lossy().starts_with(".kaml")).count(), 0);
    stopped(&["export", &url, "t.jsonl", "-n", "t", "--format", "jsonl"], 150);
    assert!(!world.path("t.jsonl").exists());
    world::end(&mut serving);
}
