//! A store of blobs over HTTP: PUT, GET with ranges, HEAD and DELETE. It can be run again and again.
//!
//! cargo run -p kaml --example blobs
//! curl -T film.mp4 http://127.0.0.1:8080/film.mp4
//! curl -r 1000000-1999999 http://127.0.0.1:8080/film.mp4 | wc -c
//!
//! One ordered namespace has the names and the parts of all blobs. Parts are stored under the number of their upload, and the record of the name last:
//! a reader sees the old blob or the new one. It serves every client that can reach it: let a proxy in front of it check who has access.

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{Path as Name, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use kaml::{CreateOptions, Device, Error, KeyKind, Namespace, NamespaceOptions, Snapshot};
use std::{collections::HashSet, net::SocketAddr, path::Path};
use tokio::{net::TcpListener, runtime::Runtime, task};

/// Bytes of a part. A request takes memory for one.
const PART: u64 = 256 << 10;

/// Which upload a blob is, and its length.
#[derive(Clone, Copy)]
struct Blob {
    upload: u64,
    length: u64,
}

impl Blob {
    fn from_record(bytes: &[u8]) -> Blob {
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_be_bytes);
        Blob { upload: number(&bytes[..8]), length: number(&bytes[8..]) }
    }

    fn tag(self) -> String {
        format!("\"{}\"", self.upload)
    }
}

/// Blobs on a device. Any number of threads can call it. Keys: `n` and a name; `p`, an upload and the number of a part; `u`, the last upload.
#[derive(Clone)]
struct Blobs(Namespace);

impl Blobs {
    /// Opens the blobs, and removes the parts of uploads that the end of the program cut off.
    fn open(device: &Device) -> Result<Blobs, Error> {
        let blobs = device.ensure_namespace("blobs", &NamespaceOptions::records(KeyKind::Ordered))?;
        let uploads: HashSet<u64> =
            blobs.prefix("n").map(|entry| Ok(Blob::from_record(&entry?.1).upload)).collect::<Result<_, Error>>()?;
        let mut next = 0;
        while let Some(key) = blobs.range_keys::<&Vec<u8>>(&part_key(next, 0)..=&part_key(u64::MAX, u64::MAX)).next() {
            let upload = key?.as_bytes()[1..9].try_into().map_or(0, u64::from_be_bytes);
            if !uploads.contains(&upload) {
                blobs.delete_prefix(&part_key(upload, 0)[..9])?;
            }
            next = upload + 1;
        }
        Ok(Blobs(blobs))
    }

    /// Stores a blob from a body that arrives, part after part. Returns it, and whether there was an older one. An error leaves nothing.
    async fn store(&self, name: &str, body: BodyDataStream) -> Result<(Blob, bool), Refusal> {
        let upload = wait(|| self.0.add("u", 1))? as u64;
        let received = self.receive(upload, body).await;
        let stored = received.and_then(|blob| Ok((blob, wait(|| self.switch(name, Some(blob)))?)));
        let useless = stored.as_ref().map_or(Some(upload), |(_, old)| old.map(|old| old.upload));
        useless.map(|upload| wait(|| self.forget(upload))).transpose()?;
        stored.map(|(blob, old)| (blob, old.is_some()))
    }

    async fn receive(&self, upload: u64, mut body: BodyDataStream) -> Result<Blob, Refusal> {
        let (mut length, mut buffer) = (0, Vec::new());
        loop {
            let piece = body.next().await.transpose().map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
            buffer.extend_from_slice(piece.as_deref().unwrap_or_default());
            while buffer.len() >= PART as usize || piece.is_none() && !buffer.is_empty() {
                let after = buffer.split_off(buffer.len().min(PART as usize));
                wait(|| self.0.put(&part_key(upload, length / PART), &buffer))?;
                length += buffer.len() as u64;
                buffer = after;
            }
            if piece.is_none() {
                return Ok(Blob { upload, length });
            }
        }
    }

    /// Gives a name to an upload, or to none, in one step. Returns the one that had it.
    fn switch(&self, name: &str, blob: Option<Blob>) -> Result<Option<Blob>, Error> {
        let (key, new) =
            (format!("n{name}"), blob.map(|blob| [blob.upload.to_be_bytes(), blob.length.to_be_bytes()].concat()));
        loop {
            let old = self.0.get(&key)?;
            match self.0.compare_and_set(&key, old.as_deref(), new.as_deref()) {
                Err(Error::ValueDiffers { .. }) => continue, // another request came first
                result => return result.map(|()| old.map(|old| Blob::from_record(&old))),
            }
        }
    }

    fn forget(&self, upload: u64) -> Result<u64, Error> {
        self.0.delete_prefix(&part_key(upload, 0)[..9])
    }

    /// The bytes of a blob from `start` to `stop`; reads only parts that have some of them. The snapshot keeps those that are deleted meanwhile.
    fn send(&self, snapshot: Snapshot, blob: Blob, start: u64, stop: u64) -> Body {
        let id = self.0.id();
        Body::from_stream(stream::iter((start / PART..stop.div_ceil(PART)).map(move |number| {
            let read = wait(|| snapshot.get(id, &part_key(blob.upload, number))).map_err(|(_, reason)| reason)?;
            let [from, to] = [start, stop].map(|at| at.saturating_sub(number * PART).min(PART) as usize);
            let bytes = read.filter(|bytes| bytes.len() >= to).ok_or("a part is missing")?;
            Ok::<_, String>(Bytes::from(bytes).slice(from..to))
        })))
    }
}

fn part_key(upload: u64, number: u64) -> Vec<u8> {
    [&b"p"[..], &upload.to_be_bytes(), &(number as u32).to_be_bytes()].concat()
}

type Refusal = (StatusCode, String);

/// Executes commands of the device, which wait for flash, while other threads serve the other requests.
fn wait<T>(commands: impl FnOnce() -> Result<T, Error>) -> Result<T, Refusal> {
    task::block_in_place(commands).map_err(|error| match error {
        Error::Full { .. } => (StatusCode::INSUFFICIENT_STORAGE, error.to_string()),
        Error::BadKey(_) => (StatusCode::URI_TOO_LONG, error.to_string()),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    })
}

async fn put(State(blobs): State<Blobs>, Name(name): Name<String>, request: Request) -> Result<Response, Refusal> {
    // A task of its own removes the parts also if the client has gone.
    let stored = tokio::spawn(async move { blobs.store(&name, request.into_body().into_data_stream()).await });
    let (blob, is_old) = stored.await.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))??;
    let status = if is_old { StatusCode::NO_CONTENT } else { StatusCode::CREATED };
    Ok((status, [(header::ETAG, blob.tag())]).into_response())
}

async fn get(State(blobs): State<Blobs>, Name(name): Name<String>, headers: HeaderMap) -> Result<Response, Refusal> {
    let snapshot = wait(|| blobs.0.device().open_snapshot())?;
    let found = wait(|| snapshot.get(blobs.0.id(), &format!("n{name}")))?;
    let blob = Blob::from_record(&found.ok_or((StatusCode::NOT_FOUND, "there is no such blob\n".into()))?);
    let same = [(header::ETAG, blob.tag()), (header::ACCEPT_RANGES, "bytes".into())];
    let of = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    // A range of another upload than this one is not what the client has the beginning of.
    let is_this = of(header::IF_RANGE).is_none_or(|tag| tag == blob.tag());
    let range = of(header::RANGE).filter(|_| is_this).and_then(|range| wanted(range, blob.length));
    let (start, stop) = range.unwrap_or((0, blob.length));
    if range.is_some() && start >= stop {
        let length = [(header::CONTENT_RANGE, format!("bytes */{}", blob.length))];
        return Ok((StatusCode::RANGE_NOT_SATISFIABLE, same, length).into_response());
    }
    let length = [(header::CONTENT_LENGTH, (stop - start).to_string())];
    let place = range.map(|_| [(header::CONTENT_RANGE, format!("bytes {start}-{}/{}", stop - 1, blob.length))]);
    let status = if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    Ok((status, same, length, place, blobs.send(snapshot, blob, start, stop)).into_response())
}

/// What a range of bytes means for a blob; an empty one cannot be satisfied. Several ranges, and what is none, are ignored: the whole blob is sent.
fn wanted(range: &str, length: u64) -> Option<(u64, u64)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    Some(match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => (first, last.saturating_add(1).min(length)),
        (Ok(first), _) if last.is_empty() => (first, length),
        (_, Ok(count)) if first.is_empty() => (length.saturating_sub(count), length),
        _ => return None,
    })
}

async fn delete(State(blobs): State<Blobs>, Name(name): Name<String>) -> Result<StatusCode, Refusal> {
    let Some(old) = wait(|| blobs.switch(&name, None))? else { return Ok(StatusCode::NOT_FOUND) };
    wait(|| blobs.forget(old.upload))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Starts a server. It ends when the runtime is dropped.
pub(crate) fn serve(device: &Device, address: &str) -> Result<(SocketAddr, Runtime), Box<dyn std::error::Error>> {
    let routes = axum::routing::get(get).put(put).delete(delete).with_state(Blobs::open(device)?);
    let runtime = Runtime::new()?;
    let listener = runtime.block_on(TcpListener::bind(address))?;
    let address = listener.local_addr()?;
    runtime.spawn(async move { axum::serve(listener, axum::Router::new().route("/{*name}", routes)).await });
    println!("http://{address}/");
    Ok((address, runtime))
}

/// What `main` runs, on a device in this directory.
pub(crate) fn demo(directory: &Path, address: &str) -> Result<(SocketAddr, Runtime), Box<dyn std::error::Error>> {
    let device = Device::open_or_create(directory.join("blobs.kaml"), &CreateOptions::new(1 << 30))?;
    serve(&device, address)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let _server = demo(Path::new("."), "127.0.0.1:8080")?;
    loop {
        std::thread::park(); // until the program is ended
    }
}
