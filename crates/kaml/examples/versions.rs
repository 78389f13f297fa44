//! A namespace that keeps every version: snapshots, history, rollback. `cargo run -p kaml --example versions`

use kaml::{At, CreateOptions, Device, Key, VersionOptions};

fn main() -> Result<(), kaml::Error> {
    let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    let pages = device.ensure_namespace("pages", &VersionOptions::default().into())?;

    pages.put("home", b"draft")?;
    let first = device.snapshot(pages.id())?;
    pages.put("home", b"final")?;

    let home = Key::new(b"home")?;
    let then = device.get_version(pages.id(), home, At::Snapshot(first))?;
    assert_eq!(then.map(|record| record.value).as_deref(), Some(&b"draft"[..]));
    for past in device.history(pages.id(), home, 10)? {
        println!("{past:?}");
    }

    let before = device.roll_back(pages.id(), first)?;
    assert_eq!(pages.get("home")?.as_deref(), Some(&b"draft"[..]));
    device.roll_back(pages.id(), before)?; // undoes it
    assert_eq!(pages.get("home")?.as_deref(), Some(&b"final"[..]));
    Ok(())
}
