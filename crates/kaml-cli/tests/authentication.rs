//! A served device that requires authentication, as an operator sets it up.

mod world;

use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use world::{World, end};

const HOST: &str = "nqn.2026-11.example:host";
const SECRET: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const OTHER: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

fn private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

fn has(log: &Path, parts: &[&str]) -> bool {
    let said = fs::read_to_string(log).unwrap();
    said.lines().any(|line| parts.iter().all(|part| line.contains(part)))
}

/// Goal:   only hosts with the right secret read a served device; each of the others learns what to do, and the operator sees who it was. No
///         secret is printed.
/// Method: without a secret, with another one, with the right one, in both directions, with the wrong one of the target; then the file changes
///         and SIGHUP comes, with a mistake first.
#[test]
fn a_served_device_knows_its_hosts() {
    let world = World::new();
    let [hosts, right, other, log] = ["hosts.toml", "right", "other", "log"].map(|name| world.path(name));
    private(&right, SECRET);
    private(&other, OTHER);
    let entry = |secret: &str| {
        format!(
            "hash = \"sha384\"\n[[host]]\nnqn = \"{HOST}\"\nsecret-file = \"{secret}\"\ncontroller-secret = \"{OTHER}\"\n"
        )
    };
    private(&hosts, &entry("right"));
    let arguments = ["data.kaml", "--hosts", "hosts.toml", "--log-level", "info"];
    let (mut serving, url) = world.serve_saying(&arguments, File::create(&log).unwrap().into());
    let put = |flags: &[&'static str]| -> Vec<&str> {
        [&["put", &url, "notes", "key", "value", "--host-nqn", HOST], flags].concat()
    };
    let secret = ["--dhchap-secret-file", "right"];

    let said = world.fails(1, &put(&[]));
    assert!(
        said.contains("requires authentication") && said.contains("--dhchap-secret-file") && said.contains(HOST),
        "{said}"
    );
    assert!(world.fails(1, &put(&["--dhchap-secret-file", "other"])).contains("refuses this host"));
    world.ok(&put(&secret));
    world.ok(&put(&[&secret[..], &["--dhchap-ctrl-secret-file", "other"]].concat()));
    let said = world.fails(1, &put(&[&secret[..], &["--dhchap-ctrl-secret-file", "right"]].concat()));
    assert!(said.contains("this host refuses it"), "{said}");
    assert!(world.fails(1, &["list", &url, "notes"]).contains("invalid host"), "another name");
    assert!(has(&log, &["WARN", "could not be authenticated", HOST, "127.0.0.1:"]), "{:?}", fs::read_to_string(&log));
    assert!(has(&log, &["INFO", "a host has authenticated itself", HOST]));

    let reload = || kill_process(Pid::from_child(&serving), Signal::HUP).unwrap();
    let await_line = |parts: &[&str]| {
        let until = Instant::now() + Duration::from_secs(30);
        while !has(&log, parts) {
            assert!(Instant::now() < until, "{}", fs::read_to_string(&log).unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    private(&hosts, "[[host]]\nname = \"x\"\n");
    reload();
    await_line(&["ERROR", "hosts that may connect are those of before", "line 2"]);
    world.ok(&put(&secret));
    private(&hosts, &entry("other"));
    reload();
    await_line(&["the hosts that may connect have been changed"]);
    assert!(world.fails(1, &put(&secret)).contains("refuses this host"));
    world.ok(&put(&["--dhchap-secret-file", "other"]));
    end(&mut serving);
    let said = fs::read_to_string(&log).unwrap();
    assert!(!said.contains("AAECAwQF") && !said.contains("ia6zGodO"), "{said}");
}

/// Goal:   files with secrets that others may read, and those with mistakes, are refused with what to do, and without their content.
#[test]
fn files_with_secrets_are_checked() {
    let world = World::new();
    let hosts = world.path("hosts.toml");
    let refused = |text: &str| {
        private(&hosts, text);
        world.fails(2, &["serve", "data.kaml", "--listen", "127.0.0.1:0", "--hosts", "hosts.toml"])
    };
    let host = format!("[[host]]\nnqn = \"{HOST}\"\n");
    let mistyped = SECRET.replace("AAEC", "AAED");
    let said = refused(&format!("{host}secret = \"{mistyped}\"\n"));
    assert!(said.contains("checksum") && said.contains(HOST) && !said.contains("AAED"), "{said}");
    let said = refused(&format!("{host}secret = \"{SECRET}\n"));
    assert!(said.contains("line 3") && !said.contains("AAEC"), "{said}");
    assert!(refused(&format!("{host}{host}")).contains("twice"));
    private(&hosts, &format!("{host}secret-file = \"missing\"\n"));
    let said = world.fails(1, &["serve", "data.kaml", "--listen", "127.0.0.1:0", "--hosts", "hosts.toml"]);
    assert!(said.contains("missing: No such file"), "{said}");
    assert!(refused(&format!("{host}controller-secret = \"{SECRET}\"\n")).contains("without a secret of the host"));
    assert!(refused("group = \"ffdhe1024\"\n").contains("ffdhe2048"));
    assert!(refused("[[host]]\nnqn = \"name\"\n").contains("qualified name"));
    private(&hosts, &host);
    fs::set_permissions(&hosts, Permissions::from_mode(0o640)).unwrap();
    let said = world.fails(2, &["serve", "data.kaml", "--listen", "127.0.0.1:0", "--hosts", "hosts.toml"]);
    assert!(said.contains("mode 640") && said.contains("chmod 600"), "{said}");
    let secret = world.path("secret");
    fs::write(&secret, SECRET).unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    let url = "nvme+tcp://127.0.0.1:1/nqn.2026-11.example:none";
    let said = world.fails(2, &["list", url, "notes", "--dhchap-secret-file", "secret"]);
    assert!(said.contains("chmod 600") && !said.contains("AAEC"), "{said}");
}

/// Goal:   a host sees and changes what the file gives it, and rights change with SIGHUP; without the file nobody manages namespaces.
/// Method: a host that may do everything, one that may read one namespace and not see another one; commands of `kaml` by both.
#[test]
fn hosts_have_rights() {
    let world = World::new();
    world.ok(&["namespace", "create", "data.kaml", "hidden"]);
    world.ok(&["put", "data.kaml", "notes", "key", "value"]);
    let [hosts, log] = ["hosts.toml", "log"].map(|name| world.path(name));
    let file = |notes: &str| {
        let owner = "[[host]]\nnqn = \"nqn.2026-11.example:owner\"\nnamespaces = { \"*\" = \"administer\" }\ncreate-namespaces = true\n";
        format!("{owner}[[host]]\nnqn = \"{HOST}\"\nnamespaces = {{ \"*\" = \"none\", notes = \"{notes}\" }}\n")
    };
    private(&hosts, &file("read"));
    let arguments = ["data.kaml", "--hosts", "hosts.toml", "--log-level", "info"];
    let (mut serving, url) = world.serve_saying(&arguments, File::create(&log).unwrap().into());
    let limited = ["--host-nqn", HOST];
    let owner = ["--host-nqn", "nqn.2026-11.example:owner"];
    let with = |arguments: &[&'static str], host: &[&'static str]| -> Vec<String> {
        let fill = |word: &&str| if *word == "URL" { url.clone() } else { (*word).to_owned() };
        arguments.iter().chain(host).map(fill).collect()
    };
    let ok = |arguments: &[&'static str], host: &[&'static str]| {
        let all = with(arguments, host);
        world.ok(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let fails = |arguments: &[&'static str], host: &[&'static str]| {
        let all = with(arguments, host);
        let output = world.run(&all.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(!output.status.success(), "{all:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let listed = ok(&["namespace", "list", "URL"], &limited);
    assert!(listed.contains("notes") && !listed.contains("hidden"), "{listed}");
    assert_eq!(ok(&["get", "URL", "notes", "key"], &limited), "value");
    let said = fails(&["put", "URL", "notes", "key", "other"], &limited);
    assert!(said.contains("write protected"), "{said}");
    assert!(fails(&["get", "URL", "hidden", "key"], &limited).contains("hidden"));
    let said = fails(&["namespace", "create", "URL", "more"], &limited);
    assert!(said.contains("operation denied"), "{said}");
    ok(&["namespace", "create", "URL", "more"], &owner);
    ok(&["put", "URL", "hidden", "key", "mine"], &owner);
    private(&hosts, &file("write"));
    kill_process(Pid::from_child(&serving), Signal::HUP).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while !has(&log, &["the hosts that may connect have been changed"]) {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    ok(&["put", "URL", "notes", "key", "other"], &limited);
    ok(&["namespace", "delete", "URL", "more"], &owner);
    end(&mut serving);
}
