//! The HTTP endpoint, with clients of all kinds.

use kaml::{CreateOptions, Device, NamespaceOptions};
use kaml_metrics::{Error, PAGE, Server, State};
use kaml_testkit::Rng;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// No test waits longer for a response.
const PATIENCE: Duration = Duration::from_secs(60);

fn device() -> Device {
    Device::in_memory(&CreateOptions::new(64 << 20)).unwrap()
}

fn served(device: &Device) -> Server {
    let device = device.clone();
    Server::start("127.0.0.1:0", move |detail| State::of(&device, detail)).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends bytes and returns everything that comes.
fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut socket = connect(address);
    socket.write_all(bytes).unwrap();
    let mut response = String::new();
    socket.read_to_string(&mut response).unwrap();
    response
}

/// Status and body of a GET.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let response = exchange(address, format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes());
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    assert_eq!(length.parse::<usize>().unwrap(), body.len(), "{head}");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Goal:   each path has its page, HEAD has the same head and no body, other paths and methods are refused with what is allowed.
#[test]
fn paths_and_methods() {
    let device = device();
    let users = device.create_namespace("users", &NamespaceOptions::default()).unwrap();
    let server = served(&device);
    let at = server.address();
    device.put(users, 1u64, b"ada").unwrap();
    let (status, text) = get(at, "/metrics");
    assert!(status == 200 && text.contains("\nkaml_puts_total 1\n"), "{text}");
    let (status, state) = get(at, "/state?x");
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    assert_eq!((status, state["stats"]["put_count"].as_u64()), (200, Some(1)));
    let cells = &state["blocks"]["cells"];
    let count = cells["state"].as_str().unwrap().len();
    assert!(
        count > 0
            && ["live_percent", "age_pages", "erase_count"].iter().all(|c| cells[c].as_array().unwrap().len() == count)
    );
    assert_eq!(get(at, "/"), (200, PAGE.to_owned()));
    assert_eq!(get(at, "/health"), (200, "ok\n".to_owned()));
    assert_eq!(get(at, "/metrics/x").0, 404);
    let head = exchange(at, b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(head.contains(&format!("Content-Length: {}\r\n", PAGE.len())) && head.ends_with("\r\n\r\n"), "{head}");
    assert!(head.contains("Content-Security-Policy: default-src 'none'"), "{head}");
    let post = exchange(at, b"POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("\r\nAllow: GET, HEAD\r\n"), "{post}");
}

/// Goal:   the page needs nothing from anywhere: no reference leaves it.
#[test]
fn the_page_is_self_contained() {
    for forbidden in
        ["http://", "https://", "//cdn", "@import", "url(", "<script src", "innerHTML", "document.write", "eval("]
    {
        let allowed = PAGE.replace("http://www.w3.org/2000/svg", ""); // a name, which nobody fetches
        assert!(!allowed.contains(forbidden), "{forbidden}");
    }
}

/// Goal:   a stopped device is unhealthy: status 503, the reason, and the metric.
#[test]
fn health_of_a_stopped_device() {
    let stopped = |_| {
        let mut state = State::of_parts(serde_json::json!({}), serde_json::json!({}), &[]);
        (state.is_stopped, state.stopped) = (true, Some("writing at 4096: Input/output error".into()));
        state
    };
    let server = Server::start("127.0.0.1:0", stopped).unwrap();
    let (status, why) = get(server.address(), "/health");
    assert_eq!(
        (status, why.as_str()),
        (503, "the device takes no more changes: writing at 4096: Input/output error\n")
    );
    assert!(get(server.address(), "/metrics").1.contains("\nkaml_stopped 1\n"));
}

/// Goal:   garbage, requests in pieces, clients that leave and clients that send nothing are survived, and others are served meanwhile.
/// Method: 200 connections with bytes from a printed seed, each ended in another way; 100 silent ones, which are more than there is room
///         for, stay open while a normal client gets its page; a request comes byte by byte.
#[test]
fn clients_that_behave_badly() {
    let device = device();
    let server = served(&device);
    let at = server.address();
    let mut rng = Rng::new(4711);
    let request = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    for case in 0..200 {
        let mut socket = connect(at);
        let mut bytes: Vec<u8> = match case % 3 {
            0 => (0..rng.below(3000)).map(|_| rng.below(256) as u8).collect(),
            1 => request[..rng.below(request.len() as u64) as usize].to_vec(),
            _ => [&b"GET /"[..], &vec![b'a'; rng.below(20_000) as usize], b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat(),
        };
        if case % 3 == 1 && !bytes.is_empty() {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.below(256) as u8;
        }
        let _ = socket.write_all(&bytes); // it may have been refused meanwhile
        match case % 2 {
            0 => drop(socket),
            _ => {
                let _ = socket.shutdown(Shutdown::Write);
                let _ = socket.read_to_end(&mut Vec::new());
            }
        }
    }
    let silent: Vec<TcpStream> = (0..100).map(|_| connect(at)).collect();
    assert_eq!(get(at, "/health").0, 200);
    drop(silent);
    let mut slow = connect(at);
    for byte in request {
        slow.write_all(&[*byte]).unwrap();
    }
    let mut response = String::new();
    slow.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
}

/// Goal:   however many requests come, the device is looked at a few times in a second.
/// Method: 300 requests for figures; how often the state was collected against the time that they took.
#[test]
fn a_flood_does_not_reach_the_device() {
    let device = device();
    let looks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&looks);
    let server = Server::start("127.0.0.1:0", move |detail| {
        counted.fetch_add(1, Ordering::Relaxed);
        State::of(&device, detail)
    });
    let server = server.unwrap();
    let begin = std::time::Instant::now();
    (0..300).for_each(|_| assert_eq!(get(server.address(), "/metrics").0, 200));
    let most = begin.elapsed().as_millis() as u64 / 200 + 1;
    let looks = looks.load(Ordering::Relaxed);
    assert!((1..=most).contains(&looks), "{looks} looks, at most {most} are due");
}

/// Goal:   an address that makes no sense, and one that is taken, are refused with a sentence that names it and what to do.
#[test]
fn addresses_that_cannot_be() {
    let start = |address: &str| Server::start(address, |_| unreachable!("nobody asks")).map(|server| server.address());
    for address in ["", "9464", "localhost", "127.0.0.1:99999", "127.0.0.1:http"] {
        let error = start(address).unwrap_err();
        assert!(matches!(error, Error::BadAddress { .. }), "{address}: {error:?}");
        assert!(error.to_string().contains("as 127.0.0.1:9464"), "{error}");
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = start(&address).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }) && error.to_string().contains("port 0"), "{error}");
}
