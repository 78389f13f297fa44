//! The longer examples: each runs twice on the same device, as its reader would, and keeps what it promises.

#![allow(dead_code)]

#[path = "../examples/events.rs"]
mod events;
#[path = "../examples/inventory.rs"]
mod inventory;
#[path = "../examples/notes.rs"]
mod notes;
#[path = "../examples/sessions.rs"]
mod sessions;
#[path = "../examples/work_queue.rs"]
mod work_queue;

use kaml::{CreateOptions, Device};
use std::sync::Mutex;
use std::time::Duration;

fn device() -> Device {
    Device::in_memory(&CreateOptions::new(64 << 20)).unwrap()
}

/// Goal:   every program runs again on what it left.
/// Method: run what `main` runs two times in one directory.
#[test]
fn every_program_runs_twice() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        events::demo(directory.path()).unwrap();
        inventory::demo(directory.path()).unwrap();
        notes::demo(directory.path()).unwrap();
        sessions::demo(directory.path()).unwrap();
        work_queue::demo(directory.path()).unwrap();
    }
}

/// Goal:   a session ends by silence and by request, and does not begin again.
/// Method: a silence of nothing; an end between two uses.
#[test]
fn sessions_end() {
    let device = device();
    let silent = sessions::Sessions::open(&device, Duration::from_millis(1)).unwrap();
    let token = silent.begin("ada").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(silent.touch(&token).unwrap(), None);
    let lasting = sessions::Sessions::open(&self::device(), Duration::from_secs(3600)).unwrap();
    let token = lasting.begin("grace").unwrap();
    assert_eq!(lasting.touch(&token).unwrap().as_deref(), Some("grace"));
    lasting.end(&token).unwrap();
    assert_eq!(lasting.touch(&token).unwrap(), None);
}

/// Goal:   each job is done, and one whose lease ended is done again and not finished by its first worker.
/// Method: a lease of nothing, then four threads that work side by side.
#[test]
fn jobs_are_done() {
    let queue = work_queue::WorkQueue::open(device()).unwrap();
    queue.put(&["lost"]).unwrap();
    let lost = queue.take(Duration::ZERO).unwrap().unwrap();
    std::thread::sleep(Duration::from_millis(2));
    let again = queue.take(Duration::from_secs(600)).unwrap().unwrap();
    assert_eq!((lost.number, again.number, again.text.as_slice()), (1, 1, &b"lost"[..]));
    assert!(!queue.finish(&lost).unwrap());
    assert!(queue.finish(&again).unwrap());
    queue.put(&["job"; 40]).unwrap();
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(job) = queue.take(Duration::from_secs(600)).unwrap() {
                    assert!(queue.finish(&job).unwrap());
                    done.lock().unwrap().push(job.number);
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_unstable();
    assert_eq!(done, (2..42).collect::<Vec<_>>());
}

/// Goal:   a stream takes events only if the writer knows its end, and a subscriber sees every event once, in order.
/// Method: four threads append; a subscriber follows in two steps.
#[test]
fn events_are_in_order() {
    let store = events::EventStore::open(device()).unwrap();
    assert_eq!(store.append("a", &["1", "2"], Some(0)).unwrap(), Ok(2));
    assert_eq!(store.append("a", &["3"], Some(1)).unwrap(), Err(2));
    assert_eq!(store.append("ab", &["other"], None).unwrap(), Ok(1));
    assert_eq!(store.read("a").unwrap(), ["1", "2"]);
    let mut seen = Vec::new();
    store.follow("one", |position, _| seen.push(position)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..20 {
                    store.append(&format!("stream {thread}"), &["x"], None).unwrap().unwrap();
                }
            });
        }
    });
    store.follow("one", |position, _| seen.push(position)).unwrap();
    assert_eq!(seen, (1..=83).collect::<Vec<_>>());
}

/// Goal:   the last piece is sold once, and nothing is taken for an order of which a part is missing.
/// Method: four threads order more than there is.
#[test]
fn the_last_piece_is_sold_once() {
    let stock = inventory::Inventory::open(device()).unwrap();
    assert_eq!((stock.receive("tea", 30).unwrap(), stock.receive("cup", 40).unwrap()), (30, 40));
    let taken = Mutex::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (stock, taken) = (&stock, &taken);
            scope.spawn(move || {
                for at in 0..15 {
                    let order = stock.order(thread * 100 + at, &[("tea", 1), ("cup", 1)]).unwrap();
                    *taken.lock().unwrap() += u64::from(order.is_ok());
                    assert!(order.is_ok() || order == Err("tea".into()));
                    assert_eq!(stock.check().unwrap(), Vec::<String>::new());
                }
            });
        }
    });
    assert_eq!(taken.into_inner().unwrap(), 30);
    assert_eq!(stock.receive("cup", 0).unwrap(), 10);
}

/// Goal:   notes are read as they were, and return.
/// Method: one note that changes, with a moment between.
#[test]
fn notes_have_a_past() {
    let notes = notes::Notes::open(device()).unwrap();
    notes.write("a", "one").unwrap();
    notes.mark("monday").unwrap();
    notes.write("a", "two").unwrap();
    let read = |moment| notes.read("a", moment).unwrap();
    assert_eq!((read(None).as_deref(), read(Some("monday")).as_deref()), (Some("two"), Some("one")));
    assert_eq!(read(Some("never")), None);
    assert!(notes.undo("a").unwrap());
    assert_eq!(read(None).as_deref(), Some("one"));
    notes.write("a", "three").unwrap();
    assert!(notes.return_to("monday", "before").unwrap());
    assert_eq!((read(None).as_deref(), read(Some("before")).as_deref()), (Some("one"), Some("three")));
    assert!(!notes.return_to("never", "x").unwrap());
}
