use super::*;
use crate::engine::Record;
use crate::engine::store::KamlEngine;
use kaml::CreateOptions;
use kaml::store::StoreOptions;

fn engine() -> KamlEngine {
    let (device, options) = (CreateOptions::new(64 << 20), StoreOptions::new(4 << 20));
    KamlEngine::create(None, &device, &options, &["counters"]).unwrap()
}

/// Adds one to a record; every tenth addition is rolled back.
struct Adding {
    begun: u64,
    committed: u64,
}

impl Worker for Adding {
    fn operate(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<usize, Error> {
        self.begun += 1;
        let undone = self.begun.is_multiple_of(10);
        let committed = tally.transact(session, &mut |txn| {
            let mut value = Vec::new();
            crate::engine::must_read(txn, Table(0), 7, &mut value, true)?;
            let count = u64::from_le_bytes(value[..8].try_into().expect("eight bytes")) + 1;
            txn.update(Table(0), 7, &count.to_le_bytes())?;
            if undone { Err(Stop::Rollback) } else { Ok(()) }
        })?;
        tally.reads += 1;
        tally.user_bytes += if committed { 8 } else { 0 };
        self.committed += u64::from(committed);
        Ok(usize::from(undone))
    }
}

/// Goal:   operations are executed, counted and distinguished exactly, on many threads.
/// Method: additions to one record, a tenth rolled back; compare the record, the workers and the figures.
#[test]
fn operations_are_counted_exactly() {
    let engine = engine();
    engine.session().unwrap().load(Table(0), &[(7, vec![0; 8])]).unwrap();
    let about = About { workload: "adding".into(), kinds: &["kept", "undone"], configuration: 1.into() };
    let (outcome, workers) =
        run(&engine, &Run::of(4, 400), &about, &|_, _, _| (), |_| Adding { begun: 0, committed: 0 }).unwrap();
    let committed: u64 = workers.iter().map(|worker| worker.committed).sum();
    let mut value = Vec::new();
    engine.session().unwrap().get_into(Table(0), 7, &mut value).unwrap();
    assert_eq!(value, committed.to_le_bytes());
    assert_eq!((outcome.operations, outcome.user_bytes), (400, 8 * committed));
    assert_eq!(outcome.aborts.rollback, 400 - committed);
    assert_eq!(outcome.kinds[0].operations, committed);
    assert!(outcome.hit_ratio.unwrap() > 0.99, "{outcome:?}");
}

/// Goal:   work is shared out without loss, and an error ends it.
/// Method: sum ranges; fail in one of them.
#[test]
fn work_is_shared_out_once() {
    let engine = engine();
    let sum = |_: &mut dyn Session, range: Range<u64>| Ok(range.sum::<u64>());
    let sums = share_out(&engine, 3, 10_000, Stage::Check, &|_, _, _| (), sum).unwrap();
    assert_eq!(sums.iter().sum::<u64>(), 9999 * 10_000 / 2);
    let fail = |session: &mut dyn Session, range: Range<u64>| {
        let records: Vec<Record> = vec![(range.start, vec![1])];
        session.load(Table(0), &records).map_err(|error| Error::Wrong(error.to_string()))?;
        if range.contains(&5000) { Err(Error::Wrong("here".into())) } else { Ok(()) }
    };
    let result = share_out(&engine, 3, 100_000_000, Stage::Load, &|_, _, _| (), fail);
    assert!(matches!(result, Err(Error::Wrong(what)) if what == "here"));
}

/// An engine that counts how often it was settled, and may refuse it.
struct Settling {
    engine: KamlEngine,
    settled: AtomicU64,
    refuses: bool,
}

impl Engine for Settling {
    fn describe(&self) -> String {
        self.engine.describe()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, Error> {
        self.engine.session()
    }

    fn settle(&self) -> Result<(), Error> {
        self.settled.fetch_add(1, Ordering::SeqCst);
        if self.refuses { Err(Error::Engine("it does not settle".into())) } else { self.engine.settle() }
    }

    fn counts(&self) -> crate::engine::Counts {
        self.engine.counts()
    }
}

/// Goal:   what an engine put off in the warm-up is done before bytes are counted; one that cannot settle ends the run.
/// Method: how often it was settled when it is measured; one that refuses.
#[test]
fn warm_ups_are_settled() {
    let about = About { workload: "adding".into(), kinds: &["kept", "undone"], configuration: 1.into() };
    let parameters = Run { warm_up: Duration::from_millis(20), ..Run::of(2, 100) };
    for refuses in [false, true] {
        let engine = Settling { engine: engine(), settled: AtomicU64::new(0), refuses };
        engine.session().unwrap().load(Table(0), &[(7, vec![0; 8])]).unwrap();
        let at_measure = AtomicU64::new(u64::MAX);
        let progress = |stage, _, _| {
            if stage == Stage::Measure {
                at_measure.store(engine.settled.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        };
        let result = run(&engine, &parameters, &about, &progress, |_| Adding { begun: 0, committed: 0 });
        assert_eq!(at_measure.load(Ordering::SeqCst), 1);
        match result {
            Ok((outcome, _)) => assert!(!refuses && outcome.operations == 100),
            Err(error) => assert!(refuses && error.to_string().contains("does not settle"), "{error}"),
        }
    }
}

/// Panics at its first operation, or at its hundredth.
struct Panicking {
    left: u64,
}

impl Worker for Panicking {
    fn operate(&mut self, _: &mut dyn Session, _: &mut Tally) -> Result<usize, Error> {
        self.left = self.left.checked_sub(1).expect("this worker has had enough");
        Ok(0)
    }
}

/// Goal:   a panic ends a run with its words, also before anything is measured; a time beyond all clocks is one without end.
/// Method: one worker of three panics in the warm-up, or in a measured part that would take longer than there are seconds.
#[test]
fn panics_end_a_run() {
    let engine = engine();
    let about = About { workload: "panicking".into(), kinds: &["nothing"], configuration: 1.into() };
    let make = |thread: usize| Panicking { left: if thread == 1 { 100 } else { u64::MAX } };
    for (warm_up, duration) in [(Duration::MAX, Duration::ZERO), (Duration::ZERO, Duration::MAX)] {
        let parameters = Run { warm_up, duration, ..Run::of(3, u64::MAX) };
        let result = run(&engine, &parameters, &about, &|_, _, _| (), make);
        assert!(matches!(result, Err(Error::Wrong(what)) if what.contains("has had enough")));
    }
}

/// Goal:   an operation that fails ends the run with its error, also during the warm-up.
/// Method: a worker whose record is missing, with and without a warm-up.
#[test]
fn failures_end_a_run() {
    let engine = engine();
    let about = About { workload: "adding".into(), kinds: &["kept", "undone"], configuration: 1.into() };
    for warm_up in [Duration::ZERO, Duration::from_secs(60)] {
        let parameters = Run { warm_up, ..Run::of(3, 100) };
        let result = run(&engine, &parameters, &about, &|_, _, _| (), |_| Adding { begun: 0, committed: 0 });
        assert!(matches!(result, Err(Error::Wrong(_))));
    }
}
