//! The shortest program: `cargo run -p kaml --example basic`. It can be run again and again.

use kaml::{Batch, CreateOptions, Device, Key, NamespaceOptions};

fn main() -> Result<(), kaml::Error> {
    let device = Device::open_or_create("first.kaml", &CreateOptions::new(64 << 20))?;
    let users = device.ensure_namespace("users", &NamespaceOptions::default())?;
    let counts = device.ensure_namespace("counts", &NamespaceOptions::default())?;

    let mut batch = Batch::new();
    batch.put(users.id(), Key::new(b"ada")?, b"Ada Lovelace").put(counts.id(), Key::new(b"users")?, b"1");
    device.write(&batch)?; // both or none, and durable

    assert_eq!(users.get("ada")?.as_deref(), Some(&b"Ada Lovelace"[..]));
    Ok(())
}
