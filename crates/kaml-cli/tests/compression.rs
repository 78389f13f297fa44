//! Namespaces that compress, on the command line.

mod world;

use serde_json::json;
use world::World;

/// Goal:   compression is set, shown with what it saves, changed, and kept by a salvage and a backup; values come back.
/// Method: a namespace with text; commands one after the other, each in a process of its own.
#[test]
fn namespaces_compress() {
    let world = World::new();
    let created = world.json(&["namespace", "create", "data.kaml", "pages", "--compression", "zstd", "--json"]);
    assert_eq!((&created["compression"], &created["given_bytes"]), (&json!("zstd"), &json!(0)));
    let page = "<p>The same words again and again. ".repeat(60);
    world.ok(&["put", "data.kaml", "pages", "home", &page]);
    assert!(world.ok(&["namespace", "list", "data.kaml"]).contains("bytes, zstd"));
    let info = world.json(&["info", "data.kaml", "--json"]);
    let space = info["namespaces"].as_array().unwrap().iter().find(|space| space["name"] == "pages").unwrap().clone();
    assert_eq!(space["compression"], json!("zstd"));
    let metrics = world.ok(&["info", "data.kaml", "--prometheus"]);
    assert!(metrics.contains("compression=\"zstd\"") && metrics.contains("kaml_namespace_stored_bytes_total"));
    let set = world.json(&["namespace", "set", "data.kaml", "pages", "--compression", "lz4", "--json"]);
    assert_eq!(set["compression"], json!("lz4"));
    world.ok(&["put", "data.kaml", "pages", "other", &page]);

    world.ok(&["salvage", "data.kaml", "--into", "whole.kaml"]);
    world.ok(&["backup", "data.kaml", "data.backup"]);
    world.ok(&["restore", "data.backup", "copy.kaml"]);
    for device in ["data.kaml", "whole.kaml", "copy.kaml"] {
        let spaces = world.json(&["namespace", "list", device, "--json"]);
        let space = spaces.as_array().unwrap().iter().find(|space| space["name"] == "pages").unwrap();
        assert_eq!(space["compression"], json!("lz4"), "{device}");
        for key in ["home", "other"] {
            assert_eq!(world.ok(&["get", device, "pages", key]).trim_end(), page.trim_end(), "{device}");
        }
        world.ok(&["check", device]);
    }
}

/// Goal:   what makes no sense is refused with what to do.
/// Method: a method that does not exist; namespaces that cannot compress.
#[test]
fn wrong_compression_is_refused() {
    let world = World::new();
    let refused = world.run(&["namespace", "create", "data.kaml", "n", "--compression", "gzip"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("none, lz4 or zstd"), "{refused:?}");
    world.ok(&["namespace", "create", "data.kaml", "past", "--versioned"]);
    let refused = world.fails(2, &["namespace", "set", "data.kaml", "past", "--compression", "lz4"]);
    assert!(refused.contains("cannot compress"), "{refused}");
}
