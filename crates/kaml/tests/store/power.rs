//! Transactions across power cuts.
//!
//! Several threads run random transactions on a device whose flash loses its power in the middle of an operation. What
//! they read and wrote, and what completed, is compared with what exists when power is back (`crash` states how).

use crate::crash;
use crate::moves::Rng;
use crate::said::Sayers;
use kaml::store::Store;
use kaml::{CreateOptions, Device, KeyKind, NamespaceId, NamespaceOptions};
use kaml_device::Core;
use kaml_flash::{Geometry, MemoryMedium};
use std::sync::Arc;

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
    let keys = NamespaceOptions::records(KeyKind::U64);
    let ns = device.create_namespace("n", &keys).unwrap();
    device.close().unwrap();
    (medium, ns)
}

/// Goal:   after a power cut at any operation every acknowledged transaction exists, all others exist whole or not at
///         all, and nothing that exists or completed, readers included, had read from one that is gone. With delayed
///         durability the same of what was done before a flush began that came to its end.
/// Method: 60 cuts, strict, with early release and delayed, after a random number of operations of the medium, each on flash of its
///         own; what no flush covered is kept or lost as determined by a seed.
#[test]
fn answered_transactions_survive_a_power_cut() {
    let (blank, ns) = formatted();
    let mut answered = 0;
    for cut in 0..CUTS {
        let mut rng = Rng::new(cut + 1);
        let (medium, options) = (blank.clone_state(), crash::options(cut));
        let sayers = Sayers::new(&options);
        {
            let device = Device::on_medium(Arc::new(medium.reopen())).unwrap();
            let store = Store::open(device, &options).unwrap();
            medium.cut_after(1 + rng.below(OPERATIONS_MAX));
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (store, medium, sayers) = (&store, &medium, &sayers);
                    let mut rng = Rng::new(cut << 8 | thread);
                    scope.spawn(move || sayers.work(store, (ns, KEYS), &mut rng, || medium.is_cut()));
                }
            });
        }
        medium.power_on(cut);
        let device = Device::on_medium(Arc::new(medium.reopen())).unwrap();
        let said = sayers.said();
        said.check(&device, ns, KEYS);
        answered += said.answered.len();
    }
    assert!(answered > 2000, "{answered} transactions were acknowledged");
}
