//! One thread with many commands in flight: `cargo run --release -p kaml --example event_loop`

use kaml::{CreateOptions, Device, NamespaceOptions};

const RECORDS: u64 = 10_000;
const DEPTH: usize = 128;

fn main() -> Result<(), kaml::Error> {
    let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    let namespace = device.ensure_namespace("records", &NamespaceOptions::default())?.id();
    let mut queue = device.queue(DEPTH as u32);
    let (mut next, mut done, mut answers) = (0, 0, Vec::new());
    while done < RECORDS {
        while next < RECORDS && queue.in_flight() < DEPTH {
            queue.put(next, namespace, next, &next.to_le_bytes())?; // the token names the command
            next += 1;
        }
        queue.poll(true, &mut answers); // sleeps until something has completed
        for answer in answers.drain(..) {
            answer.result?;
            done += 1;
        }
    }
    drop(queue);
    println!("{done} records stored");
    Ok(())
}
