//! What the programs do when the system refuses memory or threads: one sentence that names the remedy, and exit code 1.
//!
//! Lives here:       the allocator of the programs, and what a panic reports that the system is the reason of.
//! Lives elsewhere:  errors that callers can handle (`failure`).
#![allow(unsafe_code, reason = "an allocator hands out memory")]

use crate::passing;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a person can do about it.
const REMEDY: &str =
    "raise the limit (`ulimit -v`, a container's) or end other programs; what was acknowledged is safe";

/// How panics of the standard library and of the index begin that have their reason in the system, and what can be done.
const REFUSALS: [(&str, &str); 4] = [
    ("no address space", REMEDY),
    ("failed to allocate an alternative stack", REMEDY),
    (
        "failed to spawn thread",
        "raise the limit of threads (`ulimit -u`, a container's); what was acknowledged is safe",
    ),
    ("failed to generate random data", "allow the system call getrandom; what was acknowledged is safe"),
];

/// The system's allocator. A program that it refuses memory ends as if it were killed: nothing that was acknowledged is lost.
pub struct SystemMemory;

// SAFETY: every call is handed to the system's allocator as it is; a null pointer is the only result that does not come back.
unsafe impl GlobalAlloc for SystemMemory {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this trait, which is that of `System`.
        demand(unsafe { System.alloc(layout) }, layout.size())
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        demand(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        demand(unsafe { System.realloc(at, layout, size) }, size)
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[inline]
fn demand(memory: *mut u8, size: usize) -> *mut u8 {
    if memory.is_null() {
        end_without(size);
    }
    memory
}

/// Ends the program without allocating.
#[cold]
fn end_without(size: usize) -> ! {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if ENDING.swap(true, Ordering::Relaxed) {
        // Another thread is ending the program, or this one is and needs memory for it.
        std::process::abort();
    }
    let mut line = [0; 256];
    let mut rest = &mut line[..];
    // A line that is too long is cut, and nothing is reported if standard error is closed.
    let _ = writeln!(rest, "kaml: the system refuses {size} bytes of memory: {REMEDY}");
    let unused = rest.len();
    let _ = std::io::stderr().write_all(&line[..line.len() - unused]);
    std::process::exit(1)
}

/// From now on a panic because the system refuses memory, threads or random numbers ends the program with one sentence. Other panics
/// are bugs, and are reported as they were.
pub fn explain_panics() {
    let bugs = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or_default();
        let Some((_, remedy)) = REFUSALS.iter().find(|(begins, _)| text.starts_with(begins)) else {
            return bugs(panic);
        };
        let _closed = passing::remove_all();
        let _ = writeln!(std::io::stderr(), "kaml: {text}: {remedy}");
        std::process::exit(1);
    }));
}
