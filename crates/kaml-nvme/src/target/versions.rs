//! Commands of our own on namespaces that keep versions.
//!
//! Lives here:       Retrieve Version, Undo, Snapshot, History, Versions, Diff, Merge.
//! Lives elsewhere:  their fields (`wire::versions`), what they do (`kaml`); the page for people (`docs/nvme-vendor.md`).
//! Implements:       paper:Muninn 4.4 over NVMe.
//!
//! All of them are done by workers, because they may read flash; what may read much of it, piece by piece.

use super::core::{Origin, Target};
use super::engine::status_of;
use super::keyvalue::{found, key_of, room};
use super::workers::{Done, Step, Worker};
use crate::wire::command::{Command, kv};
use crate::wire::status::Status;
use crate::wire::versions::{
    DIFFERENCE_BYTES, MERGED_BYTES, PAST_BYTES, encode_history, encode_merged, encode_stats, get_at, get_diff,
    get_merge, put_difference, snapshot, stats_bytes,
};
use kaml::{Device, Lookup, NamespaceId, Pieces, Steps};
use std::ops::ControlFlow;

/// The result of a command, and its data.
type Answered = Result<(u64, Vec<u8>), kaml::Error>;

impl Target {
    pub(crate) fn versions(&mut self, origin: Origin, nsid: NamespaceId, command: &Command) -> Result<(), Status> {
        let (command, room) = (*command, room(command));
        match command.opcode {
            kv::RETRIEVE_VERSION => {
                let (key, at) = (key_of(&command)?, get_at(&command)?);
                self.engine.read_in_pieces(origin, move |worker| match worker.device.version_pieces(nsid, key, at) {
                    Ok(pieces) => retrieve(pieces, room),
                    Err(error) => Step::Done(done(Err(error))),
                });
            }
            kv::HISTORY => {
                let key = key_of(&command)?;
                self.engine.read_in_pieces(origin, move |worker| {
                    let count_max = room / PAST_BYTES;
                    let pieces = worker.device.history_pieces(nsid, key, u64::MAX, count_max);
                    Entries::begin(pieces, (0, count_max), |out, past| out.extend(encode_history(past)))
                });
            }
            kv::UNDO => {
                let (key, count) = (key_of(&command)?, command.cdw12.get());
                let undo = move |device: &Device| Ok((device.undo(nsid, key, count)?.into(), Vec::new()));
                self.engine.start(origin, move |worker| done(undo(&worker.device)));
            }
            kv::SNAPSHOT => {
                let (action, version) = (command.cdw10.get(), command.cdw11.get());
                if action > snapshot::ROLL_BACK {
                    return Err(Status::INVALID_FIELD);
                }
                self.engine.start(origin, move |worker| done(change(&worker.device, nsid, action, version)));
            }
            kv::VERSIONS => {
                if room < stats_bytes(0) {
                    return Err(Status::INVALID_FIELD);
                }
                let stats = move |device: &Device| Ok((0, encode_stats(&device.version_stats(nsid)?)));
                self.engine.start_read(origin, move |worker| cut(done(stats(&worker.device)), room));
            }
            kv::DIFF if room < DIFFERENCE_BYTES => return Err(Status::INVALID_FIELD),
            kv::DIFF => {
                let (from, to, left_out) = get_diff(&command);
                self.engine.read_in_pieces(origin, move |worker| {
                    let pieces = worker.device.diff_pieces(nsid, from, to);
                    Entries::begin(pieces, (left_out as usize, room / DIFFERENCE_BYTES), |out, found| {
                        found.iter().for_each(|(key, difference)| put_difference(out, key, *difference));
                    })
                });
            }
            _ => return self.merge(origin, nsid, &command),
        }
        Ok(())
    }

    fn merge(&mut self, origin: Origin, nsid: NamespaceId, command: &Command) -> Result<(), Status> {
        let (retention, dry_run) = get_merge(command)?;
        if room(command) < MERGED_BYTES {
            return Err(Status::INVALID_FIELD);
        }
        self.engine.start_slow(origin, move |worker: &mut Worker| {
            let go_on = &mut |_, _| match worker.is_given_up() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            };
            let report = match dry_run {
                true => worker.device.merge_dry_run(nsid, &retention, go_on),
                false => worker.device.merge(nsid, &retention, go_on),
            };
            done(report.map(|report| (0, encode_merged(&report))))
        });
        Ok(())
    }
}

fn done(answered: Answered) -> Done {
    answered.map_err(|error| status_of(&error)).into()
}

fn cut(mut done: Done, room: usize) -> Done {
    if let Ok((_, data)) = &mut done.result {
        data.truncate(room);
    }
    done
}

/// Takes, forgets or rolls back to a snapshot; the result is the number of the one that was taken or forgotten.
fn change(device: &Device, nsid: NamespaceId, action: u32, version: u32) -> Answered {
    let number = match action {
        snapshot::TAKE => device.snapshot(nsid)?,
        snapshot::FORGET => device.forget_snapshot(nsid, version).map(|()| version)?,
        _ => device.roll_back(nsid, version)?,
    };
    Ok((number.into(), Vec::new()))
}

/// The version that is found, after it is.
fn retrieve(mut pieces: Pieces<Lookup>, room: usize) -> Step {
    let record = match pieces.next() {
        Some(Ok(found)) if found.is_empty() => return Step::More(Box::new(move |_| retrieve(pieces, room))),
        Some(found) => found.map(|mut found| found.pop()),
        None => Ok(None),
    };
    Step::Done(found(record.map(|record| record.map(|record| record.value.into())), room).into())
}

/// Writes entries of an answer after others.
type Put<F> = fn(&mut Vec<u8>, &[F]);

/// An answer of entries that are found piece by piece; the result states how many.
struct Entries<T: Steps> {
    pieces: Pieces<T>,
    /// Entries that are left out before the first, and that there is room for.
    left_out: usize,
    count_max: usize,
    count: usize,
    put: Put<T::Found>,
    out: Vec<u8>,
}

impl<T: Steps + Send + 'static> Entries<T> {
    fn begin(
        pieces: Result<Pieces<T>, kaml::Error>,
        (left_out, count_max): (usize, usize),
        put: Put<T::Found>,
    ) -> Step {
        match pieces {
            Ok(pieces) => Entries { pieces, left_out, count_max, count: 0, put, out: Vec::new() }.go_on(),
            Err(error) => Step::Done(done(Err(error))),
        }
    }

    fn go_on(mut self) -> Step {
        match self.pieces.next() {
            Some(Ok(found)) if self.take(&found) => Step::More(Box::new(move |_| self.go_on())),
            Some(Err(error)) => Step::Done(done(Err(error))),
            Some(Ok(_)) | None => Step::Done(done(Ok((self.count as u64, self.out)))),
        }
    }

    /// Returns whether there is room for more.
    fn take(&mut self, found: &[T::Found]) -> bool {
        let (left_out, found) = found.split_at(self.left_out.min(found.len()));
        let (told, _) = found.split_at(found.len().min(self.count_max - self.count));
        self.left_out -= left_out.len();
        self.count += told.len();
        (self.put)(&mut self.out, told);
        self.count < self.count_max
    }
}
