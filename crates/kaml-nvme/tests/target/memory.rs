//! What hosts can make a target take of memory.

use crate::world::{World, key};
use kaml::{CreateOptions, Device, NamespaceOptions, VersionOptions};
use kaml_nvme::host::{KeyValue, Wait};

/// The most memory that this process has had so far.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Goal:   the memory of a target bounds what reads have under way whose hosts have room for less than the value.
/// Method: 1024 Retrieves of 4 MiB into nothing, and into 4 KiB, over eight queues, then lists of 64 such keys and versions: with
///         memory for 16 MiB the process takes no more than 96 MiB more, where the values of one round of the target's loop are
///         twice as long. In a process of its own, whose memory other tests do not use.
#[test]
fn reads_into_short_buffers_are_bounded() {
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    let output = alone.args(["memory::short_buffers", "--exact", "--ignored", "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "reads_into_short_buffers_are_bounded runs it in a process of its own"]
fn short_buffers() {
    const VALUE: usize = 4 << 20;
    let options = CreateOptions { block_bytes: Some(8 << 20), ..CreateOptions::new(512 << 20) };
    let world = World::serving(Device::in_memory(&options).unwrap(), |options| options.memory_bytes = 16 << 20);
    let nsid = world.namespace("a");
    let versions = NamespaceOptions { versions: Some(VersionOptions::default()), ..NamespaceOptions::default() };
    let past = world.device.create_namespace("past", &versions).unwrap();
    let value: Vec<u8> = (0..VALUE).map(|at| (at / 4096) as u8).collect();
    world.device.put(nsid, key(b"k"), &value).unwrap();
    world.device.put(past, key(b"k"), &value[..100_000]).unwrap();
    let host = world.host_with(|options| (options.queues, options.depth) = (8, 128));
    let before = peak_bytes();
    for room in [0, 4096] {
        for queue in host.queues() {
            let space = KeyValue::new(queue, nsid);
            while queue.enqueue(space.retrieving(&key(b"k"), room), &[], room).unwrap().is_some() {}
            queue.send().unwrap();
        }
        for queue in host.queues() {
            let mut answers = Vec::new();
            while answers.len() < 128 {
                queue.poll(Wait::Yes, &mut answers).unwrap();
            }
            for (_, answer) in answers {
                assert_eq!(answer.result, VALUE as u64);
                assert!(answer.data == value[..room]);
            }
        }
    }
    let grown = peak_bytes() - before;
    assert!(grown < 96 << 20, "{} MiB more", grown >> 20);
    std::thread::scope(|scope| {
        for queue in host.queues() {
            scope.spawn(|| {
                let space = KeyValue::new(queue, nsid);
                let list = space.name_keys(&[(nsid, key(b"k")); 64]).unwrap();
                for room in [4096, VALUE + 12] {
                    let found = space.retrieve_named(list, 0, room).unwrap();
                    assert_eq!((found.len(), found[0].value_bytes), (1, VALUE));
                    assert!(found[0].value.as_ref().is_none_or(|found| *found == value));
                }
                let found = KeyValue::new(queue, past).retrieve(&key(b"k"), 4).unwrap().unwrap();
                assert_eq!(found, (vec![0; 4], 100_000));
            });
        }
    });
    let grown = peak_bytes() - before;
    assert!(grown < 192 << 20, "{} MiB more, the host's own buffers of 64 MiB included", grown >> 20);
}
