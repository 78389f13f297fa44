//! Versions of nodes: how a reader notices that a node changed while it was read.
//!
//! Lives here:       the array of versions, the two sides of its protocol, and the argument why it is sound.
//! Lives elsewhere:  what is read and changed (`tree`, `writer`).
//! May be called by: the tree and its writer.
//!
//! A node has no version of its own. The number of its first line chooses one of `COUNT` versions, in an array that is never
//! anything else. Memory of nodes is reused at once, for nodes of other sizes and at other boundaries, so a version inside a node
//! could be overwritten by a key that looks like it. A version in the array only grows. Two nodes that share a version cost a
//! reader a repetition when the other one changes, no more.
//!
//! - The writer makes the versions of all nodes that it changes or frees odd (relaxed), fences (release), stores (relaxed), and makes
//!   them even (release).
//! - A reader loads the version (acquire), reads (relaxed), fences (acquire), and loads the version again. If it is equal and even,
//!   all that was read stood together. If any load returned a value from after the writer's fence, the reader's fence
//!   orders its second load after the odd version.
//! - A freed node's version changes before its lines are reused or returned to the system. The stores of the next user come after
//!   a release fence that follows the change. So the same argument covers a reader of a node that no longer exists.
//! - A child counts as read at a moment at which it was a child: the reader takes the child's version before it checks the parent's
//!   for the last time.

use std::sync::atomic::{AtomicU64, Ordering::*, fence};

const COUNT_LOG2: u32 = 9;
const COUNT: usize = 1 << COUNT_LOG2;

/// All versions of a tree.
pub(crate) struct Versions(Box<[AtomicU64]>);

/// A version that a reader saw before it read.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReadVersion {
    at: u32,
    version: u64,
}

/// Versions that the writer has made odd.
#[derive(Default)]
pub(crate) struct Changing(Vec<usize>);

impl Versions {
    pub(crate) fn new() -> Versions {
        Versions((0..COUNT).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    #[inline]
    fn at(line: u32) -> usize {
        (line.wrapping_mul(0x9e37_79b9) >> (32 - COUNT_LOG2)) as usize
    }

    /// Begins to read the node with this first line; none while the writer changes it.
    #[inline]
    pub(crate) fn begin_read(&self, line: u32) -> Option<ReadVersion> {
        let at = Self::at(line);
        let version = self.0[at].load(Acquire);
        (version & 1 == 0).then_some(ReadVersion { at: at as u32, version })
    }

    /// Whether the node is as it was when reading it began.
    #[inline]
    pub(crate) fn is_unchanged(&self, seen: ReadVersion) -> bool {
        fence(Acquire);
        self.0[seen.at as usize & (COUNT - 1)].load(Relaxed) == seen.version
    }

    /// Keeps readers from trusting what they read of the node with this first line, until `commit`. For the one writer.
    #[inline]
    pub(crate) fn begin_change(&self, line: u32, changing: &mut Changing) {
        let at = Self::at(line);
        if !changing.0.contains(&at) {
            let version = self.0[at].load(Relaxed);
            assert!(version & 1 == 0, "one writer, one change at a time");
            self.0[at].store(version + 1, Relaxed);
            changing.0.push(at);
        }
        fence(Release);
    }

    /// Ends a change.
    #[inline]
    pub(crate) fn commit(&self, changing: &mut Changing) {
        for at in changing.0.drain(..) {
            self.0[at].store(self.0[at].load(Relaxed) + 1, Release);
        }
    }
}
