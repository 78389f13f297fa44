//! TPC-B: accounts, tellers and branches of a bank, and its one transaction.
//!
//! Lives here:       schema, load, AccountUpdate, and the consistency condition.
//! Lives elsewhere:  the loop (`drive`), rows as values (`rows`).
//! Implements:       TPC Benchmark B, revision 2.0, clauses 1 (transaction), 2 (consistency) and 3 (schema);
//!                   paper:KAML V.D.
//!
//! | table   | rows            | bytes | paper |
//! |---------|-----------------|------:|------:|
//! | account | 100 000 × scale |   100 |   512 |
//! | teller  | 10 × scale      |   100 |   512 |
//! | branch  | scale           |   100 |   512 |
//! | history | one each        |    50 |   512 |
//!
//! Departures: history has no key in the benchmark; here it is the client's number and its count. Branches may be
//! drawn by zipf instead of evenly.

use crate::Error;
use crate::drive::{self, About, Outcome, Progress, Run, Size, Stage, Tally, Worker, Workload};
use crate::engine::{Engine, Session, Stop, Table};
use crate::keys::{Chooser, Distribution, Rng};
use crate::rows;
use serde::Serialize;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;
use zerocopy::little_endian::{I64, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const ACCOUNT: Table = Table(0);
const TELLER: Table = Table(1);
const BRANCH: Table = Table(2);
const HISTORY: Table = Table(3);
const TABLES: [&str; 4] = ["account", "teller", "branch", "history"];

/// Clause 3.
const TELLERS_PER_BRANCH: u64 = 10;
/// Clause 5: share of transactions whose account is of the teller's own branch.
const LOCAL_SHARE: f64 = 0.85;
/// Clause 5: amounts are in -999 999 ..= 999 999.
const DELTA_MAX: i64 = 999_999;
/// History keys are the client's number above, its count below.
const COUNT_BITS: u32 = 40;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Account {
    account: U64,
    branch: U64,
    balance: I64,
}

/// Branches and tellers.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Till {
    number: U64,
    branch: U64,
    balance: I64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct History {
    teller: U64,
    branch: U64,
    account: U64,
    delta: I64,
    time_us: U64,
}

/// The options of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Branches.
    pub scale: u64,
    /// 100 000 in the benchmark.
    pub accounts_per_branch: u64,
    /// Branches are chosen by zipf with this, below 1; evenly without it.
    pub zipf: Option<f64>,
    /// Bytes of account, teller and branch rows.
    pub row_bytes: usize,
    /// Bytes of history rows.
    pub history_bytes: usize,
}

impl Settings {
    /// As the benchmark specifies.
    pub fn new(scale: u64) -> Settings {
        Settings { scale, accounts_per_branch: 100_000, zipf: None, row_bytes: 100, history_bytes: 50 }
    }

    /// With the row sizes of paper:KAML V.D.
    pub fn paper(scale: u64) -> Settings {
        Settings { row_bytes: 512, history_bytes: 512, ..Settings::new(scale) }
    }

    fn check(&self) -> Result<(), Error> {
        let bound = |what, value: u64, max: u64| {
            let fits = (1..=max).contains(&value);
            if fits { Ok(()) } else { Err(Error::Parameters(format!("{value} {what}: must be in 1..={max}"))) }
        };
        bound("branches", self.scale, 1 << 24)?;
        bound("accounts per branch", self.accounts_per_branch, 1 << 32)?;
        match self.zipf {
            Some(theta) if !(0.0..1.0).contains(&theta) => {
                Err(Error::Parameters(format!("zipf {theta}: must be in 0..1")))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn accounts(&self) -> u64 {
        self.scale * self.accounts_per_branch
    }

    fn tellers(&self) -> u64 {
        self.scale * TELLERS_PER_BRANCH
    }
}

/// A bank and what was done to it.
pub struct Tpcb {
    settings: Settings,
    /// Of each client of all runs: how many transactions it committed.
    clients: Mutex<Vec<u64>>,
}

impl Tpcb {
    /// A bank of this size.
    pub fn new(settings: Settings) -> Result<Tpcb, Error> {
        settings.check()?;
        Ok(Tpcb { settings, clients: Mutex::default() })
    }

    fn clients(&self) -> MutexGuard<'_, Vec<u64>> {
        self.clients.lock().expect("no panics under this lock")
    }

    /// Accounts come first, then tellers, then branches.
    fn place(&self, at: u64) -> (Table, u64) {
        let (accounts, tellers) = (self.settings.accounts(), self.settings.tellers());
        match at.checked_sub(accounts) {
            None => (ACCOUNT, at),
            Some(teller) if teller < tellers => (TELLER, teller),
            Some(other) => (BRANCH, other - tellers),
        }
    }

    fn row(&self, at: u64) -> (Table, u64, Vec<u8>) {
        let s = &self.settings;
        let (table, number) = self.place(at);
        let branch = match table {
            ACCOUNT => number / s.accounts_per_branch,
            TELLER => number / TELLERS_PER_BRANCH,
            _ => number,
        };
        let (number_in_row, branch, balance) = (number.into(), branch.into(), 0.into());
        let row = if table == ACCOUNT {
            rows::make(&Account { account: number_in_row, branch, balance }, s.row_bytes, at)
        } else {
            rows::make(&Till { number: number_in_row, branch, balance }, s.row_bytes, at)
        };
        (table, number, row)
    }

    /// Balances of a table, summed up branch by branch.
    fn sums(
        &self,
        engine: &dyn Engine,
        threads: usize,
        count: u64,
        progress: &Progress<'_>,
        balance: impl Fn(&mut dyn Session, u64) -> Result<(u64, i64), Error> + Sync,
    ) -> Result<Vec<i64>, Error> {
        let parts = drive::share_out(engine, threads, count, Stage::Check, progress, |session, mut range| {
            let mut part = Vec::<(u64, i64)>::new();
            range.try_for_each(|at| {
                let (branch, amount) = balance(session, at)?;
                match part.last_mut().filter(|(last, _)| *last == branch) {
                    Some((_, sum)) => *sum += amount,
                    None => part.push((branch, amount)),
                }
                Ok::<_, Error>(())
            })?;
            Ok(part)
        })?;
        let mut sums = vec![0; self.settings.scale as usize];
        for (branch, amount) in parts.into_iter().flatten() {
            let sum = sums.get_mut(branch as usize);
            *sum.ok_or_else(|| Error::Wrong(format!("a row names branch {branch}")))? += amount;
        }
        Ok(sums)
    }
}

fn till(session: &mut dyn Session, table: Table, key: u64) -> Result<(u64, i64), Error> {
    rows::get::<Till>(session, table, key).map(|row| (row.branch.get(), row.balance.get()))
}

impl Workload for Tpcb {
    fn tables(&self) -> &'static [&'static str] {
        &TABLES
    }

    fn size(&self) -> Size {
        let s = &self.settings;
        let records = s.accounts() + s.tellers() + s.scale;
        let (row, history) = (s.row_bytes.max(size_of::<Account>()), s.history_bytes.max(size_of::<History>()));
        Size { records, value_bytes: records * row as u64, operation_bytes: (3 * row + history) as u64 }
    }

    fn load(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<(), Error> {
        drive::share_out(engine, threads, self.size().records, Stage::Load, progress, |session, range| {
            let mut tables = [const { Vec::new() }; TABLES.len()];
            for (table, key, row) in range.map(|at| self.row(at)) {
                tables[table.0].push((key, row));
            }
            let load = |(at, rows): (usize, &Vec<_>)| session.load(Table(at), rows);
            tables.iter().enumerate().try_for_each(load).map_err(Stop::into_error)
        })?;
        progress(Stage::Settle, 0, 0);
        engine.settle()
    }

    /// Branches and tellers last, so they are the last to leave the cache.
    fn fill_cache(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<(), Error> {
        drive::share_out(engine, threads, self.size().records, Stage::Fill, progress, |session, range| {
            drive::read_all(session, range.map(|at| self.place(at)))
        })?;
        Ok(())
    }

    fn run(&self, engine: &dyn Engine, run: &Run, progress: &Progress<'_>) -> Result<Outcome, Error> {
        let first_client = self.clients().len();
        let distribution = self.settings.zipf.map_or(Distribution::Uniform, Distribution::Zipf);
        let chooser = Chooser::new(distribution, self.settings.scale, run.seed);
        let begun = Instant::now();
        let make = |thread: usize| {
            let seed = Rng::new(run.seed ^ (thread as u64).rotate_left(32)).next_u64();
            Client {
                settings: &self.settings,
                branches: chooser.reseeded(seed),
                rng: Rng::new(seed ^ 1),
                number: (first_client + thread) as u64,
                count: 0,
                begun,
                row: Vec::new(),
            }
        };
        let configuration = serde_json::json!({ "settings": self.settings, "run": run });
        let about = About { workload: "tpcb".into(), kinds: &["account-update"], configuration };
        let (outcome, clients) = drive::run(engine, run, &about, progress, make)?;
        self.clients().extend(clients.iter().map(|client| client.count));
        Ok(outcome)
    }

    /// Clause 2.3: each branch's balance is the sum of its tellers' and of its history; all accounts together are all
    /// branches together; there is one history row for each committed transaction.
    fn compare(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<Vec<String>, Error> {
        let s = &self.settings;
        let sums = |count, balance: &(dyn Fn(&mut dyn Session, u64) -> _ + Sync)| {
            self.sums(engine, threads, count, progress, balance)
        };
        let branches = sums(s.scale, &|session, at| till(session, BRANCH, at))?;
        let tellers = sums(s.tellers(), &|session, at| till(session, TELLER, at))?;
        let accounts = sums(s.accounts(), &|session, at| {
            rows::get::<Account>(session, ACCOUNT, at).map(|row| (row.branch.get(), row.balance.get()))
        })?;
        let clients = self.clients();
        let mut history = vec![0; s.scale as usize];
        for (client, count) in clients.iter().enumerate() {
            let of_client = sums(*count, &|session, at| {
                let row: History = rows::get(session, HISTORY, history_key(client as u64, at))?;
                Ok((row.branch.get(), row.delta.get()))
            })?;
            history.iter_mut().zip(of_client).for_each(|(sum, delta)| *sum += delta);
            let beyond = history_key(client as u64, *count);
            if engine.session()?.get(HISTORY, beyond, &mut |_| ()).map_err(Stop::into_error)? {
                return Err(Error::Wrong(format!("client {client} left more history than it committed")));
            }
        }
        for (branch, balance) in branches.iter().enumerate() {
            if (tellers[branch], history[branch]) != (*balance, *balance) {
                let (tellers, history) = (tellers[branch], history[branch]);
                let what = format!("branch {branch}: balance {balance}, tellers {tellers}, history {history}");
                return Err(Error::Wrong(what));
            }
        }
        let (of_branches, of_accounts): (i64, i64) = (branches.iter().sum(), accounts.iter().sum());
        if of_branches != of_accounts {
            return Err(Error::Wrong(format!("branches have {of_branches} together, accounts {of_accounts}")));
        }
        Ok(vec![
            format!("{} branches have the balance of their tellers and of their history", s.scale),
            format!("{} accounts have the balance of all branches, {of_branches}", s.accounts()),
            format!("{} history rows, one for each committed transaction", clients.iter().sum::<u64>()),
        ])
    }
}

fn history_key(client: u64, count: u64) -> u64 {
    client << COUNT_BITS | count
}

/// What one thread does.
struct Client<'a> {
    settings: &'a Settings,
    branches: Chooser,
    rng: Rng,
    number: u64,
    /// Transactions committed.
    count: u64,
    begun: Instant,
    row: Vec<u8>,
}

impl Client<'_> {
    /// Clause 5: an account of the teller's branch, or occasionally of any other.
    fn account(&mut self, branch: u64) -> u64 {
        let s = self.settings;
        let at = if s.scale > 1 && self.rng.unit() >= LOCAL_SHARE {
            let other = self.rng.below(s.scale - 1);
            other + u64::from(other >= branch)
        } else {
            branch
        };
        at * s.accounts_per_branch + self.rng.below(s.accounts_per_branch)
    }
}

impl Worker for Client<'_> {
    /// Clause 1.2: account, history, teller, branch; the branch, which most transactions need, last.
    fn operate(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<usize, Error> {
        let branch = self.branches.next_key();
        let teller = branch * TELLERS_PER_BRANCH + self.rng.below(TELLERS_PER_BRANCH);
        let account = self.account(branch);
        let delta = self.rng.below(2 * DELTA_MAX as u64 + 1) as i64 - DELTA_MAX;
        let history = History {
            teller: teller.into(),
            branch: branch.into(),
            account: account.into(),
            delta: delta.into(),
            time_us: (self.begun.elapsed().as_micros() as u64).into(),
        };
        let key = history_key(self.number, self.count);
        let history = rows::make(&history, self.settings.history_bytes, key);
        let row = &mut self.row;
        let mut bytes = 0;
        tally.reads += 3;
        tally.transact(session, &mut |txn| {
            txn.expect(&[(ACCOUNT, account), (HISTORY, key), (TELLER, teller), (BRANCH, branch)])?;
            rows::update::<Account, _>(txn, ACCOUNT, account, row, |row| row.balance += delta)?;
            bytes = 3 * row.len() + history.len();
            txn.insert(HISTORY, key, &history)?;
            rows::update::<Till, _>(txn, TELLER, teller, row, |row| row.balance += delta)?;
            rows::update::<Till, _>(txn, BRANCH, branch, row, |row| row.balance += delta)
        })?;
        self.count += 1;
        tally.user_bytes += bytes as u64;
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::store::KamlEngine;
    use kaml::CreateOptions;
    use kaml::store::StoreOptions;

    fn loaded(settings: Settings, store: &StoreOptions) -> (Tpcb, KamlEngine) {
        let tpcb = Tpcb::new(settings).unwrap();
        let engine = KamlEngine::create(None, &CreateOptions::new(64 << 20), store, tpcb.tables()).unwrap();
        tpcb.load(&engine, 2, &|_, _, _| ()).unwrap();
        tpcb.fill_cache(&engine, 2, &|_, _, _| ()).unwrap();
        (tpcb, engine)
    }

    fn tiny() -> Settings {
        Settings { accounts_per_branch: 500, ..Settings::new(3) }
    }

    /// Goal:   the condition holds after contended runs in every mode, also after a second run.
    /// Method: 8 threads on 3 branches; strict and early release, one and 16 records for a lock, zipf, the paper's sizes.
    #[test]
    fn the_condition_holds_in_every_mode() {
        for (early_release, records_per_lock) in [(false, 1), (true, 1), (false, 16), (true, 16)] {
            let store = StoreOptions { early_release, records_per_lock, ..StoreOptions::new(1 << 20) };
            let settings = if early_release {
                Settings { accounts_per_branch: 500, zipf: Some(0.99), ..Settings::paper(3) }
            } else {
                tiny()
            };
            let (tpcb, mut engine) = loaded(settings, &store);
            for total in [2000, 4000] {
                let outcome = tpcb.run(&engine, &Run::of(8, 2000), &|_, _, _| ()).unwrap();
                assert_eq!((outcome.operations, outcome.aborts.rollback), (2000, 0));
                let checked = tpcb.check(&mut engine, 3, &|_, _, _| ()).unwrap();
                assert!(checked[2].starts_with(&total.to_string()), "{checked:?}");
            }
        }
    }

    /// Goal:   money that comes from nowhere and history that is missing are noticed.
    /// Method: change one account, one teller, and delete a history row, after the workload's back.
    #[test]
    fn wrong_balances_are_noticed() {
        let tampered = |change: &dyn Fn(&mut dyn crate::engine::Transaction) -> Result<(), Stop>| {
            let (tpcb, mut engine) = loaded(tiny(), &StoreOptions::new(4 << 20));
            tpcb.run(&engine, &Run::of(1, 100), &|_, _, _| ()).unwrap();
            engine.session().unwrap().transact(&mut |txn| change(txn)).unwrap();
            tpcb.check(&mut engine, 1, &|_, _, _| ())
        };
        tampered(&|_| Ok(())).unwrap();
        let account = |txn: &mut dyn crate::engine::Transaction| {
            rows::update::<Account, _>(txn, ACCOUNT, 7, &mut Vec::new(), |row| row.balance += 1)
        };
        assert!(matches!(tampered(&account), Err(Error::Wrong(_))));
        let teller = |txn: &mut dyn crate::engine::Transaction| {
            rows::update::<Till, _>(txn, TELLER, 7, &mut Vec::new(), |row| row.balance += 1)
        };
        assert!(matches!(tampered(&teller), Err(Error::Wrong(_))));
        assert!(matches!(tampered(&|txn| txn.delete(HISTORY, history_key(0, 0))), Err(Error::Wrong(_))));
    }

    /// Goal:   rows that the device has lost are missed, although the store had them in its cache.
    /// Method: a cache that holds everything; after the run, delete a branch, an account or a row of history below the store.
    #[test]
    fn rows_that_the_device_lost_are_missed() {
        let lost = |rows: &[(Table, u64)]| {
            let (tpcb, mut engine) = loaded(tiny(), &StoreOptions::new(8 << 20));
            tpcb.run(&engine, &Run::of(1, 400), &|_, _, _| ()).unwrap();
            let device = engine.device().clone();
            for (table, key) in rows {
                let mut below = kaml::Batch::new();
                below.delete(device.namespace(TABLES[table.0]).unwrap(), *key);
                engine.store().write_past_the_cache(&below).unwrap();
            }
            drop(device);
            tpcb.check(&mut engine, 2, &|_, _, _| ())
        };
        lost(&[]).unwrap();
        for row in [(BRANCH, 1), (ACCOUNT, 700), (HISTORY, history_key(0, 0))] {
            assert!(matches!(lost(&[row]), Err(Error::Wrong(_))), "{row:?}");
        }
    }

    /// Goal:   settings that make no sense are refused.
    /// Method: no branches, no accounts, an impossible skew.
    #[test]
    fn senseless_settings_are_refused() {
        for settings in [
            Settings::new(0),
            Settings { accounts_per_branch: 0, ..Settings::new(1) },
            Settings { zipf: Some(1.0), ..Settings::new(1) },
        ] {
            assert!(matches!(Tpcb::new(settings), Err(Error::Parameters(_))));
        }
    }
}
