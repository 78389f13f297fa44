//! Devices that another process has open: which process it is, and waiting for it.

mod world;

use std::process::Stdio;
use world::{World, end};

/// Goal:   commands that wait for a device all succeed, however many need it at the same time.
/// Method: 30 puts at once, and an exclusive command among them; then everything exists.
#[test]
fn commands_wait_for_each_other() {
    let world = World::new();
    let mut children = Vec::new();
    for number in 0..30 {
        let (key, wait) = (number.to_string(), if number % 2 == 0 { "--wait" } else { "--wait=120" });
        let mut put = world.command(&["put", wait, "data.kaml", "notes", &key, "value"]);
        children.push(put.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    }
    world.ok(&["identity", "data.kaml", "--new", "--wait=120"]);
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(world.ok(&["list", "data.kaml", "notes"]).lines().count(), 30);
}

/// Goal:   a command that does not wait, or not long enough, names the process that has the device, and what to do.
/// Method: an import that waits for its input holds the device; a put, a check, a change of identity and a `create`, all of which it
///         keeps from the device; the same with a target, which is used by the URL that is named.
#[test]
fn holders_are_named() {
    let world = World::new();
    let mut import = world.command(&["import", "--wait", "data.kaml", "-", "--namespace", "notes"]);
    let mut holder = import.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let name = format!("in use by process {} (kaml)", holder.id());
    while world.run(&["info", "data.kaml"]).status.success() {
        // The import gets its turn between two looks.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let commands: [&[&str]; 4] = [
        &["put", "data.kaml", "notes", "a", "1"],
        &["check", "data.kaml"],
        &["identity", "data.kaml", "--new"],
        &["put", "data.kaml", "notes", "a", "1", "--wait=1"],
    ];
    for command in commands {
        let complaint = world.fails(1, command);
        assert!(complaint.contains(&name) && complaint.contains("--wait"), "{complaint}");
    }
    let complaint = world.fails(1, &["create", "data.kaml", "--capacity", "64M", "--force"]);
    assert!(complaint.contains(&name) && !complaint.contains("--wait"), "{complaint}");
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());

    let (mut serving, url) = world.serve();
    let complaint = world.fails(1, &["put", "--if-absent", "data.kaml", "notes", "a", "1"]);
    let name = format!("in use by process {} (kaml), which serves", serving.id());
    let expected = format!("{name} it: `kaml put --if-absent {url} ...` works meanwhile");
    assert!(complaint.contains(&expected), "{complaint}");
    world.ok(&["put", "--if-absent", &url, "notes", "a", "1"]);
    let complaint = world.fails(1, &["check", "data.kaml"]);
    assert!(
        complaint.contains(&format!("{name} at {url}; this command works on the file or disk alone")),
        "{complaint}"
    );
    end(&mut serving);
    world.ok(&["put", "data.kaml", "notes", "a", "1"]);
}
