//! The laboratory's flash for threads that are scheduled: where a thread would wait for it, another may continue.

use kaml::model;
use kaml_flash::{AlignedBuf, Completion, Geometry, Io, IoId, Medium, MediumError, Queue, Wait, Wake};
use kaml_sim::{SimMedium, SimQueue};
use shuttle::thread::yield_now;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Simulated NAND under the scheduler's threads and clock.
pub(crate) struct Flash(pub(crate) SimMedium);

/// Operations in flight of one thread.
struct FlashQueue {
    flash: SimMedium,
    queue: SimQueue,
    wake: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets others continue, and then the next thing happen on the flash, or time pass if nothing is due by `until`.
fn go_on(flash: &SimMedium, until: u64) {
    yield_now();
    flash.wait_until(model::now().as_nanos() as u64);
    match flash.next_event() {
        Some(when) if when <= until => drop(flash.advance()),
        _ if until < u64::MAX => flash.wait_until(until),
        _ => {} // somebody else has made it happen
    }
    model::advance_to(Duration::from_nanos(flash.now_ns()));
}

impl Queue for FlashQueue {
    fn submit(&mut self, id: IoId, io: Io) {
        self.queue.submit(id, io);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) {
        let before = done.len();
        self.queue.reap(Wait::No, done);
        if let Wait::ForNs(ns) = wait {
            let until = self.flash.now_ns().saturating_add(ns);
            while done.len() == before && !self.wake.0.load(Ordering::Relaxed) && self.flash.now_ns() < until {
                // Others' operations may end before this wait does.
                let step = if self.queue.in_flight() > 0 { until } else { self.flash.now_ns() + ns.div_ceil(4) };
                go_on(&self.flash, step.min(until));
                self.queue.reap(Wait::No, done);
            }
        }
        self.wake.0.store(false, Ordering::Relaxed);
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.wake.clone()
    }
}

impl Medium for Flash {
    fn geometry(&self) -> &Geometry {
        self.0.geometry()
    }

    fn uuid(&self) -> [u8; 16] {
        self.0.uuid()
    }

    fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
        let (mut queue, mut done) = (SimQueue::new(&self.0), Vec::new());
        queue.submit(0, std::mem::replace(io, Io::Flush));
        loop {
            queue.reap(Wait::No, &mut done);
            if let Some(completion) = done.pop() {
                *io = completion.io;
                return completion.result;
            }
            go_on(&self.0, u64::MAX);
        }
    }

    fn queue(&self, _depth: u32) -> Box<dyn Queue> {
        let queue = SimQueue::new(&self.0);
        Box::new(FlashQueue { flash: self.0.clone(), queue, wake: Arc::default() })
    }

    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.0.read_root(slot, into)
    }

    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.0.read_ring(offset, into)
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}
