//! `kaml-bench serve`.

use crate::commands::Common;
use clap::Args;
use kaml::{BlockOptions, CreateOptions, Device};
use kaml_nvme::host::RemoteUrl;
use kaml_terminal::failure::Failure;
use kaml_terminal::passing::Passing;
use kaml_workloads::keys::Distribution;
use kaml_workloads::micro::{self, Puts, Records, Stop};
use kaml_workloads::network::{self, Load, Served, Work};
use kaml_workloads::{Error, Figures};
use std::time::Duration;

/// Bytes of the device in memory; its records take a small part.
const MEMORY_BYTES: u64 = 1 << 30;
/// Records of the small sizes, and of 1 MiB.
const RECORDS: u64 = 16_384;
const LARGE_RECORDS: u64 = 64;
/// Bytes of the file device of the durable stores: enough to see no garbage collection in a few seconds.
const FILE_BYTES: u64 = 8 << 30;

/// Flags of `kaml-bench serve`.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Neither target nor host sleeps: a core for each
    #[arg(long)]
    poll: bool,
    /// Only the rows of these works: blocks, records, large, durable
    #[arg(long, value_delimiter = ',', default_value = "blocks,records,large,durable")]
    only: Vec<String>,
    /// A running target instead of one in this process: nvme+tcp://HOST:PORT/NQN. What its namespaces hold is overwritten
    #[arg(long, value_name = "URL")]
    target: Option<RemoteUrl>,
    /// Number of a block namespace of that target, of at least 64 MiB
    #[arg(long, requires = "target")]
    blocks: Option<u32>,
    /// Number of a namespace of records of that target
    #[arg(long, requires = "target")]
    records: Option<u32>,
}

impl Arguments {
    /// Measures and shows.
    pub fn run(self) -> Result<(), Failure> {
        let mut figures = self.floors()?;
        figures.extend(match &self.target {
            Some(url) => self.measure(url, self.blocks, self.records)?,
            None => self.measure_memory()?,
        });
        self.common.show(&figures)
    }

    /// Bare sockets, before there is a target of ours that would take a core by polling.
    fn floors(&self) -> Result<Vec<Figures>, Failure> {
        let duration = self.common.duration()?;
        let mut figures = Vec::new();
        if self.has("blocks") {
            figures.push(network::questions(4096, self.poll, duration)?);
        }
        if self.has("large") {
            figures.push(network::loopback(1 << 20, duration)?);
        }
        Ok(figures)
    }

    fn has(&self, rows: &str) -> bool {
        self.only.iter().any(|only| only == rows)
    }

    /// A device in memory, served by a target in this process, and durable stores on a file.
    fn measure_memory(&self) -> Result<Vec<Figures>, Failure> {
        let device = Device::in_allocated_memory(&CreateOptions::new(MEMORY_BYTES))?;
        let disk = device.create_namespace("disk", &BlockOptions::new(4096, RECORDS).into())?;
        let records = micro::namespace(&device, "records")?;
        let served = Served::start(&device, self.poll)?;
        let mut figures = self.measure(&served.url, Some(disk), Some(records))?;
        served.stop()?;
        if self.has("durable") {
            figures.extend(self.durable()?);
        }
        Ok(figures)
    }

    fn measure(&self, url: &RemoteUrl, disk: Option<u32>, records: Option<u32>) -> Result<Vec<Figures>, Failure> {
        let stop = Stop::after(self.common.duration()?);
        let load = |work, bytes, records, in_flight| Load {
            work,
            bytes,
            records,
            in_flight,
            connections: 1,
            spin: self.poll,
            stop,
        };
        let mut figures = Vec::new();
        if let Some(disk) = disk.filter(|_| self.has("blocks")) {
            for (work, in_flight) in [(Work::Read, 1), (Work::Write, 1), (Work::Read, 32), (Work::Write, 32)] {
                figures.push(network::run(url, disk, &load(work, 4096, RECORDS, in_flight))?);
            }
        }
        if let Some(records) = records {
            for work in [Work::Retrieve, Work::Store].into_iter().filter(|_| self.has("records")) {
                figures.push(network::run(url, records, &load(work, 1024, RECORDS, 32))?);
            }
            if self.has("large") {
                figures.push(network::run(url, records, &load(Work::Retrieve, 1 << 20, LARGE_RECORDS, 4))?);
            }
        }
        Ok(figures)
    }

    /// 1 KiB records, 128 in flight, on a file: without a wire, and over four connections.
    fn durable(&self) -> Result<Vec<Figures>, Failure> {
        let duration = self.common.duration()?;
        let scratch = Passing::directory(&self.common.dir).map_err(Failure::io(self.common.dir.display()))?;
        let device = Device::create(scratch.path().join("bench.kaml"), &CreateOptions::new(FILE_BYTES))?;
        let namespace = micro::namespace(&device, "records")?;
        let figures = self.durable_on(&device, namespace, duration);
        device.close()?;
        Ok(figures?)
    }

    fn durable_on(&self, device: &Device, namespace: u32, duration: Duration) -> Result<Vec<Figures>, Error> {
        let records = Records { value_bytes: 1024, count: RECORDS, distribution: Distribution::Uniform, seed: 1 };
        let stop = Stop::after(duration);
        let puts = Puts { records, batch_records: 1, in_flight: 128, stop };
        let mut local = micro::puts_in_flight(device, namespace, &puts)?;
        local.what = format!("in process, durable: {}", local.what);
        let served = Served::start(device, self.poll)?;
        let load = Load {
            work: Work::Store,
            bytes: 1024,
            records: RECORDS,
            in_flight: 128,
            connections: 4,
            spin: self.poll,
            stop,
        };
        let mut remote = network::run(&served.url, namespace, &load)?;
        remote.what = format!("durable: {}", remote.what);
        served.stop()?;
        Ok(vec![local, remote])
    }
}
