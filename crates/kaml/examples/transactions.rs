//! Serializable transactions: eight threads move money between accounts, and no sum is ever lost.
//! `cargo run -p kaml --example transactions`

use kaml::store::{Store, StoreOptions};
use kaml::{CreateOptions, Device, NamespaceOptions};

const ACCOUNTS: u64 = 100;
const THREADS: u64 = 8;
const TRANSFERS: u64 = 200;

fn amount(value: Option<impl AsRef<[u8]>>) -> u64 {
    value.and_then(|value| value.as_ref().try_into().ok().map(u64::from_le_bytes)).unwrap_or(0)
}

fn main() -> Result<(), kaml::Error> {
    let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    let accounts = device.ensure_namespace("accounts", &NamespaceOptions::default())?.id();
    let store = Store::open(device, &StoreOptions::new(8 << 20))?;
    for account in 0..ACCOUNTS {
        store.put(accounts, account, &1000u64.to_le_bytes())?;
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || -> Result<(), kaml::Error> {
                for turn in 0..TRANSFERS {
                    let (from, to) = ((thread * 31 + turn * 17) % ACCOUNTS, (thread * 7 + turn * 13 + 1) % ACCOUNTS);
                    // The body runs again if another transaction was in the way.
                    store.run(|txn| {
                        let has = amount(txn.read_for_update(accounts, from)?);
                        if from == to || has == 0 {
                            return Ok(());
                        }
                        let other = amount(txn.read_for_update(accounts, to)?);
                        txn.update(accounts, from, &(has - 1).to_le_bytes())?;
                        txn.update(accounts, to, &(other + 1).to_le_bytes())
                    })?;
                }
                Ok(())
            });
        }
    });
    let mut total = 0;
    for account in 0..ACCOUNTS {
        total += amount(store.get(accounts, account)?);
    }
    println!("total {total}");
    assert_eq!(total, ACCOUNTS * 1000);
    Ok(())
}
