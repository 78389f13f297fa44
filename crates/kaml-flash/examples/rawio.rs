//! What the file medium adds to the disk: reads of 1.5 KiB and durable ring writes, raw and through the medium.
//!
//! `cargo run --release -p kaml-flash --example rawio -- DIRECTORY [MIB]`
//!
//! Rows alternate raw and medium, and are repeated, because the disk has fast and slow minutes: only ratios count.
#![allow(unsafe_code, reason = "the raw control runs hand buffers to io_uring by address")]

use io_uring::{IoUring, opcode, types::Fd};
use kaml_flash::{
    AlignedBuf, BlockIndex, Durability, FileMedium, FormatOptions, Geometry, Io, Medium, OpenOptions, PageAddr, Wait,
};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

const READ_BYTES: usize = 1536;
const RUN: Duration = Duration::from_millis(400);
const REPEATS: usize = 3;
const DEPTHS: [u32; 3] = [1, 16, 64];

/// Rate and processor time of one run.
struct Rate {
    per_second: f64,
    cpu_us: f64,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let directory = args.next().expect("usage: rawio DIRECTORY [MIB]");
    let mib: u64 = args.next().map_or(1024, |mib| mib.parse().expect("MIB is a number"));
    let path = std::path::Path::new(&directory).join("rawio.device");
    let medium = filled(&path, mib << 20);
    println!("{}", medium.describe());
    let raw = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .expect("the file was just made");
    // The blocks lie at the end of the file, whatever precedes them.
    let file_bytes = raw.metadata().expect("an open file").len();
    let first = file_bytes - medium.geometry().block_bytes() * u64::from(medium.geometry().block_count());
    let offsets = |random: u64| first + random % (file_bytes - first - 4096) / 512 * 512;

    println!("{:38} {:>9} {:>9}", "", "K/s", "CPU us");
    for _ in 0..REPEATS {
        show("pread 1.5 KiB", measure(|count| pread(&raw, &offsets, count)));
        show("execute(Read)", measure(|count| execute_read(&medium, count)));
        for depth in DEPTHS {
            let read = |count| raw_uring(&raw, &offsets, depth, count, false);
            show(&format!("io_uring read, depth {depth}"), measure(read));
            show(&format!("queue Read, depth {depth}"), measure(|count| queue_read(&medium, depth, count)));
        }
        let ring = 65_536 + 2 * u64::from(medium.geometry().root_bytes);
        show("pwritev2 DSYNC 4 KiB", measure(|count| raw_dsync(&raw, ring, count)));
        show("execute(Persist) 4 KiB", measure(|count| execute_persist(&medium, count)));
        for depth in DEPTHS {
            let slot = |random: u64| ring + random % 64 * 4096;
            let write = |count| raw_uring(&raw, &slot, depth, count, true);
            show(&format!("io_uring write DSYNC, depth {depth}"), measure(write));
            show(&format!("queue Persist, depth {depth}"), measure(|count| queue_persist(&medium, depth, count)));
        }
    }
    drop(medium);
    let options = OpenOptions { durability: Some(Durability::Process), ..OpenOptions::default() };
    let medium = FileMedium::open(&path, &options).expect("the device was just closed");
    show("execute(Persist) 4 KiB, process", measure(|count| execute_persist(&medium, count)));
    show("queue Persist, process, depth 16", measure(|count| queue_persist(&medium, 16, count)));
    std::fs::remove_file(&path).expect("the file was made here");
}

/// A device whose every block is programmed, so that reads meet written extents.
fn filled(path: &std::path::Path, capacity_bytes: u64) -> FileMedium {
    let options = FormatOptions { capacity_bytes, force: true, ..FormatOptions::default() };
    let medium = FileMedium::create(path, &options).expect("DIRECTORY takes files");
    let geometry = medium.geometry().clone();
    let data = Arc::new(AlignedBuf::copy_of(&vec![7; geometry.block_bytes() as usize]));
    for block in 0..geometry.block_count() {
        let oob = vec![1; (geometry.pages_per_block * geometry.oob_bytes) as usize];
        let at = PageAddr { block: BlockIndex(block), page: 0 };
        medium.execute(&mut Io::Program { at, data: Arc::clone(&data), oob, urgent: false }).expect("room on the disk");
    }
    medium.execute(&mut Io::Flush).expect("a working disk");
    medium
}

fn show(what: &str, rate: Rate) {
    println!("{what:38} {:9.1} {:9.2}", rate.per_second / 1e3, rate.cpu_us);
}

/// Runs `batch(count)` until the time is up.
fn measure(mut batch: impl FnMut(u64)) -> Rate {
    batch(64);
    let (start, cpu, mut count) = (Instant::now(), cpu_time(), 0);
    while start.elapsed() < RUN {
        batch(512);
        count += 512;
    }
    let (elapsed, cpu) = (start.elapsed(), cpu_time() - cpu);
    Rate { per_second: count as f64 / elapsed.as_secs_f64(), cpu_us: cpu.as_secs_f64() * 1e6 / count as f64 }
}

/// User and system time of the whole process.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure it is given.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "every process has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

thread_local! {
    static STATE: std::cell::Cell<u64> = const { std::cell::Cell::new(88_172_645_463_325_252) };
}

fn random() -> u64 {
    STATE.with(|state| {
        let mut x = state.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set(x);
        x >> 11
    })
}

/// A chunk on a sector, so that raw and medium read the same number of sectors.
fn random_chunk(geometry: &Geometry) -> kaml_flash::ChunkAddr {
    let block = BlockIndex((random() % u64::from(geometry.block_count())) as u32);
    let last = u64::from(geometry.chunks_per_block()) - READ_BYTES as u64 / u64::from(geometry.chunk_bytes);
    geometry.chunk_at(block, (random() % last / 8 * 8) as u32)
}

fn pread(file: &File, offsets: &dyn Fn(u64) -> u64, count: u64) {
    let mut buf = AlignedBuf::zeroed(READ_BYTES);
    for _ in 0..count {
        file.read_exact_at(&mut buf, offsets(random())).expect("a working disk");
    }
}

fn execute_read(medium: &FileMedium, count: u64) {
    let mut io = Io::Read { at: random_chunk(medium.geometry()), into: AlignedBuf::zeroed(READ_BYTES) };
    for _ in 0..count {
        if let Io::Read { at, .. } = &mut io {
            *at = random_chunk(medium.geometry());
        }
        medium.execute(&mut io).expect("a working disk");
    }
}

/// Reads 1.5 KiB or writes 4 KiB durably at random offsets.
fn raw_uring(file: &File, offsets: &dyn Fn(u64) -> u64, depth: u32, count: u64, write: bool) {
    let mut ring = IoUring::new(depth.next_power_of_two()).expect("io_uring");
    let mut bufs: Vec<_> = (0..depth).map(|_| AlignedBuf::zeroed(4096)).collect();
    let (mut started, mut ended) = (0, 0);
    let mut free: Vec<usize> = (0..depth as usize).collect();
    let fd = Fd(file.as_raw_fd());
    while ended < count {
        while started < count {
            let Some(slot) = free.pop() else { break };
            let (at, buf) = (offsets(random()), &mut bufs[slot]);
            let entry = if write {
                opcode::Write::new(fd, buf.as_ptr(), 4096).offset(at).rw_flags(libc::RWF_DSYNC).build()
            } else {
                opcode::Read::new(fd, buf.as_mut_ptr(), READ_BYTES as u32).offset(at).build()
            };
            // SAFETY: the buffer outlives the loop, which ends after the last completion.
            unsafe { ring.submission().push(&entry.user_data(slot as u64)).expect("as many entries as slots") };
            started += 1;
        }
        ring.submit_and_wait(1).expect("a working ring");
        for entry in ring.completion() {
            assert_eq!(entry.result(), if write { 4096 } else { READ_BYTES as i32 }, "a working disk");
            free.push(entry.user_data() as usize);
            ended += 1;
        }
    }
}

fn queue_read(medium: &FileMedium, depth: u32, count: u64) {
    let geometry = medium.geometry();
    run_queue(medium, depth, count, |_, mut into| {
        into.set_len(READ_BYTES);
        Io::Read { at: random_chunk(geometry), into }
    });
}

fn queue_persist(medium: &FileMedium, depth: u32, count: u64) {
    let slots = medium.geometry().ring_bytes / 4096;
    run_queue(medium, depth, count, |at, data| Io::Persist {
        offset: at % slots * 4096,
        data,
        len: 4096,
        barrier: false,
    });
}

fn run_queue(medium: &FileMedium, depth: u32, count: u64, make: impl Fn(u64, AlignedBuf) -> Io) {
    let mut queue = medium.queue(depth);
    let mut done = Vec::new();
    let mut bufs: Vec<_> = (0..depth).map(|_| AlignedBuf::zeroed(4096)).collect();
    let (mut started, mut ended) = (0, 0);
    while ended < count {
        while started < count {
            let Some(buf) = bufs.pop() else { break };
            queue.submit(started, make(started, buf));
            started += 1;
        }
        queue.reap(Wait::ForNs(1_000_000_000), &mut done);
        for completion in done.drain(..) {
            completion.result.expect("a working disk");
            match completion.io {
                Io::Read { into: buf, .. } | Io::Persist { data: buf, .. } => bufs.push(buf),
                other => panic!("the operation came back as {other:?}"),
            }
            ended += 1;
        }
    }
}

fn raw_dsync(file: &File, at: u64, count: u64) {
    let buf = AlignedBuf::zeroed(4096);
    for number in 0..count {
        let slices = [std::io::IoSlice::new(&buf)];
        let flags = rustix::io::ReadWriteFlags::DSYNC;
        let written = rustix::io::pwritev2(file, &slices, at + number % 64 * 4096, flags);
        assert_eq!(written, Ok(4096), "a working disk");
    }
}

fn execute_persist(medium: &FileMedium, count: u64) {
    let mut io = Io::Persist { offset: 0, data: AlignedBuf::zeroed(4096), len: 4096, barrier: false };
    for number in 0..count {
        if let Io::Persist { offset, .. } = &mut io {
            *offset = number % 64 * 4096;
        }
        medium.execute(&mut io).expect("a working disk");
    }
}
