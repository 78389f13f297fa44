//! The names by which hosts know a device.

mod world;

use std::fs;
use world::World;

/// Goal:   a copy of a device gets names that the original does not have, and keeps all that is stored; the original keeps its names.
///         A device that is in use is refused.
/// Method: a device of each kind of namespace, copied after it was closed and after its user was killed; names as text and as JSON.
#[test]
fn copies_get_other_names() {
    let world = World::new();
    world.ok(&["namespace", "create", "data.kaml", "past", "--versioned"]);
    world.ok(&["put", "data.kaml", "notes", "hello", "world"]);
    world.ok(&["put", "data.kaml", "past", "hello", "world"]);
    let names = |device: &str| world.json(&["identity", device, "--json"]);
    let original = names("data.kaml");
    for copy in ["closed.kaml", "killed.kaml"] {
        if copy == "killed.kaml" {
            let (mut server, _) = world.serve();
            world.fails(1, &["identity", "data.kaml", "--new"]);
            server.kill().unwrap();
            server.wait().unwrap();
        }
        fs::copy(world.path("data.kaml"), world.path(copy)).unwrap();
        assert_eq!(names(copy), original);
        let renewed = world.json(&["identity", copy, "--new", "--json"]);
        assert_eq!(names(copy), renewed);
        for name in ["uuid", "serial", "subsystem"] {
            assert_ne!(renewed[name], original[name], "{name}");
        }
        for (new, old) in
            renewed["namespaces"].as_array().unwrap().iter().zip(original["namespaces"].as_array().unwrap())
        {
            assert_eq!((&new["id"], &new["name"]), (&old["id"], &old["name"]));
            assert!(new["nguid"] != old["nguid"] && new["uuid"] != old["uuid"], "{new}");
        }
        let text = world.ok(&["identity", copy]);
        assert!(text.contains(renewed["serial"].as_str().unwrap()), "{text}");
        let again = world.json(&["identity", copy, "--new", "--json"]);
        assert_ne!(again["uuid"], renewed["uuid"]);
        for namespace in ["notes", "past"] {
            assert_eq!(world.ok(&["get", copy, namespace, "hello"]).trim_end(), "world");
        }
        assert!(world.ok(&["check", copy]).contains(" 0 problems"));
        assert_eq!(names("data.kaml"), original);
    }
}
