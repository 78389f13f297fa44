//! Queues that delay operations.

use kaml_flash::{Completion, Io, IoId, Queue, Wait, Wake};
use std::sync::Arc;

struct HeldQueue<K> {
    queue: Box<dyn Queue>,
    keeps: K,
    held: Vec<(IoId, Io)>,
}

/// Makes queues delay each operation until `keeps` returns false for it. It is called at each reap.
pub fn hold_back<K>(keeps: K) -> impl Fn(Box<dyn Queue>) -> Box<dyn Queue>
where
    K: Fn(&Io, Wait) -> bool + Clone + Send + 'static,
{
    move |queue| Box::new(HeldQueue { queue, keeps: keeps.clone(), held: Vec::new() })
}

impl<K: Fn(&Io, Wait) -> bool + Send> Queue for HeldQueue<K> {
    fn submit(&mut self, id: IoId, io: Io) {
        self.held.push((id, io));
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) {
        let (held, free) = std::mem::take(&mut self.held).into_iter().partition(|(_, io)| (self.keeps)(io, wait));
        self.held = held;
        Vec::into_iter(free).for_each(|(id, io)| self.queue.submit(id, io));
        let is_short = !self.held.is_empty() && matches!(wait, Wait::ForNs(_));
        self.queue.reap(if is_short { Wait::ForNs(1_000_000) } else { wait }, done);
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight() + self.held.len()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.queue.waker()
    }
}
