//! Three replicated nodes, each a process with a device of its own: `cargo run -p kaml-openraft --example three_nodes`
//!
//! The first process starts the nodes, writes through the leader, kills it with SIGKILL, writes on, starts it again, and compares what all nodes
//! have. Nodes talk over Unix sockets in a directory. Each message is a length (u32) and MessagePack.

use kaml::{CreateOptions, Device};
use kaml_openraft::{Application, Changes, LogStore, StateMachine};
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use openraft::{BasicNode, Raft, SnapshotPolicy};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

const NODES: std::ops::Range<u64> = 0..3;
const MESSAGE_BYTES_MAX: u32 = 64 << 20;
type Failure = Box<dyn std::error::Error>;

openraft::declare_raft_types!(
    /// The types of this program.
    pub Config:
        D = (String, String),
        R = (),
        SnapshotData = tokio::fs::File,
);

/// A command is a key and its value.
struct Words;

impl Application<Config> for Words {
    fn apply(&self, (key, value): &(String, String), records: &mut Changes<'_>) -> Result<(), kaml::Error> {
        records.put(key.as_bytes(), value.as_bytes());
        Ok(())
    }

    fn nothing(&self) {}
}

#[derive(Serialize, Deserialize)]
enum Message {
    Append(AppendEntriesRequest<Config>),
    Vote(VoteRequest<u64>),
    Snapshot(InstallSnapshotRequest<Config>),
    /// Of a client: found a cluster; write; who leads, and what is applied; all records.
    Begin,
    Write(String, String),
    Leader,
    Records,
}

async fn send<T: Serialize>(stream: &mut UnixStream, value: &T) -> io::Result<()> {
    let bytes = rmp_serde::to_vec_named(value).map_err(io::Error::other)?;
    stream.write_u32(bytes.len() as u32).await?;
    stream.write_all(&bytes).await
}

async fn receive<T: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<T> {
    let length = stream.read_u32().await?;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes")));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    rmp_serde::from_slice(&bytes).map_err(io::Error::other)
}

/// Sends a message to a node, and returns its reply.
async fn ask<T: DeserializeOwned>(socket: &Path, message: &Message) -> io::Result<T> {
    let mut stream = UnixStream::connect(socket).await?;
    send(&mut stream, message).await?;
    receive(&mut stream).await
}

fn socket(dir: &Path, node: u64) -> PathBuf {
    dir.join(format!("node-{node}.sock"))
}

/// The way from one node to another.
struct Way {
    target: u64,
    socket: PathBuf,
}

impl Way {
    async fn ask<T, E>(&self, message: Message) -> Result<T, RPCError<u64, BasicNode, E>>
    where
        T: DeserializeOwned,
        E: std::error::Error + DeserializeOwned,
    {
        let reply: io::Result<Result<T, E>> = ask(&self.socket, &message).await;
        let reply = reply.map_err(|error| RPCError::Network(NetworkError::new(&error)))?;
        reply.map_err(|error| RPCError::RemoteError(RemoteError::new(self.target, error)))
    }
}

impl RaftNetwork<Config> for Way {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Config>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        self.ask(Message::Append(request)).await
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Config>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RPCError<u64, BasicNode, RaftError<u64, InstallSnapshotError>>> {
        self.ask(Message::Snapshot(request)).await
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        _: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        self.ask(Message::Vote(request)).await
    }
}

struct Ways(PathBuf);

impl RaftNetworkFactory<Config> for Ways {
    type Network = Way;

    async fn new_client(&mut self, target: u64, _: &BasicNode) -> Way {
        Way { target, socket: socket(&self.0, target) }
    }
}

/// A node: answers messages until it is killed.
async fn run_node(dir: PathBuf, node: u64) -> Result<(), Failure> {
    let device = Device::open_or_create(dir.join(format!("node-{node}.kaml")), &CreateOptions::new(256 << 20))?;
    let log = LogStore::<Config>::open(&device, "raft")?;
    let snapshots = dir.join(format!("node-{node}"));
    std::fs::create_dir_all(&snapshots)?;
    let state = StateMachine::<Config, _>::open(&device, "raft", &snapshots, Words)?;
    let config = openraft::Config {
        heartbeat_interval: 100,
        election_timeout_min: 500,
        election_timeout_max: 1000,
        // Few, to show them: the killed node gets a snapshot.
        snapshot_policy: SnapshotPolicy::LogsSinceLast(200),
        max_in_snapshot_log_to_keep: 50,
        ..openraft::Config::default()
    };
    let raft = Raft::new(node, Arc::new(config.validate()?), Ways(dir.clone()), log, state.clone()).await?;
    let _ = std::fs::remove_file(socket(&dir, node));
    let listener = UnixListener::bind(socket(&dir, node))?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (raft, state) = (raft.clone(), state.clone());
        tokio::spawn(async move {
            // A client that goes away ends only its own message.
            let _ = answer(stream, raft, state).await;
        });
    }
}

async fn answer(mut stream: UnixStream, raft: Raft<Config>, state: StateMachine<Config, Words>) -> io::Result<()> {
    match receive(&mut stream).await? {
        Message::Append(request) => send(&mut stream, &raft.append_entries(request).await).await,
        Message::Vote(request) => send(&mut stream, &raft.vote(request).await).await,
        Message::Snapshot(request) => send(&mut stream, &raft.install_snapshot(request).await).await,
        Message::Begin => {
            let nodes: BTreeMap<u64, BasicNode> = NODES.map(|node| (node, BasicNode::default())).collect();
            send(&mut stream, &raft.initialize(nodes).await.is_ok()).await
        }
        Message::Write(key, value) => send(&mut stream, &raft.client_write((key, value)).await.is_ok()).await,
        Message::Leader => {
            let metrics = raft.metrics().borrow().clone();
            let is_leader = metrics.current_leader == Some(metrics.id);
            send(&mut stream, &(is_leader, metrics.last_applied.map_or(0, |id| id.index))).await
        }
        Message::Records => {
            let records =
                state.records().iter().map(|record| record.map(|(key, value)| (key.as_bytes().to_vec(), value)));
            send(&mut stream, &records.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?).await
        }
    }
}

fn start(dir: &Path, node: u64) -> io::Result<Child> {
    Process::new(std::env::current_exe()?).arg(dir).arg(node.to_string()).spawn()
}

/// The node that leads now; waits for one.
async fn leader(dir: &Path) -> u64 {
    loop {
        for node in NODES {
            if let Ok((true, _)) = ask::<(bool, u64)>(&socket(dir, node), &Message::Leader).await {
                return node;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Writes a record through whoever leads, until that succeeds.
async fn write(dir: &Path, n: u32) {
    loop {
        let message = Message::Write(format!("key {n:05}"), format!("value {n}"));
        if let Ok(true) = ask(&socket(dir, leader(dir).await), &message).await {
            return;
        }
    }
}

async fn run_cluster(dir: &Path, nodes: &mut BTreeMap<u64, Child>) -> Result<(), Failure> {
    for node in NODES {
        nodes.insert(node, start(dir, node)?);
    }
    while !matches!(ask(&socket(dir, 0), &Message::Begin).await, Ok(true)) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for n in 0..500 {
        write(dir, n).await;
    }
    let killed = leader(dir).await;
    println!("500 records are replicated; node {killed} leads, and is killed");
    let mut child = nodes.remove(&killed).ok_or("the leader is a node")?;
    child.kill()?; // SIGKILL
    child.wait()?;
    for n in 500..1000 {
        write(dir, n).await;
    }
    println!("500 more are replicated; node {} leads; node {killed} starts again", leader(dir).await);
    nodes.insert(killed, start(dir, killed)?);
    let mut found = BTreeSet::new();
    while found.len() != 1 {
        found.clear();
        for node in NODES {
            let records: io::Result<Vec<(Vec<u8>, Vec<u8>)>> = ask(&socket(dir, node), &Message::Records).await;
            found.insert(records.unwrap_or_default());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let records = found.pop_first().unwrap_or_default();
    assert_eq!(records.len(), 1000);
    println!("all nodes have the same {} records", records.len());
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    if let [dir, node] = &arguments[..] {
        return runtime.block_on(run_node(dir.into(), node.parse()?));
    }
    let dir = tempfile::tempdir()?;
    let mut nodes = BTreeMap::new();
    let ran = runtime.block_on(run_cluster(dir.path(), &mut nodes));
    for child in nodes.values_mut() {
        child.kill()?;
        child.wait()?;
    }
    ran
}
