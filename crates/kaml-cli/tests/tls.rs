//! A served device whose connections are encrypted, as an operator sets it up.

#![cfg(feature = "tls")]

mod world;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use world::{World, end};

const HOST: &str = "nqn.psk-test-host";
const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const OTHER: &str = "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const KEY_BYTES: &str = "5512dbb6737d0106f65975b773dfb011ffc344bcf442e2dd6d8bc4870b5d5b03";

fn private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

fn has(log: &Path, parts: &[&str]) -> bool {
    let said = fs::read_to_string(log).unwrap();
    said.lines().any(|line| parts.iter().all(|part| line.contains(part)))
}

/// Two listeners of one device, of which the second one requires TLS: one host has a key, the other one has none.
fn world() -> World {
    let world = World::new();
    private(&world.path("right"), KEY);
    private(&world.path("other"), OTHER);
    let hosts = format!(
        "[[host]]\nnqn = \"{HOST}\"\ntls-key-file = \"right\"\n[[host]]\nnqn = \"nqn.2026-11.example:plain\"\n"
    );
    private(&world.path("hosts.toml"), &hosts);
    world
}

/// Goal:   hosts with the key read a served device, all others learn what to do, and the operator sees who it was. No key is printed.
#[test]
fn connections_are_encrypted() {
    let world = world();
    let log = world.path("log");
    // No other test on this machine has a subsystem of this name.
    let subsystem = format!("nqn.2026-11.example:tls-{}", std::process::id());
    let arguments = [
        "data.kaml",
        "--hosts",
        "hosts.toml",
        "--subsystem",
        &subsystem,
        "--listen",
        "127.0.0.1:0,tls=required",
        "--log-level",
        "info",
    ];
    let mut serve = world.command(&[&["serve", "--listen", "127.0.0.1:0", "--json"], &arguments[..]].concat());
    let mut serving = serve.stdout(Stdio::piped()).stderr(File::create(&log).unwrap()).spawn().unwrap();
    let mut stdout = std::io::BufReader::new(serving.stdout.take().unwrap());
    let mut said = String::new();
    while serde_json::from_str::<serde_json::Value>(&said).is_err() {
        assert_ne!(std::io::BufRead::read_line(&mut stdout, &mut said).unwrap(), 0, "it ended: {said}");
    }
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let plain = format!("nvme+tcp://{}/{subsystem}", said["address"].as_str().unwrap());
    let address = said["more_addresses"][0].as_str().unwrap();
    let tls = format!("nvme+tcp://{address}/{subsystem}");
    let as_host = |url: &str, flags: &[&str]| -> Vec<String> {
        let all = [&["put", url, "notes", "key", "value", "--host-nqn", HOST], flags].concat();
        all.into_iter().map(str::to_owned).collect()
    };
    let ok = |url: &str, flags: &[&str]| {
        world.ok(&as_host(url, flags).iter().map(String::as_str).collect::<Vec<_>>());
    };
    let fails =
        |url: &str, flags: &[&str]| world.fails(1, &as_host(url, flags).iter().map(String::as_str).collect::<Vec<_>>());
    ok(&tls, &["--tls-key-file", "right"]);
    ok(&tls, &["--tls-key-file", "right", "--tls-identity", "0"]);
    let said = fails(&tls, &["--tls-key-file", "other"]);
    assert!(said.contains("does not accept the TLS key") && said.contains(HOST), "{said}");
    let said = fails(&tls, &[]);
    assert!(said.contains("closed by the target") && said.contains("--tls-key-file"), "{said}");
    let said = fails(&plain, &["--tls-key-file", "right"]);
    assert!(said.contains("does not use TLS at this address"), "{said}");
    assert!(fails(&plain, &[]).contains("invalid host"), "it has a key");
    world.ok(&["put", &plain, "notes", "key", "value", "--host-nqn", "nqn.2026-11.example:plain"]);
    for parts in [
        &["WARN", HOST, "has another TLS key", "127.0.0.1:"][..],
        &["WARN", "it does not use TLS", "127.0.0.1:"],
        &["WARN", "the host begins TLS, and the listener does not use it", "127.0.0.1:"],
        &["WARN", HOST, "its connection is not encrypted", "127.0.0.1:"],
    ] {
        assert!(has(&log, parts), "{parts:?}: {}", fs::read_to_string(&log).unwrap());
    }
    openssl_connects(address, &subsystem);
    end(&mut serving);
    let said = fs::read_to_string(&log).unwrap();
    assert!(!said.contains("VRLbtnN9"), "{said}");
}

/// HKDF of OpenSSL's program, with SHA-256, for a label and a context of TLS; the key and the result as hexadecimal digits.
fn derive(key: &str, label: &str, context: &str) -> String {
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let info = format!("0020{:02x}{}{:02x}{}", label.len(), hex(label), context.len(), hex(context));
    let (key, info) = (format!("hexkey:{key}"), format!("hexinfo:{info}"));
    let options = ["-keylen", "32", "-kdfopt", "digest:SHA256", "-kdfopt", &key, "-kdfopt", &info, "HKDF"];
    let output = Command::new("openssl").arg("kdf").args(options).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().replace(':', "").to_lowercase()
}

/// Goal:   OpenSSL's own client gets in with a key that OpenSSL's program has derived, and is greeted; with another one it is not.
fn openssl_connects(address: &str, subsystem: &str) {
    if Command::new("openssl").arg("version").output().is_err() {
        return eprintln!("not tested: there is no openssl");
    }
    let identity = format!("NVMe0R01 {HOST} {subsystem}");
    let psk = derive(&derive(KEY_BYTES, "tls13 HostNQN", HOST), "tls13 nvme-tls-psk", &identity);
    let other = derive(KEY_BYTES, "tls13 nvme-tls-psk", &identity);
    let mut request = vec![0u8; 128];
    (request[2], request[4]) = (128, 128);
    for (psk, gets_in) in [(psk, true), (other, false)] {
        let arguments =
            ["s_client", "-quiet", "-tls1_3", "-connect", address, "-psk_identity", &identity, "-psk", &psk];
        let mut client = Command::new("openssl");
        client.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = client.spawn().unwrap();
        let mut stdin = client.stdin.take().unwrap();
        // It may have ended before.
        let _ = std::io::Write::write_all(&mut stdin, &request);
        let mut response = [0; 128];
        let read = std::io::Read::read_exact(&mut client.stdout.take().unwrap(), &mut response);
        assert_eq!(read.is_ok(), gets_in, "{psk}");
        assert_eq!(response[..5] == [1, 0, 128, 0, 128], gets_in, "an Initialize Connection Response");
        drop(stdin);
        client.kill().unwrap();
        client.wait().unwrap();
    }
}

/// Goal:   files with keys, and options that do not fit together, are refused with what to do, and without their content.
#[test]
fn options_are_checked() {
    let world = world();
    let refused = |arguments: &[&str]| world.fails(2, &[&["serve", "data.kaml", "--check"], arguments].concat());
    let required = ["--listen", "127.0.0.1:0,tls=required"];
    world.ok(&[&["serve", "data.kaml", "--check", "--hosts", "hosts.toml"], &required[..]].concat());
    assert!(refused(&required).contains("no host has a TLS key"));
    assert!(refused(&["--hosts", "hosts.toml"]).contains("no listener uses TLS"));
    let said = refused(&["--listen", "127.0.0.1:0,tls=yes"]);
    assert!(said.contains("\"tls=yes\" is no option") && said.contains("tls=required"), "{said}");
    let hosts = |text: &str| {
        private(&world.path("hosts.toml"), &format!("[[host]]\nnqn = \"{HOST}\"\n{text}\n"));
        refused(&[&["--hosts", "hosts.toml"], &required[..]].concat())
    };
    let said = hosts(&format!("tls-key = \"{}\"", KEY.replace("VRL", "VRM")));
    assert!(said.contains("checksum") && said.contains(HOST) && !said.contains("VRM"), "{said}");
    assert!(hosts(&format!("tls-key = \"{KEY}\"\ntls-key-file = \"right\"")).contains("exclude each other"));
    assert!(hosts(&format!("tls-key = {KEY}")).contains("line 3"));
    fs::set_permissions(world.path("right"), Permissions::from_mode(0o644)).unwrap();
    assert!(hosts("tls-key-file = \"right\"").contains("chmod 600"));
    let url = "nvme+tcp://127.0.0.1:1/nqn.2026-11.example:none";
    let said = world.fails(2, &["list", url, "notes", "--tls-key-file", "right"]);
    assert!(said.contains("chmod 600") && !said.contains("VRL"), "{said}");
    let said = world.run(&["list", url, "notes", "--tls-identity", "0"]);
    assert_eq!(said.status.code(), Some(2), "an identity without a key");
    let config = "[[device]]\npath = \"data.kaml\"\nlisten = [\"127.0.0.1:0,tls=required\"]\nhosts = \"hosts.toml\"\n";
    fs::write(world.path("serve.toml"), config).unwrap();
    private(&world.path("hosts.toml"), &format!("[[host]]\nnqn = \"{HOST}\"\ntls-key = \"{KEY}\"\n"));
    world.ok(&["serve", "--config", "serve.toml", "--check"]);
}
