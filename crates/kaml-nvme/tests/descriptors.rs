//! A target whose process has no descriptors left: a process of its own, whose limit concerns nobody else.

use kaml::{CreateOptions, Device};
use kaml_nvme::host::{Controller, HostOptions};
use kaml_nvme::target::{Options, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io::{Read, Seek};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What this process has used, in clock ticks, of which there are 100 a second.
fn ticks(stat: &mut File) -> u64 {
    let mut text = String::new();
    stat.rewind().unwrap();
    stat.read_to_string(&mut text).unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..=12].iter().map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Goal:   a target without a free descriptor rests, and accepts new connections when it has one.
/// Method: files until the process has one descriptor left, which our end of a connection takes; three seconds; room again.
#[test]
fn targets_without_descriptors_rest() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let server = Server::bind(&device, "127.0.0.1:0", Options::for_device(&device)).unwrap();
    let (address, subsystem) = (server.address().to_string(), server.options().subsystem.clone());
    let stopper = server.stopper();
    let thread = std::thread::spawn(|| server.run());
    let usual = getrlimit(Resource::Nofile);
    let mut stat = File::open("/proc/self/stat").unwrap();
    let first = TcpStream::connect(&address).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..usual }).unwrap();
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    taken.pop();
    let waiting = TcpStream::connect(&address).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let before = ticks(&mut stat);
    std::thread::sleep(Duration::from_secs(3));
    let spent = ticks(&mut stat) - before;
    setrlimit(Resource::Nofile, usual).unwrap();
    assert!(spent <= 30, "{spent} hundredths of a second in three");
    let begin = Instant::now();
    drop((first, waiting, taken));
    let options = HostOptions { keep_alive: Duration::ZERO, ..HostOptions::default() };
    drop(Controller::connect(&address, &subsystem, &options).unwrap());
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    stopper.stop();
    thread.join().unwrap().unwrap();
}
