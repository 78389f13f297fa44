//! The clock of a device, by which records expire.
//!
//! Lives here:       a clock that never goes back, made of what a host's clocks report.
//! Lives elsewhere:  the host's clocks (the drivers in `kaml`), what expires (`expiry`), where the root stores the time (`format::root`).
//! Implements:       docs/ARCHITECTURE.md "Expiry".

use crate::format::record::EXPIRES_MAX;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// What a host's clocks report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostTime {
    /// Milliseconds since 1970. It can jump in both directions.
    pub unix_ms: u64,
    /// Milliseconds since any moment. It never goes back.
    pub monotonic_ms: u64,
}

type Source = Box<dyn Fn() -> HostTime + Send + Sync>;

/// The clock of a device, in milliseconds since 1970. It never goes back, not even over openings: it continues from the time in the last root.
/// If the host's clock is set back, the device's clock continues with the speed of the monotonic one. If it is set forward, the device's clock
/// follows.
///
/// # Examples
/// ```
/// let clock = kaml_device::DeviceClock::default();
/// clock.advance_to(1000);
/// clock.advance_to(400);
/// assert_eq!(clock.now_ms(), 1000);
/// ```
#[derive(Default)]
pub struct DeviceClock {
    source: OnceLock<Source>,
    /// What is added to the monotonic time: it only grows.
    offset: AtomicI64,
    latest: AtomicU64,
}

impl DeviceClock {
    /// From now on the time comes from a host's clocks. The first source counts.
    pub fn set_source(&self, source: impl Fn() -> HostTime + Send + Sync + 'static) {
        let now = source();
        let behind = self.latest.load(Ordering::SeqCst).max(now.unix_ms) as i64 - now.monotonic_ms as i64;
        self.offset.store(behind, Ordering::SeqCst);
        let _ = self.source.set(Box::new(source));
    }

    /// The time now. Without a source it is the latest that it was advanced to.
    pub fn now_ms(&self) -> u64 {
        let latest = self.latest.load(Ordering::Relaxed);
        let Some(source) = self.source.get() else { return latest };
        let host = source();
        let offset = host.unix_ms as i64 - host.monotonic_ms as i64;
        let known = self.offset.load(Ordering::Relaxed);
        let offset = if offset > known { self.offset.fetch_max(offset, Ordering::Relaxed).max(offset) } else { known };
        let now = host.monotonic_ms.saturating_add_signed(offset);
        self.reach(latest, now)
    }

    /// The latest time that anybody has seen.
    pub fn latest_ms(&self) -> u64 {
        self.latest.load(Ordering::SeqCst)
    }

    /// It is at least this time. For laboratories, and for what a root reports.
    pub fn advance_to(&self, time_ms: u64) {
        self.reach(self.latest.load(Ordering::Relaxed), time_ms);
    }

    /// Written only when it changes, so readers share the line.
    fn reach(&self, latest: u64, time_ms: u64) -> u64 {
        let time_ms = time_ms.min(EXPIRES_MAX);
        if time_ms <= latest { latest } else { self.latest.fetch_max(time_ms, Ordering::SeqCst).max(time_ms) }
    }
}

impl std::fmt::Debug for DeviceClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceClock").field("latest_ms", &self.latest_ms()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Goal:   the clock follows the host's forward, never goes back, and continues when the host's has gone back.
    /// Method: host clocks that jump, and the time that is expected after each.
    #[test]
    fn it_never_goes_back() {
        let host = Arc::new((AtomicU64::new(5000), AtomicU64::new(10)));
        let seen = host.clone();
        let clock = DeviceClock::default();
        clock.advance_to(7000); // as of the last root
        clock.set_source(move || HostTime {
            unix_ms: seen.0.load(Ordering::SeqCst),
            monotonic_ms: seen.1.load(Ordering::SeqCst),
        });
        for (unix_ms, monotonic_ms, expected) in [
            (5000, 10, 7000),
            (5100, 110, 7100),     // the host's clock is behind, and time passes nevertheless
            (9000, 210, 9000),     // set forward
            (2000, 310, 9100),     // set back
            (2500, 810, 9600),     // and time passes
            (9601, 811, 9601),     // it has caught up
            (50_000, 811, 50_000), // wrong by far
            (9700, 911, 50_100),
        ] {
            host.0.store(unix_ms, Ordering::SeqCst);
            host.1.store(monotonic_ms, Ordering::SeqCst);
            assert_eq!((clock.now_ms(), clock.latest_ms()), (expected, expected));
        }
    }

    /// Goal:   a clock that shows the end of time breaks nothing.
    /// Method: the largest times.
    #[test]
    fn it_ends_with_the_times_of_the_journal() {
        let clock = DeviceClock::default();
        clock.set_source(|| HostTime { unix_ms: u64::MAX >> 1, monotonic_ms: 0 });
        assert_eq!(clock.now_ms(), EXPIRES_MAX);
    }
}
