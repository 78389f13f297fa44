//! Keys above 16 bytes and ordered namespaces on the command line.

mod world;

use world::{World, end};

/// A key above 16 bytes.
fn long(number: usize) -> String {
    format!("articles/2026/number {number:03}/{}", "x".repeat(number))
}

/// Goal:   long keys are put, read, listed, deleted, exported, imported and salvaged like others, in both kinds of namespaces; an ordered one lists them in
///         their order and within bounds.
/// Method: a hundred keys, put in another order; export to another device and compare; salvage, and compare again.
#[test]
fn long_keys_are_keys() {
    for keys in ["any", "ordered"] {
        let world = World::empty();
        world.ok(&["create", "data.kaml", "--capacity", "64MiB"]);
        world.ok(&["namespace", "create", "data.kaml", "texts", "--keys", keys]);
        for number in (0..100).map(|i| i * 37 % 100) {
            world.ok(&["put", "data.kaml", "texts", &long(number), &format!("value {number}")]);
        }
        world.ok(&["put", "data.kaml", "texts", "short", "value"]);
        assert_eq!(world.ok(&["get", "data.kaml", "texts", &long(7)]), "value 7");
        assert!(world.fails(3, &["get", "data.kaml", "texts", &long(100)]).contains("no key"));
        world.ok(&["delete", "data.kaml", "texts", &long(99), "--must-exist"]);
        assert!(world.fails(3, &["delete", "data.kaml", "texts", &long(99), "--must-exist"]).contains("no key"));
        assert!(
            world.fails(4, &["put", "data.kaml", "texts", &long(1), "x", "--if-absent"]).contains("exists already")
        );
        let sorted = |text: String| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let mut expected: Vec<String> = (0..99).map(long).chain(["short".to_owned()]).collect();
        expected.sort();
        assert_eq!(sorted(world.ok(&["list", "data.kaml", "texts"])), expected, "{keys}");
        let lines = world.ok(&["export", "data.kaml", "-", "--namespace", "texts", "--format", "jsonl"]);
        assert_eq!(lines.lines().count(), 100, "{keys}");
        std::fs::write(world.path("lines.jsonl"), &lines).unwrap();
        world.ok(&["create", "copy.kaml", "--capacity", "64MiB"]);
        world.ok(&["namespace", "create", "copy.kaml", "texts", "--keys", keys]);
        world.ok(&["import", "copy.kaml", "lines.jsonl", "--namespace", "texts"]);
        let again = world.ok(&["export", "copy.kaml", "-", "--namespace", "texts", "--format", "jsonl"]);
        assert_eq!(sorted(again), sorted(lines.clone()), "{keys}");
        world.ok(&["salvage", "copy.kaml", "--into", "salvaged.kaml"]);
        let salvaged = world.ok(&["export", "salvaged.kaml", "-", "--namespace", "texts", "--format", "jsonl"]);
        assert_eq!(sorted(salvaged), sorted(lines), "{keys}");
        world.ok(&["check", "salvaged.kaml"]);
    }
}

/// Goal:   an ordered namespace is listed in order, by prefix, bounds and from the end; another one refuses that with the remedy.
/// Method: a few keys; each flag; a limit.
#[test]
fn ordered_keys_are_listed_in_order() {
    let world = World::empty();
    world.ok(&["create", "data.kaml", "--capacity", "64MiB"]);
    world.ok(&["namespace", "create", "data.kaml", "names", "--keys", "ordered"]);
    for key in ["c", "a/2", "b", "a/1", "a/10", "z"] {
        world.ok(&["put", "data.kaml", "names", key, "x"]);
    }
    let listed = |flags: &[&str]| {
        let out = world.ok(&[&["list", "data.kaml", "names"], flags].concat());
        out.lines().map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(listed(&[]), "a/1 a/10 a/2 b c z");
    assert_eq!(listed(&["--reverse", "--limit", "3"]), "z c b");
    assert_eq!(listed(&["--prefix", "a/"]), "a/1 a/10 a/2");
    assert_eq!(listed(&["--prefix", "a/1", "--reverse"]), "a/10 a/1");
    assert_eq!(listed(&["--from", "a/2", "--to", "c"]), "a/2 b");
    assert_eq!(listed(&["--from", "0x63"]), "c z");
    assert_eq!(listed(&["--from", "z", "--to", "a"]), "");
    world.ok(&["namespace", "create", "data.kaml", "plain"]);
    let refused = world.fails(2, &["list", "data.kaml", "plain", "--prefix", "a"]);
    assert!(refused.contains("--keys ordered"), "{refused}");
    let refused = world.fails(2, &["put", "data.kaml", "names", "", "x"]);
    assert!(refused.contains("a key of 0 bytes"), "{refused}");
    let refused = world.fails(2, &["put", "data.kaml", "plain", &long(5), "x"]);
    assert!(refused.contains("1 to 16 bytes"), "{refused}");
}

/// What counts, lists with values and deletes of a range do, wherever the device is.
fn ranges_at(world: &World, device: &str) {
    world.ok(&["namespace", "create", device, "texts", "--keys", "ordered"]);
    world.ok(&["namespace", "create", device, "plain"]);
    world.ok(&["namespace", "create", device, "past", "--versioned"]);
    for number in (0..40).map(|i| i * 7 % 40) {
        world.ok(&["put", device, "texts", &long(number), &format!("value {number}")]);
        world.ok(&["put", device, "plain", &format!("{number}"), "x"]);
    }
    for value in ["1", "2", "3"] {
        world.ok(&["put", device, "past", "a", value]);
        world.ok(&["put", device, "past", "b", value]);
    }
    world.ok(&["delete", device, "past", "b"]);
    let count = |name: &str, flags: &[&str]| world.ok(&[&["count", device, name], flags].concat());
    assert_eq!(count("texts", &[]), "40\n");
    assert_eq!(count("texts", &["--prefix", "articles/2026/number 01"]), "10\n");
    assert_eq!(count("texts", &["--from", &long(3), "--to", &long(5)]), "2\n");
    assert_eq!(count("texts", &["--from", "z", "--to", "a"]), "0\n");
    assert_eq!(count("plain", &[]), "40\n");
    assert_eq!(count("past", &[]), "1\n");
    let json = world.json(&["count", device, "texts", "--to", &long(7), "--json"]);
    assert_eq!((json["namespace"].as_str(), json["count"].as_u64()), (Some("texts"), Some(7)));
    assert!(world.fails(2, &["count", device, "plain", "--prefix", "1"]).contains("--keys ordered"));
    assert!(world.fails(3, &["count", device, "absent"]).contains("absent"));

    world.ok(&["put", device, "texts", "lines", "one\ntwo"]);
    world.ok(&["put", device, "texts", "nothing", ""]);
    world.ok(&["put", device, "texts", "prefix", "0x12"]);
    let listed = |name: &str, flags: &[&str]| world.ok(&[&["list", device, name, "--values"], flags].concat());
    let expected: String = (10..20).map(|number| format!("{}\tvalue {number}\n", long(number))).collect();
    assert_eq!(listed("texts", &["--prefix", "articles/2026/number 01"]), expected);
    let all: String = (0..40).map(|number| format!("{}\tvalue {number}\n", long(number))).collect();
    assert_eq!(listed("texts", &[]), all + "lines\t0x6f6e650a74776f\nnothing\t\nprefix\t0x30783132\n");
    assert_eq!(listed("texts", &["--reverse", "--limit", "2"]), "prefix\t0x30783132\nnothing\t\n");
    assert_eq!(listed("texts", &["--from", "prefix", "--hex"]), "707265666978\t30783132\n");
    assert_eq!(listed("past", &[]), "a\t3\n");
    let mut plain: Vec<String> = listed("plain", &[]).lines().map(str::to_owned).collect();
    plain.sort();
    let mut numbers: Vec<String> = (0..40).map(|number| format!("{number}\tx")).collect();
    numbers.sort();
    assert_eq!(plain, numbers);
    let json = world.json(&["list", device, "texts", "--values", "--json", "--from", "lines", "--limit", "1"]);
    assert_eq!((json["key"].as_str(), json["value"].as_str()), (Some("lines"), Some("one\ntwo")));

    let below = ["delete", device, "texts", "--prefix", "articles/2026/number 01"];
    assert!(world.fails(2, &below).contains("keys in this range: 10; --yes deletes them"));
    assert_eq!(count("texts", &[]), "43\n");
    assert_eq!(world.ok(&[&below[..], &["--yes"]].concat()), "deleted: 10\n");
    assert_eq!(world.ok(&[&below[..], &["--yes"]].concat()), "deleted: 0\n");
    assert!(world.fails(3, &[&below[..], &["--yes", "--must-exist"]].concat()).contains("no key in this range"));
    let json = world.json(&["delete", device, "texts", "--from", &long(0), "--to", &long(10), "--yes", "--json"]);
    assert_eq!(json["deleted"].as_u64(), Some(10));
    assert_eq!(count("texts", &[]), "23\n");
    for wrong in [
        &["delete", device, "texts"][..],
        &["delete", device, "texts", "lines", "--prefix", "l", "--yes"],
        &["delete", device, "texts", "lines", "--yes"],
        &["delete", device, "plain", "--prefix", "1", "--yes"],
        &["delete", device, "texts", "--prefix", "l", "--to", "m", "--yes"],
        &["delete", device, "texts", "--hex", "--prefix", "l", "--yes"],
    ] {
        assert_eq!(world.run(wrong).status.code(), Some(2), "{wrong:?}");
    }
    assert_eq!(count("texts", &[]), "23\n");
}

/// Goal:   ranges are counted, listed with their values, and deleted when that is confirmed; mistakes change nothing.
/// Method: all flags, on a file and on the same device when it is served.
#[test]
fn ranges_are_counted_listed_and_deleted() {
    let world = World::empty();
    world.ok(&["create", "data.kaml", "--capacity", "64MiB"]);
    ranges_at(&world, "data.kaml");
    let world = World::empty();
    world.ok(&["create", "data.kaml", "--capacity", "64MiB"]);
    let (mut serving, url) = world.serve();
    ranges_at(&world, &url);
    end(&mut serving);
}

/// Goal:   a served device takes long keys and ranges as the file itself does.
/// Method: thirty long keys over the network: put, read, listed within bounds, deleted and exported, and compared with the file after the server ends.
#[test]
fn a_served_device_has_long_keys_and_ranges() {
    for keys in ["any", "ordered"] {
        let world = World::empty();
        world.ok(&["create", "data.kaml", "--capacity", "64MiB"]);
        let (mut serving, url) = world.serve();
        let url = url.as_str();
        world.ok(&["namespace", "create", url, "texts", "--keys", keys]);
        for number in (0..30).map(|i| i * 7 % 30) {
            world.ok(&["put", url, "texts", &long(number), &format!("value {number}")]);
        }
        assert_eq!(world.ok(&["get", url, "texts", &long(7)]), "value 7");
        assert!(world.fails(3, &["get", url, "texts", &long(30)]).contains("no key"));
        world.ok(&["delete", url, "texts", &long(29), "--must-exist"]);
        assert!(world.fails(4, &["put", url, "texts", &long(1), "x", "--if-absent"]).contains("exists already"));
        let listed = |flags: &[&str]| {
            let out = world.ok(&[&["list", url, "texts"], flags].concat());
            out.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let expected: Vec<String> = (0..29).map(long).collect();
        let mut all = listed(&[]);
        if keys == "ordered" {
            assert_eq!(all, expected);
            assert_eq!(listed(&["--reverse", "--limit", "2"]), [long(28), long(27)]);
            assert_eq!(listed(&["--prefix", "articles/2026/number 01"]), expected[10..20]);
            assert_eq!(listed(&["--from", &long(3), "--to", &long(5)]), expected[3..5]);
        } else {
            let refused = world.fails(2, &["list", url, "texts", "--prefix", "a"]);
            assert!(refused.contains("--keys ordered"), "{refused}");
        }
        all.sort();
        assert_eq!(all, expected);
        let exported = world.ok(&["export", url, "-", "--namespace", "texts", "--format", "jsonl"]);
        end(&mut serving);
        assert_eq!(exported, world.ok(&["export", "data.kaml", "-", "--namespace", "texts", "--format", "jsonl"]));
    }
}
