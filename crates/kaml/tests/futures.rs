//! Commands as futures, under tokio.

use kaml::{AsyncDevice, Batch, CreateOptions, Device, Error, NamespaceOptions};
use std::sync::Arc;

fn device() -> (Device, u32) {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let space = device.create_namespace("n", &NamespaceOptions::default()).unwrap();
    (device, space)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap()
}

/// Goal:   commands of many tasks complete with their own results, more of them than are executed at a time.
/// Method: tasks that put, read, replace and delete their own records, with a depth of 4, and one of 200.
#[test]
fn tasks_get_their_own_results() {
    for depth in [4, 200] {
        let (device, space) = device();
        let commands = AsyncDevice::new(&device, depth).unwrap();
        runtime().block_on(async {
            let tasks: Vec<_> = (0..100u64)
                .map(|task| {
                    let commands = commands.clone();
                    tokio::spawn(async move {
                        for turn in 0..20u64 {
                            let value = [task, turn].map(u64::to_le_bytes).concat();
                            commands.put(space, task, &value).await.unwrap();
                            assert_eq!(commands.get(space, task).await.unwrap().as_deref(), Some(&value[..]));
                        }
                        commands.delete(space, task).await.unwrap();
                        assert!(commands.get(space, task).await.unwrap().is_none());
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        drop(commands);
        assert_eq!(device.list(space, None, 10).unwrap().keys, []);
        device.close().unwrap();
    }
}

/// Goal:   a command is executed without anybody polling its future; a refusal is the future's result; the loop outlives both.
/// Method: futures that are dropped, a condition that does not hold, a namespace that does not exist, a value of 100 KB.
#[test]
fn dropped_futures_and_refusals() {
    let (device, space) = device();
    let commands = AsyncDevice::new(&device, 8).unwrap();
    for key in 0..50u64 {
        drop(commands.put(space, key, b"dropped"));
    }
    runtime().block_on(async {
        let mut batch = Batch::new();
        batch.put_if_absent(space, 7u64, b"again");
        assert!(matches!(commands.write(batch).await, Err(Error::Conflict { present: true, .. })));
        assert!(matches!(commands.get(99, 7u64).await, Err(Error::UnknownNamespace(99))));
        commands.put(space, 100u64, &[7; 100_000]).await.unwrap();
        assert_eq!(commands.get(space, 100u64).await.unwrap().map(|value| value.len()), Some(100_000));
    });
    drop(commands);
    assert!((0..50u64).all(|key| device.exists(space, key).unwrap()));
    device.close().unwrap();
}

/// Goal:   a command that arrives while the loop waits for another one does not wait for that.
/// Method: threads that start commands at random moments while others are in flight; all complete.
#[test]
fn commands_arrive_while_the_loop_sleeps() {
    let (device, space) = device();
    let commands = Arc::new(AsyncDevice::new(&device, 64).unwrap());
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let commands = commands.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                for turn in 0..500u64 {
                    runtime.block_on(commands.put(space, thread, &turn.to_le_bytes())).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for thread in 0..4u64 {
        assert_eq!(device.get(space, thread).unwrap(), Some(499u64.to_le_bytes().to_vec()));
    }
}
