//! Two servers with one identity on one host.

use kaml::{CreateOptions, Device, OpenOptions};
use kaml_nvme::target::{Error, Options, Server};
use std::path::Path;

/// Names the device that the other process serves.
const DEVICE: &str = "KAML_TEST_IDENTITY_DEVICE";

fn serve(device: &Device, change: impl FnOnce(&mut Options)) -> Result<Server, Error> {
    let mut options = Options::for_device(device);
    change(&mut options);
    Server::bind(device, "127.0.0.1:0", options)
}

fn open(path: &Path) -> Device {
    Device::open(path, &OpenOptions::default()).unwrap()
}

/// Goal:   of two devices with one identity a host serves one at a time, and the error names the remedy.
/// Method: a device and its copy, in this process and in another one, under one name and under two; the second is served after the
///         first one ends.
#[test]
fn equal_identities_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (original, copy) = (directory.path().join("original"), directory.path().join("copy"));
    Device::create(&original, &CreateOptions::new(64 << 20)).unwrap().close().unwrap();
    std::fs::copy(&original, &copy).unwrap();
    let (one, two) = (open(&original), open(&copy));
    let first = serve(&one, |_| {}).unwrap();
    for name in [None, Some("nqn.2026-01.org.example:another")] {
        let refused = serve(&two, |options| options.subsystem = name.map_or(options.subsystem.clone(), str::to_owned));
        let error = refused.err().expect("it is a copy");
        assert!(matches!(&error, Error::IdentityInUse { uuid } if *uuid == two.info().uuid), "{error}");
        assert!(error.to_string().contains("kaml identity DEVICE --new"), "{error}");
    }
    two.close().unwrap();
    assert_eq!(elsewhere(&copy), "refused");
    drop(first);
    assert_eq!(elsewhere(&copy), "served");
    serve(&open(&copy), |_| {}).unwrap();
}

/// Goal:   two devices are not served under one subsystem name; a refusal holds nothing.
/// Method: two devices and one name, a short one and the longest; then another name for the second one.
#[test]
fn equal_subsystem_names_are_refused() {
    let device = || Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let (one, two) = (device(), device());
    let long = format!("nqn.2026-01.org.example:{}", "n".repeat(190));
    for name in ["nqn.2026-01.org.example:same", &long] {
        let first = serve(&one, |options| options.subsystem = name.to_owned()).unwrap();
        let error = serve(&two, |options| options.subsystem = name.to_owned()).err().expect("the name is in use");
        assert!(matches!(&error, Error::SubsystemInUse { subsystem } if subsystem == name), "{error}");
        serve(&two, |_| {}).unwrap();
        drop(first);
    }
}

/// What comes of serving a device in a process of its own.
fn elsewhere(path: &Path) -> String {
    let mut other = std::process::Command::new(std::env::current_exe().unwrap());
    other.args(["other_process", "--exact", "--ignored", "--nocapture"]).env(DEVICE, path);
    let output = other.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let found = ["refused", "served"].into_iter().find(|word| text.contains(&format!("<{word}>")));
    found.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr))).to_owned()
}

#[test]
#[ignore = "the other process of `equal_identities_are_refused`"]
fn other_process() {
    let path = std::env::var_os(DEVICE).expect("the other test names the device");
    let device = open(Path::new(&path));
    match serve(&device, |_| {}) {
        Ok(_) => println!("<served>"),
        Err(Error::IdentityInUse { .. }) => println!("<refused>"),
        Err(error) => panic!("{error}"),
    }
    device.close().unwrap();
}
