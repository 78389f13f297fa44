//! One thing after the other, from several threads: most of their time is waiting for the device.

use crate::failure::Failure;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;

/// This many Puts of theirs share a flush, and so many reads are in flight.
pub const THREADS: usize = 8;

/// Does the work for all of them, in any order, as long as it `goes_on`; the first failure ends it. What was begun is finished.
/// The caller works too, and does all of it alone where no thread can be started.
pub fn for_each<T: Send>(
    all: impl IntoIterator<Item = T, IntoIter: Send>,
    goes_on: impl Fn() -> bool + Sync,
    work: impl Fn(T) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    with_threads(Builder::new, all, goes_on, work)
}

fn with_threads<T: Send>(
    builder: impl Fn() -> Builder,
    all: impl IntoIterator<Item = T, IntoIter: Send>,
    goes_on: impl Fn() -> bool + Sync,
    work: impl Fn(T) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    let (all, failure, has_failed) = (Mutex::new(all.into_iter()), Mutex::new(None), AtomicBool::new(false));
    let next = || all.lock().expect("iterators do not panic").next();
    let work_on = || {
        while !has_failed.load(Ordering::Relaxed)
            && goes_on()
            && let Some(one) = next()
        {
            if let Err(error) = work(one) {
                has_failed.store(true, Ordering::Relaxed);
                failure.lock().expect("nothing panics under this lock").get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..THREADS {
            if builder().spawn_scoped(scope, work_on).is_err() {
                break;
            }
        }
        work_on();
    });
    failure.into_inner().expect("nothing panics under this lock").map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Goal:   everything is done once, unless it fails or is to end; then soon nothing more is begun.
    /// Method: a thousand numbers are added; one fails; it ends after a hundred.
    #[test]
    fn all_or_the_first_failure() {
        let (sum, count) = (AtomicU64::new(0), AtomicU64::new(0));
        let add = |number| {
            count.fetch_add(1, Ordering::Relaxed);
            sum.fetch_add(number, Ordering::Relaxed);
            Ok(())
        };
        for_each(1..=1000, || true, add).unwrap();
        assert_eq!(sum.swap(0, Ordering::Relaxed), 500_500);
        let fails = |number| if number == 500 { Err(Failure::Failed("500".into())) } else { add(number) };
        assert!(matches!(for_each(1..=1_000_000, || true, fails), Err(Failure::Failed(what)) if what == "500"));
        assert!(sum.swap(0, Ordering::Relaxed) < 500_000_000_000);
        count.store(0, Ordering::Relaxed);
        for_each(1.., || count.load(Ordering::Relaxed) < 100, add).unwrap();
        assert!(count.into_inner() < 100 + THREADS as u64);
    }

    /// Goal:   everything is done once where no thread can be started.
    /// Method: threads are created with a stack that no machine has; a thousand numbers are added.
    #[test]
    fn all_without_threads() {
        let sum = AtomicU64::new(0);
        let add = |number| {
            sum.fetch_add(number, Ordering::Relaxed);
            Ok(())
        };
        with_threads(|| Builder::new().stack_size(1 << 60), 1..=1000, || true, add).expect("the caller does it");
        assert_eq!(sum.into_inner(), 500_500);
    }
}
