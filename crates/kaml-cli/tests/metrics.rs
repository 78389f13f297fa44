//! What monitors see: `info --prometheus`, the endpoint of `serve --metrics`, `top`.

mod world;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::time::Duration;
use world::{World, end};

/// A device that is served with metrics.
struct Served {
    child: Child,
    /// Of the target.
    url: String,
    /// `http://ADDRESS:PORT/`.
    metrics: String,
}

impl Served {
    fn new(world: &World) -> Served {
        let arguments = ["serve", "data.kaml", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--json"];
        let mut child = world.command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        let shown: Value = loop {
            assert_ne!(stdout.read_line(&mut text).unwrap(), 0, "it ended: {text}");
            if let Ok(shown) = serde_json::from_str(&text) {
                break shown;
            }
        };
        let field = |name: &str| shown[name].as_str().unwrap().to_owned();
        Served {
            child,
            url: format!("nvme+tcp://{}/{}", field("address"), field("subsystem")),
            metrics: field("metrics"),
        }
    }

    fn get(&self, path: &str) -> String {
        let address = self.metrics.strip_prefix("http://").unwrap().trim_end_matches('/');
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(socket, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        let mut response = String::new();
        socket.read_to_string(&mut response).unwrap();
        response
    }
}

/// Goal:   the metrics of a device are the same on the command line and over HTTP, its hosts are shown while they are connected, and over
///         NVMe a part of it is known.
/// Method: three puts; the text of a local device, of one that is served, and of the target; a host that remains connected until the endpoint shows it.
#[test]
fn metrics_of_a_device() {
    let world = World::new();
    world.ok(&["put", "data.kaml", "notes", "a", "1"]);
    let text = world.ok(&["info", "data.kaml", "--prometheus"]);
    assert!(text.contains("\nkaml_namespace_records{namespace=\"notes\"} 1\n"), "{text}");
    assert!(
        text.contains("# TYPE kaml_put_duration_seconds histogram\n") && !text.contains("kaml_host_info"),
        "{text}"
    );

    let mut served = Served::new(&world);
    (0..2).for_each(|key| drop(world.ok(&["put", &served.url, "notes", &key.to_string(), "1"])));
    let text = served.get("/metrics");
    assert!(text.contains("\nkaml_puts_total 2\n") && text.contains("\nkaml_stopped 0\n"), "{text}");
    let remote = world.ok(&["info", &served.url, "--prometheus"]);
    assert!(remote.contains("\nkaml_puts_total 2\n") && !remote.contains("kaml_blocks"), "{remote}");
    assert!(served.get("/health").ends_with("\r\n\r\nok\n"));
    assert!(served.get("/").contains("<title>KAML</title>"));

    let import = ["import", &served.url, "-", "-n", "notes"];
    let mut host = world.command(&import).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    while !served.get("/metrics").contains("\nkaml_host_info{host=\"nqn.") {}
    drop(host.stdin.take());
    assert!(host.wait().unwrap().success());
    while served.get("/metrics").contains("kaml_host_info") {}
    end(&mut served.child);
}

/// Goal:   an address for metrics that makes no sense or is taken ends `serve` with a sentence, and leaves the device closed cleanly.
#[test]
fn addresses_for_metrics() {
    let world = World::new();
    let serve = |code, address: &str| {
        world.fails(code, &["serve", "data.kaml", "--listen", "127.0.0.1:0", "--metrics", address])
    };
    let complaint = serve(2, "nonsense");
    assert!(complaint.contains("--metrics: \"nonsense\" is not an address and a port"), "{complaint}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let complaint = serve(1, &taken.local_addr().unwrap().to_string());
    assert!(complaint.contains("is in use by another program: use another port"), "{complaint}");
    assert_eq!(world.json(&["info", "data.kaml", "--json"])["device"]["was_clean"], true);
}

/// Goal:   `top` looks at a device wherever it is, finds the endpoint of one that is served, prints JSON and lines for programs, and refuses
///         with a sentence what it cannot look at.
#[test]
fn top_for_programs() {
    let world = World::new();
    world.ok(&["put", "data.kaml", "notes", "a", "1"]);
    let still = world.ok(&["top", "data.kaml", "--once"]);
    assert!(still.contains("data.kaml") && still.contains("collection  at rest") && still.contains("notes"), "{still}");
    assert_eq!(world.json(&["top", "data.kaml", "--once", "--json"])["namespaces"][0]["record_count"], 1);

    let mut served = Served::new(&world);
    world.ok(&["put", &served.url, "notes", "b", "1"]);
    for place in [&served.metrics, &served.url] {
        let state = world.json(&["top", place, "--once", "--json"]);
        assert_eq!(state["stats"]["put_count"], 1, "{place}");
        let page = world.ok(&["top", place, "--once"]);
        assert!(page.contains("puts") && page.contains("notes"), "{place}: {page}");
    }
    let mut lines =
        world.command(&["top", &served.metrics, "--interval", "0.1"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut read = BufReader::new(lines.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let line = read.next().unwrap().unwrap();
        assert!(line.contains("puts ") && line.contains("free blocks "), "{line}");
    }
    drop(read); // its reader has gone: it ends by itself
    assert_eq!(lines.wait().unwrap().code(), Some(0));
    let complaint = world.fails(1, &["top", "data.kaml", "--once"]);
    assert!(complaint.contains("in use by process"), "port 0 does not name the endpoint: {complaint}");
    end(&mut served.child);
    assert!(world.fails(1, &["top", &served.metrics, "--once"]).contains("refused"));
    assert!(world.fails(2, &["top", "https://127.0.0.1:1"]).contains("without TLS"));
    world.fails(1, &["top", "missing.kaml"]);
}

/// Goal:   `top` fills a terminal without a line that is too long, ends with q and with Ctrl-C, and leaves the terminal as it was.
/// Method: a terminal of 44 columns; after the page, a key or a signal; the modes of the terminal before and after.
#[test]
fn top_on_a_terminal() {
    let world = World::new();
    world.ok(&["put", "data.kaml", "notes", "a", "1"]);
    for by_key in [true, false] {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = File::options().read(true).write(true).open(name).unwrap();
        tcsetwinsize(theirs.as_fd(), Winsize { ws_row: 24, ws_col: 44, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let before = tcgetattr(theirs.as_fd()).unwrap().local_modes;
        assert!(before.contains(LocalModes::ICANON | LocalModes::ECHO));
        let mut command = world.command(&["top", "data.kaml", "--interval", "0.2"]);
        let (stdin, stdout) = (theirs.try_clone().unwrap(), theirs.try_clone().unwrap());
        let mut child =
            command.stdin(stdin).stdout(stdout).env("TERM", "xterm").env_remove("NO_COLOR").spawn().unwrap();
        drop(command);
        let terminal = File::from(ours);
        let mut written = String::new();
        let mut piece = [0; 4096];
        let mut read = |written: &mut String| {
            let count = (&terminal).read(&mut piece).unwrap();
            written.push_str(&String::from_utf8_lossy(&piece[..count]));
        };
        while !written.contains("namespaces") {
            read(&mut written);
        }
        assert!(!tcgetattr(theirs.as_fd()).unwrap().local_modes.contains(LocalModes::ECHO));
        match by_key {
            true => (&terminal).write_all(b"q").unwrap(),
            false => kill_process(Pid::from_child(&child), Signal::INT).unwrap(),
        }
        while !written.contains("\x1b[?1049l") {
            read(&mut written);
        }
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!(tcgetattr(theirs.as_fd()).unwrap().local_modes, before, "by a key: {by_key}");
        assert!(written.starts_with("\x1b[?1049h"), "{written:?}");
        for line in written.split("\r\n") {
            let mut shown = String::new();
            let mut chars = line.chars();
            while let Some(c) = chars.next() {
                match c {
                    '\x1b' => drop(chars.by_ref().skip(1).find(char::is_ascii_alphabetic)),
                    '\r' => {} // the terminal adds one
                    c => shown.push(c),
                }
            }
            // Where one page ends the next begins, at the top.
            assert!(line.contains("\x1b[H") || shown.chars().count() <= 44, "{shown:?}");
        }
    }
}
