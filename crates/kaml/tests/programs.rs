//! The longer examples: each runs twice on the same device, as its reader would, and keeps what it promises.

#![allow(dead_code)]

#[path = "../examples/blobs.rs"]
mod blobs;
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

use kaml::{CreateOptions, Device, Namespace};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

fn device() -> Device {
    Device::in_memory(&CreateOptions::new(64 << 20)).unwrap()
}

/// Goal:   every program runs again on what it left.
/// Method: run what `main` runs two times in one directory.
#[test]
fn every_program_runs_twice() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        drop(blobs::demo(directory.path(), "127.0.0.1:0").unwrap());
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

/// A request over HTTP, and its answer: status and headers in lower case, and the body.
fn ask(address: SocketAddr, head: &str, body: &[u8]) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    let (line, field) = head.split_once('\n').unwrap_or((head, "Accept: */*"));
    write!(stream, "{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{field}\r\n\r\n").unwrap();
    stream.write_all(body).unwrap();
    read_answer(stream)
}

fn read_answer(mut stream: TcpStream) -> (String, Vec<u8>) {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let at = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    (String::from_utf8_lossy(&answer[..at]).to_lowercase(), answer[at + 4..].to_vec())
}

fn put_blob(address: SocketAddr, name: &str, body: &[u8]) -> String {
    ask(address, &format!("PUT /{name}\nContent-Length: {}", body.len()), body).0
}

fn wait_for_keys(namespace: &Namespace, count: usize) {
    let begun = Instant::now();
    while namespace.prefix_keys("").count() != count {
        assert!(begun.elapsed() < Duration::from_secs(60), "not {count} keys");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn some_bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 1000) as u8 ^ at as u8 ^ seed).collect()
}

/// Goal:   a blob is served as it was stored, whole and in ranges, also after a restart, until it is deleted.
/// Method: lengths around the parts; each form of a range, and what is none; bodies of known and of unknown length.
#[test]
fn blobs_are_served() {
    const PART: usize = 256 << 10;
    let directory = tempfile::tempdir().unwrap();
    let (address, server) = blobs::demo(directory.path(), "127.0.0.1:0").unwrap();
    let lengths = [0, 1, PART - 1, PART, PART + 1, 3 * PART + 5];
    for (seed, length) in lengths.into_iter().enumerate() {
        let status = put_blob(address, &format!("a%20blob/{length}"), &some_bytes(length, seed as u8));
        assert!(status.starts_with("http/1.1 201") && status.contains("etag: \""), "{status}");
    }
    let (status, _) = ask(address, "PUT /pieces\nTransfer-Encoding: chunked", b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    assert!(status.starts_with("http/1.1 201"), "{status}");
    assert!(put_blob(address, &"x".repeat(2000), b"").starts_with("http/1.1 414"));
    drop(server);
    let (address, _server) = blobs::demo(directory.path(), "127.0.0.1:0").unwrap();
    for (seed, length) in lengths.into_iter().enumerate() {
        let whole = some_bytes(length, seed as u8);
        let (status, body) = ask(address, &format!("GET /a%20blob/{length}"), b"");
        assert!(status.starts_with("http/1.1 200") && status.contains("accept-ranges: bytes"), "{status}");
        assert!(body == whole);
        let (head, body) = ask(address, &format!("HEAD /a%20blob/{length}"), b"");
        let fields = |answer: &str| {
            answer.lines().filter(|line| !line.starts_with("date:")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!((fields(&head), body.len()), (fields(&status), 0));
        assert!(head.contains(&format!("content-length: {length}")), "{head}");
    }
    let (length, whole) = (3 * PART + 5, some_bytes(3 * PART + 5, 5));
    let get = |range: &str| ask(address, &format!("GET /a%20blob/{length}\nRange: {range}"), b"");
    let last = length - 1;
    for (range, start, stop) in [
        ("bytes=0-0".to_owned(), 0, 1),
        (format!("bytes={}-{PART}", PART - 1), PART - 1, PART + 1),
        (format!("bytes={PART}-{}", 2 * PART - 1), PART, 2 * PART),
        ("bytes=100000-".to_owned(), 100_000, length),
        (format!("bytes={last}-{}", u64::MAX), last, length),
        ("bytes=-7".to_owned(), length - 7, length),
        ("bytes=-99999999".to_owned(), 0, length),
    ] {
        let (status, body) = get(&range);
        assert!(status.starts_with("http/1.1 206"), "{range}: {status}");
        assert!(status.contains(&format!("content-range: bytes {start}-{}/{length}", stop - 1)), "{range}: {status}");
        assert!(status.contains(&format!("content-length: {}", stop - start)), "{range}: {status}");
        assert!(body == whole[start..stop], "{range}");
    }
    for range in [format!("bytes={length}-"), format!("bytes={length}-{}", length + 5), "bytes=-0".to_owned()] {
        let (status, body) = get(&range);
        assert!(status.starts_with("http/1.1 416"), "{range}: {status}");
        assert!(status.contains(&format!("content-range: bytes */{length}")) && body.is_empty(), "{range}: {status}");
    }
    assert!(ask(address, "GET /a%20blob/0\nRange: bytes=0-", b"").0.starts_with("http/1.1 416"));
    for range in ["bytes=5-4", "bytes=-", "bytes=a-b", "bytes=0-1,3-4", "lines=0-1"] {
        let (status, body) = get(range);
        assert!(status.starts_with("http/1.1 200") && body == whole, "{range}: {status}");
    }
    assert_eq!(ask(address, "GET /pieces", b"").1, b"abcde");
    let answer = ask(address, "HEAD /pieces", b"").0;
    let tag = answer.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    for (tag, part) in [(tag, "bc"), ("\"0\"", "abcde")] {
        let part_if = format!("GET /pieces\nRange: bytes=1-2\r\nIf-Range: {tag}");
        assert_eq!(ask(address, &part_if, b"").1, part.as_bytes());
    }
    assert!(put_blob(address, "pieces", b"other").starts_with("http/1.1 204"));
    assert_eq!(ask(address, "GET /pieces", b"").1, b"other");
    assert!(ask(address, "DELETE /pieces", b"").0.starts_with("http/1.1 204"));
    for method in ["DELETE", "GET", "HEAD"] {
        assert!(ask(address, &format!("{method} /pieces"), b"").0.starts_with("http/1.1 404"));
    }
}

/// Goal:   an upload is visible as a whole or not at all, and what was cut off or replaced takes no room.
/// Method: a client that ends in the middle, a reader whose blob is replaced, parts that the end of a program left; the keys are counted.
#[test]
fn uploads_are_atomic() {
    let device = Device::in_memory(&CreateOptions::new(256 << 20)).unwrap();
    let (address, server) = blobs::serve(&device, "127.0.0.1:0").unwrap();
    let keys = device.open_namespace("blobs").unwrap();
    // The reader's blob is longer than the buffers of its connection.
    let (old, new) = (some_bytes(24 << 20, 1), some_bytes(1000, 2));
    put_blob(address, "film", &old);
    assert_eq!(keys.iter().count(), 2 + 96);
    let mut reader = TcpStream::connect(address).unwrap();
    write!(reader, "GET /film HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    reader.read_exact(&mut [0; 1]).unwrap();
    let mut cut = TcpStream::connect(address).unwrap();
    write!(cut, "PUT /film HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n").unwrap();
    cut.write_all(&some_bytes(600_000, 3)).unwrap();
    wait_for_keys(&keys, 2 + 96 + 2);
    cut.shutdown(Shutdown::Both).unwrap();
    wait_for_keys(&keys, 2 + 96);
    assert!(put_blob(address, "film", &new).starts_with("http/1.1 204"));
    assert_eq!(keys.iter().count(), 3);
    assert!(read_answer(reader).1 == old);
    assert!(ask(address, "GET /film", b"").1 == new);
    drop(server);
    keys.put(&[b"p".as_slice(), &77u64.to_be_bytes(), &[0; 4]].concat(), b"left").unwrap();
    let (address, _server) = blobs::serve(&device, "127.0.0.1:0").unwrap();
    assert_eq!(keys.iter().count(), 3);
    assert!(ask(address, "GET /film", b"").1 == new);
}
