//! Commands as futures under tokio: `cargo run -p kaml --features async --example async`

use kaml::{AsyncDevice, CreateOptions, Device, NamespaceOptions};

const TASKS: u64 = 100;
const RECORDS: u64 = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    let users = device.create_namespace("users", &NamespaceOptions::default())?;
    let commands = AsyncDevice::new(&device, 256)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let commands = commands.clone();
                tokio::spawn(async move {
                    for key in task * RECORDS..(task + 1) * RECORDS {
                        commands.put(users, key, &key.to_le_bytes()).await?; // durable
                    }
                    Ok::<(), kaml::Error>(())
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        let last = commands.get(users, TASKS * RECORDS - 1).await?;
        println!("{} records stored, the last is {last:?}", TASKS * RECORDS);
        Ok(())
    })
}
