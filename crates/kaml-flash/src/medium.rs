//! The `Medium` contract: what flash, the commit ring and the root slots can do, as values.
//!
//! Lives here:       operations, their answers, and what each promises.
//! Lives elsewhere:  when to issue them (`kaml-device`), how (`file`, `memory`, a simulator).
//! Implements:       docs/ARCHITECTURE.md "The medium contract"; paper:KAML IV.B (non-volatile buffer = commit ring).
//!
//! What is durable when an operation is done, and what a power cut may leave:
//!
//! | operation | durable when done | a power cut before that leaves |
//! |---|---|---|
//! | `Read` | – | – |
//! | `Program` | no; after a later `Flush`, or if `urgent` a later `Persist` with `barrier` | any subset of its sectors, data and OOB apart |
//! | `Erase` | no; after a later `Flush` | the block whole, erased, or in between |
//! | `Persist` | yes; with `barrier` also the urgent programs completed before it was submitted | any subset of its sectors, and of those programs |
//! | `WriteRoot` | yes | any subset of that slot's sectors; the other slot is untouched |
//! | `Resize` | yes | the old size or the new one |
//! | `Flush` | everything done before it was submitted | – |
//!
//! NAND rules, refused by every medium: a program starts at its block's next unprogrammed page (page 0 of a block
//! that was not touched since the medium was opened is accepted), covers whole program units, and is within one block;
//! a block is programmed once between erases.

use crate::{AlignedBuf, BlockIndex, ChunkAddr, Geometry, PageAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Names an operation in flight; chosen by the caller.
pub type IoId = u64;

/// One operation. Buffers travel with it and come back in its [`Completion`].
#[derive(Debug)]
pub enum Io {
    /// Reads `into.len()` bytes of page data starting at a chunk; stays within one block. Any length and chunk
    /// alignment is accepted; the medium widens the read to its own sectors and trims the answer.
    Read {
        /// The first chunk.
        at: ChunkAddr,
        /// Receives the bytes; its length is how many are needed.
        into: AlignedBuf,
    },
    /// Reads the OOB bytes of `into.len() / oob_bytes` pages. A page never programmed, or whose OOB was lost in a
    /// power cut, reads all zeroes or all ones.
    ReadOob {
        /// The first page.
        at: PageAddr,
        /// Receives the OOB bytes.
        into: AlignedBuf,
    },
    /// Programs whole program units in order.
    Program {
        /// The first page.
        at: PageAddr,
        /// Page data, a multiple of the program unit; shared, so the firmware can serve reads from it meanwhile.
        data: Arc<AlignedBuf>,
        /// OOB bytes, `oob_bytes` for each page of `data`.
        oob: Vec<u8>,
        /// Data and OOB are made durable by the next `Persist` with `barrier`, not only by a `Flush`.
        urgent: bool,
    },
    /// Erases a block. With `release` the space is released to what lies below (hole punching, discard).
    Erase {
        /// The block.
        block: BlockIndex,
        /// Release the space.
        release: bool,
    },
    /// Writes `len` bytes (a multiple of `sector_bytes`) at a byte offset of the commit ring, not wrapping; durable
    /// when done.
    Persist {
        /// Byte offset in the ring, a multiple of `sector_bytes`.
        offset: u64,
        /// The bytes; may be longer than `len`.
        data: AlignedBuf,
        /// How many bytes of `data` to write.
        len: usize,
        /// Urgent programs completed before this was submitted become durable with it.
        barrier: bool,
    },
    /// Replaces the start of one of the two root slots, and of the mirror if there is one; durable when done.
    WriteRoot {
        /// 0 or 1.
        slot: u8,
        /// The bytes, a multiple of `sector_bytes`.
        data: AlignedBuf,
    },
    /// Makes every operation completed before it was submitted durable.
    Flush,
    /// Gives each die this many blocks; durable when done. New blocks are appended, and read as if they had never been programmed. Blocks
    /// beyond the new end are gone: the caller keeps nothing in them. No root is written meanwhile.
    Resize {
        /// Blocks of each die from now on.
        blocks_per_die: u32,
        /// Bytes of the file or block device that hold them; 0: as few as do.
        capacity_bytes: u64,
        /// The space of new blocks is taken from the file system now, or else the size does not change.
        reserve: bool,
    },
}

/// What an operation came to; buffers are returned in `io`.
#[derive(Debug)]
pub struct Completion {
    /// The caller's name for it.
    pub id: IoId,
    /// The operation with its buffers.
    pub io: Io,
    /// Done, or why not.
    pub result: Result<(), MediumError>,
}

/// A failure of the medium, or a rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MediumError {
    /// Our own FTL asserts that it never causes one.
    #[error("{at}: program out of order, next programmable page is {expected}")]
    OutOfOrder {
        /// Where.
        at: PageAddr,
        /// The page that can be programmed next; `pages_per_block` when the block is full.
        expected: u32,
    },
    /// Address or length outside the geometry.
    #[error("{what}: outside the device or badly aligned")]
    BadRange {
        /// The operation and its numbers.
        what: String,
    },
    /// Expected in the life of a device: the block is to be retired, its records go elsewhere.
    #[error("{block}: {what} failed: {error}")]
    BlockFailed {
        /// The block.
        block: BlockIndex,
        /// "program" or "erase".
        what: &'static str,
        /// The error of the system.
        error: String,
    },
    /// The size does not change. Nothing is lost, and the medium can be used.
    #[error("the size cannot be changed: {why}")]
    NotResized {
        /// What is in the way, with its numbers.
        why: String,
    },
    /// The firmware's: a block failed where no other was left for what must be written. What is stored can be read as long as the
    /// device is open, and salvaged.
    #[error("the flash is worn out: {bad_blocks} blocks are bad, and no other is free for what must be written")]
    WornOut {
        /// Blocks that have failed.
        bad_blocks: u32,
    },
    /// The file system below has no space left.
    #[error("no space left below the device ({what})")]
    NoSpace {
        /// The operation.
        what: String,
    },
    /// Reading failed.
    #[error("{what}: read failed: {error}")]
    ReadFailed {
        /// The address.
        what: String,
        /// The error of the system.
        error: String,
    },
    /// A ring, root or flush operation failed: nothing new can be made durable.
    #[error("{what} failed: {error}")]
    NotDurable {
        /// "commit ring write", "root write" or "flush".
        what: &'static str,
        /// The error of the system.
        error: String,
    },
    /// The medium was cut off (power cut in a simulation, device unplugged).
    #[error("the medium is gone")]
    Gone,
}

/// How long [`Queue::reap`] may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until one completion, a wake, or the time-out in nanoseconds.
    ForNs(u64),
}

/// Ends the wait of a [`Queue`] from any thread.
pub trait Wake: Send + Sync {
    /// Makes a `reap` in progress, or else the next one, return at once.
    fn wake(&self);
}

/// Operations in flight of the thread that made the queue, which keeps it: kernels serve one thread's ring best. When a queue is dropped, each operation it had accepted is
/// executed or not, as in a power cut, and none is afterwards.
pub trait Queue: Send {
    /// Accepts an operation; may start it now or at the next `reap`. Programs of one block start in this order.
    fn submit(&mut self, id: IoId, io: Io);
    /// Starts what was accepted and appends what is done, and waits as `wait` requests if nothing is.
    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>);
    /// Operations accepted and not yet reaped.
    fn in_flight(&self) -> usize;
    /// From now on the queue takes a share of what [`Medium::begin`] has begun on other threads, whenever it is reaped. Its owner
    /// must continue reaping it: they wait for it.
    fn help(&mut self) {}
    /// A handle that ends waits.
    fn waker(&self) -> Arc<dyn Wake>;
    /// What becomes readable when an armed queue has something to reap or was woken, for those who wait for more than
    /// this queue; nothing if the queue can only be waited for in `reap`.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Starts what was accepted and gets ready for waiting at [`Queue::fd`], until the next `reap`. Returns false if
    /// there is a reason not to wait: something to reap, or a wake that came already.
    fn arm(&mut self) -> bool {
        false
    }
}

/// Executes an operation that has begun.
pub type Begun<'a> = Box<dyn FnOnce() -> Result<(), MediumError> + 'a>;

/// A flash array with a commit ring and two root slots.
pub trait Medium: Send + Sync {
    /// The shape as of opening. Only the number of blocks of each die changes, with [`Io::Resize`].
    fn geometry(&self) -> &Geometry;
    /// Blocks that each die would have if the medium took this many bytes of what it lies in; nothing if it cannot be resized.
    fn blocks_in(&self, _capacity_bytes: u64) -> Option<u32> {
        None
    }
    /// Bytes of what it lies in that the medium takes now; nothing if that means nothing.
    fn capacity_bytes(&self) -> Option<u64> {
        None
    }
    /// Bytes up to which it may grow by itself; nothing if it has a fixed size.
    fn grows_up_to(&self) -> Option<u64> {
        None
    }
    /// Identifies the formatted device; ring frames and roots bear it, so bytes of another life never count.
    fn uuid(&self) -> [u8; 16];
    /// What others know the device by: [`Medium::uuid`] unless it has got another identity, as a copy of a device needs.
    fn identity(&self) -> [u8; 16] {
        self.uuid()
    }
    /// Executes one operation on the caller's thread. Safe from many threads at once.
    fn execute(&self, io: &mut Io) -> Result<(), MediumError>;
    /// As [`Medium::execute`] for a caller that must state where in the order of operations this one is, without waiting for it: when this
    /// returns, programs of the block that are submitted later start after it. The closure that it returns executes the operation, and must be called.
    fn begin<'a>(&'a self, io: &'a mut Io) -> Result<Begun<'a>, MediumError> {
        self.execute(io).map(|()| -> Begun<'a> { Box::new(|| Ok(())) })
    }
    /// A new queue for many operations in flight.
    fn queue(&self, depth: u32) -> Box<dyn Queue>;
    /// Reads the start of a root slot.
    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError>;
    /// Reads the start of the mirror: a copy of the root that was written last or begun to be written, far from the slots, for
    /// a device of which one or both are lost. Zeroes if there is none.
    fn read_mirror(&self, into: &mut AlignedBuf) -> Result<(), MediumError> {
        into.fill(0);
        Ok(())
    }
    /// Reads the commit ring at a byte offset (multiple of `sector_bytes`, not wrapping).
    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError>;
    /// Whether operations take no time but the caller's own, so leaving them to another thread only costs.
    fn is_immediate(&self) -> bool {
        false
    }
    /// Whether the same holds of ring writes (without `barrier`), whatever other operations take.
    fn persists_at_once(&self) -> bool {
        self.is_immediate()
    }
    /// Asks the processor to fetch what an operation will read, which is executed soon.
    fn prefetch(&self, _: &Io) {}
    /// Words for a person: what it is, and any fallback it had to take.
    fn describe(&self) -> String;
}
