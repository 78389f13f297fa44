//! The contract of `Medium`, demanded of every medium by the same tests.
//!
//! Lives here:       what every firmware relies on.
//! Lives elsewhere:  what only files do (`file.rs`) and only memory does (`memory.rs`).

use kaml_flash::{
    AlignedBuf, BlockIndex, Completion, Durability, FileMedium, FormatOptions, Io, Medium, MediumError, MemoryMedium,
    OpenOptions, PageAddr, Wait,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A medium under test, and what keeps it alive.
struct Subject {
    name: &'static str,
    medium: Box<dyn Medium>,
    _dir: tempfile::TempDir,
}

fn format_options() -> FormatOptions {
    FormatOptions { capacity_bytes: 64 << 20, ..FormatOptions::default() }
}

/// Every medium, and every way to open a file.
fn subjects() -> Vec<Subject> {
    let file = |name, options: OpenOptions| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        drop(FileMedium::create(&path, &format_options()).unwrap());
        Subject { name, medium: Box::new(FileMedium::open(&path, &options).unwrap()), _dir: dir }
    };
    let defaults = OpenOptions::default;
    let subjects = vec![
        file("file", defaults()),
        file("file without io_uring", OpenOptions { io_uring: false, ..defaults() }),
        file("file through the page cache", OpenOptions { direct: false, ..defaults() }),
        file("file, process durability", OpenOptions { durability: Some(Durability::Process), ..defaults() }),
    ];
    let geometry = subjects[0].medium.geometry().clone();
    let memory =
        Subject { name: "memory", medium: Box::new(MemoryMedium::new(geometry)), _dir: tempfile::tempdir().unwrap() };
    subjects.into_iter().chain([memory]).collect()
}

/// Bytes that differ from place to place, so a shifted answer shows.
fn pattern(seed: u64, len: usize) -> AlignedBuf {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut buf = AlignedBuf::zeroed(len);
    for byte in buf.iter_mut() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = (state >> 24) as u8 | 1;
    }
    buf
}

fn page(block: u32, page: u32) -> PageAddr {
    PageAddr { block: BlockIndex(block), page }
}

fn program_io(medium: &dyn Medium, at: PageAddr, pages: u32, seed: u64, urgent: bool) -> Io {
    let geometry = medium.geometry();
    let data = Arc::new(pattern(seed, (pages * geometry.page_bytes) as usize));
    let oob = pattern(seed + 1, (pages * geometry.oob_bytes) as usize).to_vec();
    Io::Program { at, data, oob, urgent }
}

fn program(medium: &dyn Medium, at: PageAddr, pages: u32, seed: u64) -> Result<(), MediumError> {
    medium.execute(&mut program_io(medium, at, pages, seed, false))
}

fn read(medium: &dyn Medium, block: u32, chunk: u32, len: usize) -> AlignedBuf {
    let at = medium.geometry().chunk_at(BlockIndex(block), chunk);
    let mut io = Io::Read { at, into: AlignedBuf::zeroed(len) };
    medium.execute(&mut io).unwrap();
    let Io::Read { into, .. } = io else { panic!("the operation came back as another") };
    into
}

fn read_oob(medium: &dyn Medium, at: PageAddr, pages: u32) -> AlignedBuf {
    let len = pages * medium.geometry().oob_bytes;
    let mut io = Io::ReadOob { at, into: AlignedBuf::zeroed(len as usize) };
    medium.execute(&mut io).unwrap();
    let Io::ReadOob { into, .. } = io else { panic!("the operation came back as another") };
    into
}

fn erase(medium: &dyn Medium, block: u32, release: bool) {
    medium.execute(&mut Io::Erase { block: BlockIndex(block), release }).unwrap();
}

/// Goal:   a block takes programs in page order only, once between erases, and whole pages inside the device only.
/// Method: break one rule at a time, and see that the medium states which page it expects and accepts it afterwards.
#[test]
fn programs_out_of_order_are_refused() {
    for Subject { name, medium, .. } in subjects() {
        let (medium, pages) = (&*medium, medium.geometry().pages_per_block);
        let refused = |at, expected| {
            assert_eq!(program(medium, at, 1, 1), Err(MediumError::OutOfOrder { at, expected }), "{name}");
        };
        refused(page(0, 1), 0);
        program(medium, page(0, 0), 2, 1).unwrap();
        refused(page(0, 0), 2);
        refused(page(0, 1), 2);
        refused(page(0, 3), 2);
        program(medium, page(0, 2), pages - 2, 2).unwrap();
        refused(page(0, 0), pages);
        erase(medium, 0, false);
        refused(page(0, 1), 0);
        program(medium, page(0, 0), pages, 3).unwrap();
        refused(page(0, pages - 1), pages);
    }
}

/// Goal:   addresses and lengths outside the geometry are refused, never executed in part.
/// Method: one operation of each kind just beyond each limit.
#[test]
fn bad_ranges_are_refused() {
    for Subject { name, medium, .. } in subjects() {
        let geometry = medium.geometry().clone();
        let buf = |len: usize| AlignedBuf::zeroed(len);
        let (pages, blocks) = (geometry.pages_per_block, geometry.block_count());
        let last_chunk = geometry.chunk_at(BlockIndex(1), geometry.chunks_per_block() - 1);
        let beyond = kaml_flash::ChunkAddr(geometry.chunk_count());
        let oob = |pages: u32| vec![0; (pages * geometry.oob_bytes) as usize];
        let data = |len: usize| Arc::new(AlignedBuf::zeroed(len));
        let page_bytes = geometry.page_bytes as usize;
        let ring_end = geometry.ring_bytes;
        let wrong = [
            Io::Read { at: beyond, into: buf(1) },
            Io::Read { at: kaml_flash::ChunkAddr(u64::MAX), into: buf(1) },
            Io::Read { at: last_chunk, into: buf(geometry.chunk_bytes as usize + 1) },
            Io::ReadOob { at: page(blocks, 0), into: buf(32) },
            Io::ReadOob { at: page(0, pages), into: buf(32) },
            Io::ReadOob { at: page(0, pages - 1), into: buf(64) },
            Io::ReadOob { at: page(0, 0), into: buf(33) },
            Io::Program { at: page(blocks, 0), data: data(page_bytes), oob: oob(1), urgent: false },
            Io::Program { at: page(0, 0), data: data(page_bytes + 1), oob: oob(1), urgent: false },
            Io::Program { at: page(0, 0), data: data(0), oob: oob(0), urgent: false },
            Io::Program { at: page(0, 0), data: data(page_bytes), oob: oob(2), urgent: true },
            Io::Program {
                at: page(0, 0),
                data: data(page_bytes * (pages as usize + 1)),
                oob: oob(pages + 1),
                urgent: false,
            },
            Io::Erase { block: BlockIndex(blocks), release: true },
            Io::Persist { offset: ring_end, data: buf(4096), len: 4096, barrier: false },
            Io::Persist { offset: u64::MAX - 511, data: buf(4096), len: 4096, barrier: false },
            Io::Persist { offset: 0, data: buf(4096), len: 8192, barrier: false },
            Io::Persist { offset: 1, data: buf(4096), len: 4096, barrier: false },
            Io::Persist { offset: 0, data: buf(4096), len: 100, barrier: false },
            Io::Persist { offset: 0, data: buf(4096), len: 0, barrier: false },
            Io::WriteRoot { slot: 2, data: buf(4096) },
            Io::WriteRoot { slot: 0, data: buf(100) },
            Io::WriteRoot { slot: 0, data: buf(0) },
            Io::WriteRoot { slot: 0, data: buf(geometry.root_bytes as usize + 4096) },
        ];
        let mut queue = medium.queue(4);
        for (id, mut io) in wrong.into_iter().enumerate() {
            let what = format!("{io:?}");
            let error = medium.execute(&mut io).unwrap_err();
            assert!(matches!(error, MediumError::BadRange { .. }), "{name}: {what}: {error}");
            queue.submit(id as u64, io);
            let mut done = Vec::new();
            queue.reap(Wait::No, &mut done);
            assert_eq!(done[0].result, Err(error), "{name}: {what}");
        }
        assert!(medium.read_root(2, &mut buf(4096)).is_err(), "{name}");
        assert!(medium.read_ring(ring_end, &mut buf(4096)).is_err(), "{name}");
        assert_eq!(read_oob(&*medium, page(0, 0), pages).iter().max(), Some(&0), "{name}: nothing was programmed");
    }
}

/// Goal:   any range of a block comes back as it was programmed, through `execute` and through a queue.
/// Method: fill a block with one pattern, read ranges around every kind of edge: sector, page, buffer, block.
#[test]
fn any_range_reads_back() {
    for Subject { name, medium, .. } in subjects() {
        let medium = &*medium;
        let geometry = medium.geometry().clone();
        let whole = pattern(7, geometry.block_bytes() as usize);
        for (at, data) in whole.chunks(geometry.page_bytes as usize * 17).enumerate() {
            let pages = data.len() / geometry.page_bytes as usize;
            let oob = vec![1; pages * geometry.oob_bytes as usize];
            let data = Arc::new(AlignedBuf::copy_of(data));
            let mut io = Io::Program { at: page(3, at as u32 * 17), data, oob, urgent: false };
            medium.execute(&mut io).unwrap();
        }
        let chunk_bytes = geometry.chunk_bytes as usize;
        let mut queue = medium.queue(8);
        for chunk in
            [0, 1, 7, 8, 9, 63, 64, 65, 1000, geometry.chunks_per_block() - 70, geometry.chunks_per_block() - 1]
        {
            for len in [0, 1, 63, 64, 448, 512, 513, 1500, 4032, 4096, 4097, 12_288, 16_320, 16_384, 100_000, 65 * 4096]
            {
                let from = chunk as usize * chunk_bytes;
                if from + len > whole.len() {
                    continue;
                }
                let expected = &whole[from..from + len];
                assert!(*read(medium, 3, chunk, len) == *expected, "{name}: {len} bytes at chunk {chunk}");
                queue
                    .submit(1, Io::Read { at: geometry.chunk_at(BlockIndex(3), chunk), into: AlignedBuf::zeroed(len) });
                let done = reap_all(&mut *queue);
                let Io::Read { into, .. } = &done[0].io else { panic!("the operation came back as another") };
                assert!(done[0].result.is_ok() && **into == *expected, "{name}: {len} bytes at chunk {chunk}, queued");
            }
        }
    }
}

fn reap_all(queue: &mut dyn kaml_flash::Queue) -> Vec<Completion> {
    let mut done = Vec::new();
    let give_up = Instant::now() + Duration::from_secs(60);
    while queue.in_flight() > 0 {
        queue.reap(Wait::ForNs(1_000_000_000), &mut done);
        assert!(Instant::now() < give_up, "operations never complete");
    }
    done
}

/// Goal:   OOB bytes exist as soon as a program is done and remain the same until the erase, whatever writes them.
/// Method: program a block in uneven steps, with flushes and urgent programs between, comparing all OOB each time.
#[test]
fn oob_reads_back_at_every_stage() {
    for Subject { name, medium, .. } in subjects() {
        let medium = &*medium;
        let geometry = medium.geometry().clone();
        let oob_bytes = geometry.oob_bytes as usize;
        let mut expected = vec![0; geometry.pages_per_block as usize * oob_bytes];
        let (mut at, mut step) = (0, 0);
        while at < geometry.pages_per_block {
            let pages = (1 + step % 7).min(geometry.pages_per_block - at);
            let mut io = program_io(medium, page(5, at), pages, u64::from(at), step % 5 == 3);
            medium.execute(&mut io).unwrap();
            let Io::Program { oob, .. } = &io else { panic!("the operation came back as another") };
            expected[at as usize * oob_bytes..][..oob.len()].copy_from_slice(oob);
            if step % 4 == 2 {
                medium.execute(&mut Io::Flush).unwrap();
            }
            let found = read_oob(medium, page(5, 0), geometry.pages_per_block);
            assert!(*found == *expected, "{name}: after step {step}");
            assert!(*read_oob(medium, page(5, at), pages) == **oob, "{name}: after step {step}");
            (at, step) = (at + pages, step + 1);
        }
    }
}

/// Goal:   a program that has begun precedes those submitted later, whichever thread executes it and when, and a barrier finds it.
/// Method: one begun, the next pages programmed through a queue; then the first one executed, a barrier, and all of it
///         read; again after an erase. Another thread's queue helps, or none does.
#[test]
fn what_has_begun_comes_first() {
    for Subject { name, medium, .. } in subjects() {
        let (medium, stop) = (&*medium, AtomicBool::new(false));
        std::thread::scope(|scope| {
            (0..3).for_each(|round| begin_and_carry_out(name, medium, round));
            let (tell, told) = std::sync::mpsc::channel();
            let stop = &stop;
            scope.spawn(move || {
                let mut queue = medium.queue(4);
                queue.help();
                tell.send(queue.waker()).unwrap();
                while !stop.load(Ordering::Acquire) {
                    queue.reap(Wait::ForNs(1_000_000_000), &mut Vec::new());
                }
            });
            let waker = told.recv().unwrap();
            for round in 3..9 {
                begin_and_carry_out(name, medium, round);
                waker.wake();
            }
            stop.store(true, Ordering::Release);
            waker.wake();
        });
    }
}

fn begin_and_carry_out(name: &str, medium: &dyn Medium, round: u64) {
    let mut first = program_io(medium, page(6, 0), 3, 2 * round, true);
    let carry_out = medium.begin(&mut first).unwrap();
    let mut queue = medium.queue(4);
    queue.submit(1, program_io(medium, page(6, 3), 2, 2 * round + 1, round % 2 == 1));
    let next = reap_all(&mut *queue).pop().unwrap();
    next.result.unwrap();
    carry_out().unwrap();
    medium.execute(&mut Io::Persist { offset: 0, data: AlignedBuf::zeroed(4096), len: 4096, barrier: true }).unwrap();
    for (at, io) in [(0, first), (3, next.io)] {
        let Io::Program { data, oob, .. } = io else { panic!("the operation came back as another") };
        let chunk = at * medium.geometry().chunks_per_page();
        assert!(*read(medium, 6, chunk, data.len()) == **data, "{name}: round {round}, page {at}");
        let pages = oob.len() as u32 / medium.geometry().oob_bytes;
        assert!(*read_oob(medium, page(6, at), pages) == *oob, "{name}: round {round}, page {at}");
    }
    erase(medium, 6, round % 3 == 1);
}

/// Goal:   after an erase no page looks programmed and the block takes programs again, released or not.
/// Method: fill, erase, read OOB, program other bytes, read both; also a block abandoned half way.
#[test]
fn erased_blocks_start_again() {
    for Subject { name, medium, .. } in subjects() {
        let medium = &*medium;
        let pages = medium.geometry().pages_per_block;
        for (round, release) in [true, false, false, true].into_iter().enumerate() {
            let seed = 100 * round as u64;
            program(medium, page(1, 0), if round % 2 == 0 { pages } else { pages / 2 }, seed).unwrap();
            medium.execute(&mut Io::Flush).unwrap();
            erase(medium, 1, release);
            let oob = read_oob(medium, page(1, 0), pages);
            assert!(oob.iter().all(|&byte| byte == 0), "{name}: round {round}");
            program(medium, page(1, 0), 3, seed + 50).unwrap();
            let bytes = 3 * medium.geometry().page_bytes as usize;
            assert!(*read(medium, 1, 0, bytes) == *pattern(seed + 50, bytes), "{name}: round {round}");
            assert!(*read_oob(medium, page(1, 0), 3) == *pattern(seed + 51, 96), "{name}: round {round}");
            assert!(read_oob(medium, page(1, 3), pages - 3).iter().all(|&byte| byte == 0), "{name}: round {round}");
            erase(medium, 1, true);
        }
    }
}

/// Goal:   ring and roots keep exactly the bytes written to them.
/// Method: overlapping writes of several lengths against a copy in RAM; both root slots, long and short.
#[test]
fn ring_and_roots_keep_their_bytes() {
    for Subject { name, medium, .. } in subjects() {
        let geometry = medium.geometry().clone();
        let mut ring = vec![0; geometry.ring_bytes as usize];
        let end = geometry.ring_bytes;
        for (step, (offset, len)) in
            [(0, 4096), (512, 512), (8192, 65_536), (4096, 8192), (end - 4096, 4096), (end - 512, 512)]
                .into_iter()
                .enumerate()
        {
            let data = pattern(step as u64, len + 4096);
            ring[offset as usize..offset as usize + len].copy_from_slice(&data[..len]);
            medium.execute(&mut Io::Persist { offset, data, len, barrier: false }).unwrap();
        }
        let mut found = AlignedBuf::zeroed(ring.len());
        medium.read_ring(0, &mut found).unwrap();
        assert!(*found == *ring, "{name}");
        let mut found = AlignedBuf::zeroed(8192);
        medium.read_ring(4096, &mut found).unwrap();
        assert!(*found == ring[4096..12_288], "{name}");

        let root = |slot| {
            let mut found = AlignedBuf::zeroed(geometry.root_bytes as usize);
            medium.read_root(slot, &mut found).unwrap();
            found
        };
        assert!(root(0).iter().chain(root(1).iter()).all(|&byte| byte == 0), "{name}: roots of a new device");
        let (long, short) = (pattern(30, geometry.root_bytes as usize), pattern(31, 512));
        medium.execute(&mut Io::WriteRoot { slot: 1, data: AlignedBuf::copy_of(&long) }).unwrap();
        medium.execute(&mut Io::WriteRoot { slot: 0, data: AlignedBuf::copy_of(&short) }).unwrap();
        assert!(
            *root(1) == *long && root(0)[..512] == *short && root(0)[512..].iter().all(|&byte| byte == 0),
            "{name}"
        );
    }
}

/// Goal:   a queue executes everything it accepted once, programs of a block in order, however many are in flight.
/// Method: far more operations than its depth over several blocks, all kinds mixed; then compare every byte.
#[test]
fn queues_complete_everything_once() {
    for Subject { name, medium, .. } in subjects() {
        let medium = &*medium;
        let geometry = medium.geometry().clone();
        let mut queue = medium.queue(4);
        let (blocks, pages) = (6, geometry.pages_per_block);
        let mut submitted = 0;
        for at in 0..pages {
            for block in 0..blocks {
                let urgent = (at + block) % 29 == 0;
                let seed = u64::from(block * 1000 + at) * 2;
                queue.submit(submitted, program_io(medium, page(block, at), 1, seed, urgent));
                submitted += 1;
            }
            if at % 16 == 5 {
                queue.submit(submitted, Io::Flush);
                queue.submit(
                    submitted + 1,
                    Io::Persist { offset: 4096, data: pattern(at.into(), 4096), len: 4096, barrier: false },
                );
                queue.submit(submitted + 2, Io::ReadOob { at: page(0, 0), into: AlignedBuf::zeroed(32) });
                submitted += 3;
            }
        }
        assert_eq!(queue.in_flight() as u64, submitted, "{name}");
        let done = reap_all(&mut *queue);
        let mut ids: Vec<_> = done.iter().map(|completion| completion.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..submitted).collect::<Vec<_>>(), "{name}");
        for completion in &done {
            assert_eq!(completion.result, Ok(()), "{name}: {:?}", completion.io);
        }
        for block in 0..blocks {
            for at in 0..pages {
                let seed = u64::from(block * 1000 + at) * 2;
                let chunk = at * geometry.chunks_per_page();
                assert!(*read(medium, block, chunk, 4096) == *pattern(seed, 4096), "{name}: block {block} page {at}");
                assert!(*read_oob(medium, page(block, at), 1) == *pattern(seed + 1, 32), "{name}: {block} {at}");
            }
        }
        for block in 0..blocks {
            queue.submit(u64::from(block), Io::Erase { block: BlockIndex(block), release: block % 2 == 0 });
        }
        assert!(reap_all(&mut *queue).iter().all(|completion| completion.result.is_ok()), "{name}");
        for block in 0..blocks {
            program(medium, page(block, 0), 1, 0).unwrap();
        }
    }
}

/// Goal:   a reap that waits ends at once when woken, a wake before it is not lost, and none wakes twice.
/// Method: time reaps with a wake before, during and not at all.
#[test]
fn a_wake_ends_the_wait() {
    const LONG_NS: u64 = 20_000_000_000;
    for Subject { name, medium, .. } in subjects() {
        let mut queue = medium.queue(4);
        let waker = queue.waker();
        let mut done = Vec::new();
        let mut timed = |wait_ns| {
            let start = Instant::now();
            queue.reap(Wait::ForNs(wait_ns), &mut done);
            start.elapsed()
        };
        for round in 0..20 {
            waker.wake();
            waker.wake();
            assert!(timed(LONG_NS) < Duration::from_secs(5), "{name}: a wake before the wait, round {round}");
            assert!(timed(2_000_000) >= Duration::from_millis(2), "{name}: two wakes count once, round {round}");
            let other = Arc::clone(&waker);
            let sleeper = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(3));
                other.wake();
            });
            assert!(timed(LONG_NS) < Duration::from_secs(5), "{name}: a wake during the wait, round {round}");
            sleeper.join().unwrap();
        }
        assert!(done.is_empty(), "{name}");
    }
}

/// Goal:   wakes racing with falling asleep are never lost.
/// Method: two threads pass a token back and forth through two wakers; a lost wake stops the game.
#[test]
fn no_wake_is_lost_in_a_race() {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    const ROUNDS: u64 = 5000;
    for Subject { name, medium, .. } in subjects() {
        let token = AtomicU64::new(0);
        let wakers = [const { OnceLock::new() }; 2];
        std::thread::scope(|scope| {
            for side in 0..2 {
                let (token, wakers, medium) = (&token, &wakers, &medium);
                scope.spawn(move || {
                    let mut queue = medium.queue(1);
                    wakers[side].set(queue.waker()).unwrap_or_else(|_| panic!("set once"));
                    for round in (side as u64..ROUNDS).step_by(2) {
                        let give_up = Instant::now() + Duration::from_secs(20);
                        while token.load(Ordering::Acquire) != round {
                            queue.reap(Wait::ForNs(30_000_000_000), &mut Vec::new());
                            assert!(Instant::now() < give_up, "{name}: a wake was lost in round {round}");
                        }
                        token.store(round + 1, Ordering::Release);
                        wakers[1 - side].wait().wake();
                    }
                });
            }
        });
    }
}

/// Goal:   a wake that races with arming a queue is noticed: by `arm`, or by the descriptor.
/// Method: a thread wakes at some moment around each arming; a caller that goes to wait at the descriptor must find it readable.
#[test]
fn no_wake_is_lost_while_arming() {
    use rustix::event::{PollFd, PollFlags, Timespec};
    use std::sync::atomic::{AtomicU64, Ordering};
    const ROUNDS: u64 = 5000;
    for Subject { name, medium, .. } in subjects() {
        let mut queue = medium.queue(1);
        let (waker, asked) = (queue.waker(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while asked.load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                    (0..round % 512).for_each(|_| std::hint::spin_loop());
                    waker.wake();
                }
            });
            for round in 1..=ROUNDS {
                queue.fd().expect("every medium has one");
                asked.store(round, Ordering::Release);
                if queue.arm() {
                    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
                    let mut fds = [PollFd::from_borrowed_fd(queue.fd().unwrap(), PollFlags::IN)];
                    let told = rustix::event::poll(&mut fds, Some(&limit)).unwrap();
                    if told == 0 {
                        asked.store(ROUNDS, Ordering::Release);
                        panic!("{name}: a wake was lost in round {round}");
                    }
                    queue.reap(Wait::No, &mut Vec::new());
                } else {
                    queue.reap(Wait::ForNs(10_000_000_000), &mut Vec::new());
                }
            }
        });
    }
}

/// Goal:   `execute` can be called by many threads at once.
/// Method: each thread programs its own block, persists to its own part of the ring, reads everything back, flushes.
#[test]
fn many_threads_execute() {
    for Subject { name, medium, .. } in subjects() {
        let medium = &*medium;
        std::thread::scope(|scope| {
            for thread in 0..8u32 {
                scope.spawn(move || {
                    for at in 0..40 {
                        let seed = u64::from(thread * 10_000 + at);
                        let mut io = program_io(medium, page(thread, at), 1, seed, at % 10 == 9);
                        medium.execute(&mut io).unwrap();
                        let offset = u64::from(thread * 40 + at) * 512;
                        medium
                            .execute(&mut Io::Persist { offset, data: pattern(seed, 512), len: 512, barrier: false })
                            .unwrap();
                        if at % 16 == 7 {
                            medium.execute(&mut Io::Flush).unwrap();
                        }
                        let chunk = at * medium.geometry().chunks_per_page() + 3;
                        assert!(*read(medium, thread, chunk, 3000) == pattern(seed, 4096)[192..3192], "{name}");
                        let mut ring = AlignedBuf::zeroed(512);
                        medium.read_ring(offset, &mut ring).unwrap();
                        assert!(*ring == *pattern(seed, 512), "{name}");
                    }
                });
            }
        });
    }
}

/// Goal:   a queue can be dropped with operations in flight; none of them continues afterwards.
/// Method: many reads and an urgent program in flight, dropped; then the block is erased and programmed again.
#[test]
fn a_queue_is_dropped_with_operations_in_flight() {
    for Subject { name: _, medium, .. } in subjects() {
        let medium = &*medium;
        program(medium, page(0, 0), 3, 1).unwrap();
        let mut queue = medium.queue(16);
        for id in 0..100 {
            let at = medium.geometry().chunk_at(BlockIndex(0), 0);
            queue.submit(id, Io::Read { at, into: AlignedBuf::zeroed(100_000) });
        }
        queue.submit(100, program_io(medium, page(40, 0), 1, 1, true));
        drop(queue);
        erase(medium, 40, false);
        program(medium, page(40, 0), 1, 1).unwrap();
        medium.execute(&mut Io::Flush).unwrap();
    }
}
