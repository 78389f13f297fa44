//! Several records at once, all or none, some under a condition: `cargo run -p kaml --example batch`

use kaml::{Batch, CreateOptions, Device, NamespaceOptions};

fn main() -> Result<(), kaml::Error> {
    let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    let users = device.ensure_namespace("users", &NamespaceOptions::default())?;
    let names = device.ensure_namespace("names", &NamespaceOptions::default())?;

    // A name is given once: the second batch is refused whole.
    for (user, text) in [(1u64, "first"), (2, "second")] {
        let mut batch = Batch::new();
        batch.put(users.id(), user, text.as_bytes()).put_if_absent(
            names.id(),
            kaml::Key::new(b"ada")?,
            &user.to_le_bytes(),
        );
        match device.write(&batch) {
            Ok(()) => println!("user {user} has the name"),
            Err(error) if error.is_conflict() => println!("user {user} does not get it: {error}"),
            Err(error) => return Err(error),
        }
    }
    assert!(users.exists(1u64)? && !users.exists(2u64)?);

    // Batches that are submitted become durable in this order, and one wait covers them all.
    let mut last = None;
    for user in 3..100u64 {
        let mut batch = Batch::new();
        batch.put(users.id(), user, b"guest");
        last = Some(device.submit(&batch)?);
    }
    last.map_or(Ok(()), |last| last.wait())
}
