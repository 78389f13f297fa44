//! Transactions that only read, on a snapshot.

use kaml::store::{Store, StoreOptions, WriteMode};
use kaml::{CreateOptions, Device, KeyKind, NamespaceId, NamespaceOptions};
use kaml_testkit::Rng;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ACCOUNTS: u64 = 200;
const EACH: u64 = 1000;

fn opened(options: StoreOptions) -> (Store, NamespaceId) {
    let device = Device::in_memory(&CreateOptions::new(128 << 20)).unwrap();
    let namespace = device.create_namespace("n", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    let store = Store::open(device, &options).unwrap();
    (0..=ACCOUNTS).for_each(|account| store.put(namespace, account, &EACH.to_le_bytes()).unwrap());
    store.flush().unwrap();
    (store, namespace)
}

fn amount(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

fn transfer(store: &Store, namespace: NamespaceId, from: u64, to: u64) {
    store
        .run(|txn| {
            let (old_from, old_to) =
                (txn.read_for_update(namespace, from)?.unwrap(), txn.read_for_update(namespace, to)?.unwrap());
            let moved = amount(&old_from).min(7);
            txn.update(namespace, from, &(amount(&old_from) - moved).to_le_bytes())?;
            txn.update(namespace, to, &(amount(&old_to) + moved).to_le_bytes())
        })
        .unwrap();
}

/// Ends the other threads, also when its own fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Goal:   a transaction that only reads sees a state between two transactions, in every mode, by gets and by ranges; it shows what was
///         flushed before it began.
/// Method: threads that move amounts between accounts, whose sum never changes, and a counter that grows with each flush.
#[test]
fn sums_never_change() {
    let base = || StoreOptions { lock_timeout: Duration::from_secs(20), ..StoreOptions::new(2 << 20) };
    let modes = [
        ("strict", base()),
        ("early release", StoreOptions { early_release: true, ..base() }),
        ("delayed", StoreOptions { durability_delay: Duration::from_millis(5), ..base() }),
        ("write back", StoreOptions { write_mode: WriteMode::Back, ..base() }),
    ];
    for (mode, options) in modes {
        let (store, namespace) = opened(options);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _over = Over(&is_over);
            for writer in 0..3 {
                let (store, is_over) = (&store, &is_over);
                scope.spawn(move || {
                    let _over = Over(is_over);
                    let mut rng = Rng::new(writer);
                    while !is_over.load(Ordering::Relaxed) {
                        let from = rng.below(ACCOUNTS);
                        transfer(store, namespace, from, (from + 1 + rng.below(ACCOUNTS - 1)) % ACCOUNTS);
                    }
                });
            }
            for round in 0..60u64 {
                assert!(!is_over.load(Ordering::Relaxed), "{mode}: a writer failed");
                store.run(|txn| txn.update(namespace, ACCOUNTS, &round.to_le_bytes())).unwrap();
                store.flush().unwrap();
                let view = store.read_only().unwrap();
                let total = match round % 2 {
                    0 => view.range(namespace, 0..ACCOUNTS).map(|entry| amount(&entry.unwrap().1)).sum::<u64>(),
                    _ => (0..ACCOUNTS).map(|key| amount(&view.get(namespace, key).unwrap().unwrap())).sum(),
                };
                assert_eq!(total, ACCOUNTS * EACH, "{mode}");
                assert_eq!(view.get(namespace, ACCOUNTS).unwrap().as_deref().map(amount), Some(round), "{mode}");
            }
        });
    }
}

/// Goal:   a transaction that only reads waits for no lock, and shows nothing of transactions that have not committed.
/// Method: a record that a transaction has locked and changed, with a timeout that would end the test.
#[test]
fn locks_do_not_matter() {
    let (store, namespace) =
        opened(StoreOptions { lock_timeout: Duration::from_secs(60), ..StoreOptions::new(2 << 20) });
    let mut txn = store.begin().unwrap();
    txn.update(namespace, 1u64, &5u64.to_le_bytes()).unwrap();
    let begun = std::time::Instant::now();
    let before = store.read_only().unwrap();
    assert_eq!(before.get(namespace, 1u64).unwrap().as_deref().map(amount), Some(EACH));
    assert_eq!(before.count(namespace, 0u64..).unwrap(), ACCOUNTS + 1);
    assert!(begun.elapsed() < Duration::from_secs(30));
    txn.commit().unwrap();
    assert_eq!(before.get(namespace, 1u64).unwrap().as_deref().map(amount), Some(EACH));
    let after = store.read_only().unwrap();
    assert_eq!(after.get(namespace, 1u64).unwrap().as_deref().map(amount), Some(5));
}
