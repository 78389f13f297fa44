//! Commands of our own on namespaces that keep versions.
//!
//! Lives here:       Retrieve Version, Undo, Snapshot, History, Versions, Diff, Merge.
//! Lives elsewhere:  their fields (`wire::versions`), what they do (`kaml`); the page for people (`docs/nvme-vendor.md`).
//! Implements:       paper:Muninn 4.4 over NVMe.
//!
//! All of them are done by workers, because they may read flash.

use super::core::{Origin, Target};
use super::engine::status_of;
use super::keyvalue::{found, key_of, room};
use super::workers::Done;
use crate::wire::command::{Command, kv};
use crate::wire::status::Status;
use crate::wire::versions::{
    DIFFERENCE_BYTES, MERGED_BYTES, PAST_BYTES, encode_history, encode_merged, encode_stats, get_at, get_diff,
    get_merge, put_difference, snapshot, stats_bytes,
};
use kaml::{Device, NamespaceId};

/// The result of a command, and its data.
type Answered = Result<(u64, Vec<u8>), kaml::Error>;

impl Target {
    pub(crate) fn versions(&mut self, origin: Origin, nsid: NamespaceId, command: &Command) -> Result<(), Status> {
        let (command, room) = (*command, room(command));
        match command.opcode {
            kv::RETRIEVE_VERSION => {
                let (key, at) = (key_of(&command)?, get_at(&command)?);
                self.engine.start_read(origin, move |worker| {
                    let record = worker.device.get_version(nsid, key, at);
                    found(record.map(|record| record.map(|record| record.value.into())), room).into()
                });
            }
            kv::HISTORY => {
                let key = key_of(&command)?;
                self.engine.start_read(origin, move |worker| {
                    let past = worker.device.history(nsid, key, room / PAST_BYTES);
                    done(past.map(|past| (past.len() as u64, encode_history(&past))))
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
            kv::DIFF => self.engine.start_read(origin, move |worker| done(diff(&worker.device, nsid, &command, room))),
            _ => return self.merge(origin, nsid, &command),
        }
        Ok(())
    }

    fn merge(&mut self, origin: Origin, nsid: NamespaceId, command: &Command) -> Result<(), Status> {
        let (retention, dry_run) = get_merge(command)?;
        if room(command) < MERGED_BYTES {
            return Err(Status::INVALID_FIELD);
        }
        self.engine.start_slow(origin, move |worker| {
            let report = match dry_run {
                true => worker.device.merge_dry_run(nsid, &retention),
                false => worker.device.merge(nsid, &retention, &mut |_, _| {}),
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

/// Differences behind those that are left out, as many as there is room for; the result says how many.
fn diff(device: &Device, nsid: NamespaceId, command: &Command, room: usize) -> Answered {
    let (from, to, skipped) = get_diff(command);
    let (mut out, mut number) = (Vec::new(), 0);
    device.diff(nsid, from, to, &mut |key, difference| {
        if number >= skipped && out.len() + DIFFERENCE_BYTES <= room {
            put_difference(&mut out, &key, difference);
        }
        number = number.saturating_add(1);
        out.len() + DIFFERENCE_BYTES <= room
    })?;
    Ok(((out.len() / DIFFERENCE_BYTES) as u64, out))
}
