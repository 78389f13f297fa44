//! openraft's own suite over the log and the state machine, and what it does not test: another process, and damaged snapshots.

use kaml::{CreateOptions, Device, Durability};
use kaml_openraft::{Application, Changes, LogStore, StateMachine};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, RaftLogReader, RaftSnapshotBuilder, StorageError, Vote};
use std::path::Path;
use tempfile::TempDir;

openraft::declare_raft_types!(
    /// The types of this program.
    pub Config:
        D = String,
        R = Option<String>,
        SnapshotData = tokio::fs::File,
);

/// A command is `key=value`, or `key` to delete it; the response is the old value.
#[derive(Clone)]
struct Words;

impl Application<Config> for Words {
    fn apply(&self, command: &String, records: &mut Changes<'_>) -> Result<Option<String>, kaml::Error> {
        let (key, value) = command.split_once('=').map_or((command.as_str(), None), |(key, value)| (key, Some(value)));
        let old = records.get(key.as_bytes())?;
        match value {
            Some(value) => records.put(key.as_bytes(), value.as_bytes()),
            None => records.delete(key.as_bytes()),
        }
        Ok(old.map(|old| String::from_utf8(old).expect("words")))
    }

    fn nothing(&self) -> Option<String> {
        None
    }
}

type State = StateMachine<Config, Words>;

fn open(dir: &Path) -> (Device, LogStore<Config>, State) {
    let options = CreateOptions { durability: Durability::Process, ..CreateOptions::new(64 << 20) };
    let device = Device::open_or_create(dir.join("node.kaml"), &options).unwrap();
    let log = LogStore::open(&device, "raft").unwrap();
    let state = StateMachine::open(&device, "raft", dir, Words).unwrap();
    (device, log, state)
}

struct Builder;

impl StoreBuilder<Config, LogStore<Config>, State, (TempDir, Device)> for Builder {
    async fn build(&self) -> Result<((TempDir, Device), LogStore<Config>, State), StorageError<u64>> {
        let dir = tempfile::tempdir().expect("a directory");
        let (device, log, state) = open(dir.path());
        Ok(((dir, device), log, state))
    }
}

/// Goal:   log and state machine are what openraft requires.
/// Method: its own suite, which gets a new device for each test.
#[test]
fn the_suite_of_openraft_passes() {
    Suite::test_all(Builder).unwrap();
}

fn id(index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(1, 0), index)
}

fn entry(index: u64, command: &str) -> Entry<Config> {
    Entry { log_id: id(index), payload: EntryPayload::Normal(command.to_owned()) }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Goal:   all that was acknowledged is there in the next process: votes, entries, what was purged, the state and its snapshot.
/// Method: the file of the device is copied while it is open, as a crash would leave it, after each step.
#[test]
fn crashes_lose_nothing() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let (_device, mut log, mut state) = open(dir.path());
        log.save_vote(&Vote::new(3, 7)).await.unwrap();
        log.blocking_append((1..=20).map(|index| entry(index, &format!("k{}={index}", index % 5)))).await.unwrap();
        log.save_committed(Some(id(12))).await.unwrap();
        let old = state.apply((1..=12).map(|index| entry(index, &format!("k{}={index}", index % 5)))).await.unwrap();
        assert_eq!((old[4].as_deref(), old[5].as_deref()), (None, Some("1")));
        log.truncate(id(18)).await.unwrap();
        log.purge(id(6)).await.unwrap();
        state.build_snapshot().await.unwrap();

        let crashed = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(dir.path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), crashed.path().join(file.file_name())).unwrap();
        }
        let (device, mut log, mut state) = open(crashed.path());
        assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(3, 7)));
        assert_eq!(log.read_committed().await.unwrap(), Some(id(12)));
        let found = log.get_log_state().await.unwrap();
        assert_eq!((found.last_purged_log_id, found.last_log_id), (Some(id(6)), Some(id(17))));
        let indexes: Vec<u64> =
            log.try_get_log_entries(..).await.unwrap().iter().map(|entry| entry.log_id.index).collect();
        assert_eq!(indexes, (7..=17).collect::<Vec<u64>>());
        assert_eq!(state.applied_state().await.unwrap().0, Some(id(12)));
        let values: Vec<_> = state.records().iter().map(|record| record.unwrap().1).collect();
        assert_eq!(values, [&b"10"[..], b"11", b"12", b"8", b"9"]);
        let snapshot = state.get_current_snapshot().await.unwrap().expect("the file is there");
        assert_eq!(snapshot.meta.last_log_id, Some(id(12)));
        assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    });
}

/// Goal:   a snapshot that is damaged anywhere, or ends early, is refused, and the state remains; a whole one replaces all of it.
/// Method: flip a bit of each byte of a snapshot, and cut it at each length; install each.
#[test]
fn damaged_snapshots_are_refused() {
    runtime().block_on(async {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (_device, _, mut source) = open(from.path());
        source.apply((1..=6).map(|index| entry(index, &format!("k{index}=v{index}")))).await.unwrap();
        let meta = source.build_snapshot().await.unwrap().meta;
        let whole = std::fs::read(from.path().join("raft.snapshot")).unwrap();

        let (device, _, mut target) = open(to.path());
        target.apply([entry(1, "old=state")]).await.unwrap();
        let flipped = (0..whole.len()).map(|at| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            bytes
        });
        for (n, bytes) in flipped.chain((0..whole.len()).map(|len| whole[..len].to_vec())).enumerate() {
            let file = target.begin_receiving_snapshot().await.unwrap();
            std::fs::write(to.path().join("raft.received"), &bytes).unwrap();
            assert!(target.install_snapshot(&meta, file).await.is_err(), "damage {n} is not noticed");
        }
        assert_eq!(target.records().get("old").unwrap().as_deref(), Some(&b"state"[..]));
        assert_eq!(target.applied_state().await.unwrap().0, Some(id(1)));
        assert_eq!(device.namespaces().len(), 3);

        let file = target.begin_receiving_snapshot().await.unwrap();
        std::fs::write(to.path().join("raft.received"), &whole).unwrap();
        target.install_snapshot(&meta, file).await.unwrap();
        assert_eq!(target.records().get("old").unwrap(), None);
        assert_eq!(target.records().get("k6").unwrap().as_deref(), Some(&b"v6"[..]));
        assert_eq!(target.applied_state().await.unwrap().0, Some(id(6)));
    });
}
