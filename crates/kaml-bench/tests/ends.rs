//! How benches end when they are interrupted: with 130, and without what nobody asked to keep.

#[path = "../../kaml-cli/tests/world/mod.rs"]
mod world;

use rustix::process::{Pid, Signal, kill_process};
use std::process::Stdio;
use std::time::Duration;
use world::{World, bytes_below, interrupted};

/// Goal:   a bench that is interrupted leaves no scratch device, whichever it is and wherever it is.
/// Method: SIGINT, SIGTERM or SIGHUP for each, while it fills its device, and later; look at the directory and for child processes.
#[test]
fn benches_leave_nothing() {
    let world = World::empty();
    let long = ["--seconds", "60", "--dir", "."];
    let bench = |arguments: &[&'static str]| [arguments, &long].concat();
    interrupted(&world, &bench(&["floor"]), Signal::INT, 4 << 20);
    interrupted(&world, &bench(&["raw", "--file", "64M"]), Signal::TERM, 4 << 20);
    interrupted(&world, &bench(&["put", "--capacity", "1G"]), Signal::HUP, 8 << 20);
    interrupted(&world, &bench(&["get", "--capacity", "1G", "--keys", "500000"]), Signal::TERM, 64 << 20);
    interrupted(&world, &bench(&["compare", "--only", "puts"]), Signal::INT, 16 << 20);
    interrupted(&world, &bench(&["compare", "--only", "memory", "--memory-bytes", "8G"]), Signal::INT, 64 << 20);
    interrupted(&world, &bench(&["ycsb", "a", "--records", "500000"]), Signal::INT, 64 << 20);
    interrupted(&world, &["kill", "--cycles", "100000"], Signal::INT, 20 << 20);
}

/// Goal:   a command that was started to outlive its terminal does.
/// Method: SIGHUP and SIGINT for a bench that a shell has started to ignore them, as `nohup` and `&` do.
#[test]
fn ignored_signals_are_ignored() {
    let world = World::empty();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' HUP INT; exec \"$0\" put --seconds 2 --capacity 1G --dir .", world::PROGRAM]);
    let mut child = shell.current_dir(world.dir.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while bytes_below(world.dir.path()) < 8 << 20 {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(2));
    }
    for signal in [Signal::HUP, Signal::INT] {
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
