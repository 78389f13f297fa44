//! A device in memory that is served from a thread of its own.

use kaml::{CreateOptions, Device, NamespaceId, NamespaceOptions};
use kaml_nvme::host::{Controller, HostOptions, RemoteDevice, RemoteUrl};
use kaml_nvme::target::{Access, Control, Error, Options, Server, Stopper};
use std::net::TcpStream;
use std::thread::JoinHandle;
use std::time::Duration;

/// Runs an ignored test in a process of its own, whose memory other tests do not use.
pub(crate) fn run_alone(test: &str) {
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    let output = alone.args([test, "--exact", "--ignored", "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) struct World {
    pub(crate) device: Device,
    pub(crate) address: String,
    pub(crate) subsystem: String,
    pub(crate) control: Control,
    stopper: Stopper,
    name: String,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Options)) -> World {
        let options = CreateOptions { block_bytes: Some(2 << 20), ..CreateOptions::new(256 << 20) };
        World::serving(Device::in_memory(&options).unwrap(), change)
    }

    pub(crate) fn serving(device: Device, change: impl FnOnce(&mut Options)) -> World {
        let mut options = Options::for_device(&device);
        options.access = Access::open().with_all_rights();
        change(&mut options);
        let server = Server::bind(&device, "127.0.0.1:0", options).unwrap();
        let (address, subsystem) = (server.address().to_string(), server.options().subsystem.clone());
        let (stopper, control) = (server.stopper(), server.control());
        let name = format!("t-{}", server.address().port());
        let thread = std::thread::Builder::new().name(name.clone()).spawn(|| server.run());
        World { device, address, subsystem, control, stopper, name, thread: Some(thread.unwrap()) }
    }

    pub(crate) fn namespace(&self, name: &str) -> NamespaceId {
        self.device.create_namespace(name, &NamespaceOptions::default()).unwrap()
    }

    pub(crate) fn host(&self) -> Controller {
        self.host_with(|_| {})
    }

    pub(crate) fn host_with(&self, change: impl FnOnce(&mut HostOptions)) -> Controller {
        let mut options = HostOptions { keep_alive: Duration::ZERO, ..HostOptions::default() };
        change(&mut options);
        Controller::connect(&self.address, &self.subsystem, &options).unwrap()
    }

    /// The device, as a host sees it.
    pub(crate) fn remote(&self) -> RemoteDevice {
        self.remote_with(HostOptions::default())
    }

    /// The same for the host of this name.
    pub(crate) fn remote_as(&self, host: &str) -> RemoteDevice {
        self.remote_with(HostOptions { host: host.into(), ..HostOptions::default() })
    }

    fn remote_with(&self, options: HostOptions) -> RemoteDevice {
        let url = format!("nvme+tcp://{}/{}", self.address, self.subsystem).parse::<RemoteUrl>().unwrap();
        RemoteDevice::open(&url, &HostOptions { queues: 2, ..options }).unwrap()
    }

    /// What the target's thread has used, in steps of the system's clock ticks, of which there are 100 a second.
    pub(crate) fn processor_time(&self) -> Duration {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        let is_ours = |task: &std::path::PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == self.name)
        };
        let stat = std::fs::read_to_string(tasks.into_iter().find(is_ours).unwrap().join("stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11..=12].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// A connection without anybody who knows the protocol.
    pub(crate) fn raw(&self) -> TcpStream {
        let socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.expect("the target does not panic").expect("the target ends in order");
        }
    }
}

pub(crate) fn key(bytes: &[u8]) -> kaml::Key {
    kaml::Key::new(bytes).unwrap()
}
