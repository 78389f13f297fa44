//! The example of three nodes.

use std::process::Command;

/// Goal:   the example does what it states: a killed leader catches up, and all nodes have the same.
/// Method: run the program that cargo built beside this test.
#[test]
fn three_nodes_replicate() {
    let mut program = std::env::current_exe().expect("a path");
    program.pop(); // deps
    program.pop();
    program.push("examples/three_nodes");
    let output = Command::new(program).output().expect("it is built with the tests");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.ends_with("all nodes have the same 1000 records\n"), "{text}");
}
