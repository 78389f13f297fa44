//! Transactions across power cuts.
//!
//! Several threads run random transactions on a device whose flash loses its power in the middle of an operation. What
//! they read and wrote, and what was answered, is compared with what is there when power is back (`crash` says how).

use crate::crash::{self, Said};
use crate::history;
use crate::serial::Record;
use crate::world::Rng;
use kaml::store::Store;
use kaml::{CreateOptions, Device, KeyKind, NamespaceId, NamespaceOptions};
use kaml_device::Core;
use kaml_flash::{Geometry, MemoryMedium};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const THREADS: u64 = 4;
const KEYS: u64 = 40;
/// Operations of the medium before the cut, at most: a few hundred transactions.
const OPERATIONS_MAX: u64 = 400;
const CUTS: u64 = 60;

/// Flash with an empty namespace.
fn formatted() -> (MemoryMedium, NamespaceId) {
    let options = CreateOptions::new(64 << 20);
    let medium = MemoryMedium::new(Geometry::for_file(options.capacity_bytes, 512, &options).unwrap());
    Core::format(&medium).unwrap();
    let device = Device::on_medium(Arc::new(medium.reopen())).unwrap();
    let keys = NamespaceOptions { keys: KeyKind::U64, ..NamespaceOptions::default() };
    let ns = device.create_namespace("n", &keys).unwrap();
    device.close().unwrap();
    (medium, ns)
}

/// What the threads of one cut share.
#[derive(Default)]
struct Shared {
    is_delayed: bool,
    next: AtomicU64,
    said: Mutex<Said>,
    /// Transactions that are done and need not be durable.
    done: Mutex<Vec<u64>>,
}

/// Transactions until the power is gone.
fn work(store: &Store, ns: NamespaceId, medium: &MemoryMedium, rng: &mut Rng, shared: &Shared) {
    let Shared { is_delayed, next, said, done } = shared;
    while !medium.is_cut() {
        let id = 1 + next.fetch_add(1, Ordering::Relaxed);
        let Ok(mut txn) = store.begin() else { continue };
        // A read that fails, or a lock that is not given, leaves nothing behind.
        let Ok(accesses) = history::transact(&mut txn, ns, id, rng, KEYS, false) else { continue };
        said.lock().unwrap().records.insert(id, Record { id, accesses, span: (0, 1) });
        if txn.commit().is_err() {
            continue;
        }
        if !is_delayed {
            said.lock().unwrap().answered.insert(id);
            continue;
        }
        done.lock().unwrap().push(id);
        if rng.below(8) == 0 {
            let before: Vec<u64> = done.lock().unwrap().clone();
            if store.flush().is_ok() {
                said.lock().unwrap().answered.extend(before);
            }
        }
    }
}

/// Goal:   after a power cut at any operation every answered transaction is there, all others are there whole or not at
///         all, and nothing that is there or was answered, readers included, had read from one that is gone. With delayed
///         durability the same of what was done before a flush began that came to its end.
/// Method: 60 cuts, strict, with early release and delayed, after a random number of operations of the medium, each on flash of its
///         own; what no flush covered is kept or lost as a seed says.
#[test]
fn answered_transactions_survive_a_power_cut() {
    let (blank, ns) = formatted();
    let mut answered = 0;
    for cut in 0..CUTS {
        let mut rng = Rng::new(cut + 1);
        let (medium, options) = (blank.clone_state(), crash::options(cut));
        let shared = Shared { is_delayed: !options.durability_delay.is_zero(), ..Shared::default() };
        {
            let device = Device::on_medium(Arc::new(medium.reopen())).unwrap();
            let store = Store::open(device, &options).unwrap();
            medium.cut_after(1 + rng.below(OPERATIONS_MAX));
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (store, medium, shared) = (&store, &medium, &shared);
                    scope.spawn(move || work(store, ns, medium, &mut Rng::new(cut << 8 | thread), shared));
                }
            });
        }
        medium.power_on(cut);
        let device = Device::on_medium(Arc::new(medium.reopen())).unwrap();
        let said = shared.said.into_inner().unwrap();
        said.check(&device, ns, KEYS);
        answered += said.answered.len();
    }
    assert!(answered > 2000, "{answered} transactions were answered");
}
