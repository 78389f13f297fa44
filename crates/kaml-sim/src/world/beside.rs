//! Large values that are programmed beside the frames that name them.
//!
//! Lives here:       carrying out program, ring write and flush, and telling the firmware what they came to.
//! Lives elsewhere:  who puts them (`host`), everything else that is under way (`world`).

use super::{End, GET_IDS, World};
use crate::host::{Command, Put};
use kaml_flash::{Completion, Io, IoId, MediumError, Queue};

/// A large value on its way to its pages, beside the frame that names it.
pub(super) struct Beside {
    pub(super) put: Put,
    frame: u64,
    pub(super) program_id: IoId,
    pub(super) write_id: IoId,
    /// Both are carried out at once, and a flush makes them durable; else the ring write follows the program.
    is_together: bool,
    programmed: Option<(Io, Result<(), MediumError>)>,
    /// Before it is carried out, or afterwards.
    write: Option<Io>,
    written: Option<Result<(), MediumError>>,
}

/// The flush of the two.
pub(super) const BESIDE_FLUSH_ID: u64 = GET_IDS - 1;

impl World {
    /// Carries the program of a large value out, as its caller would who has nothing else to wait for, and its ring write
    /// beside it if that may be. Answers false if its Put is still to be staged.
    pub(super) fn begin_beside(&mut self, which: usize, ticket: u64) -> Result<bool, End> {
        if self.workload.beside_percent == 0 || self.rng.below(100) >= self.workload.beside_percent {
            return Ok(false);
        }
        let Some((program_id, program)) = self.core.take_program(ticket) else { return Ok(false) };
        let Command::Put(put) = &self.waiting[which] else { unreachable!("only Puts come here") };
        let frame = self.core.staging_frame();
        let staged = self.core.stage_beside(&put.ops()[0]);
        self.queue.submit(program_id, program);
        let Some((write_id, mut write)) = staged else { return Ok(false) };
        let Command::Put(put) = self.waiting.swap_remove(which) else { unreachable!("just seen") };
        self.staged(&put, frame)?;
        let is_together = self.rng.one_in(2);
        let write = match (is_together, &mut write) {
            (true, Io::Persist { barrier, .. }) => {
                *barrier = false;
                self.queue.submit(write_id, write);
                None
            }
            _ => Some(write),
        };
        self.beside =
            Some(Beside { put, frame, program_id, write_id, is_together, programmed: None, write, written: None });
        Ok(true)
    }

    pub(super) fn go_on_beside(&mut self, completion: Completion) -> Result<(), End> {
        let Completion { id, io, result } = completion;
        if result == Err(MediumError::Gone) {
            return Err(End::Cut);
        }
        let mut beside = self.beside.take().expect("one is under way");
        match id {
            _ if id == beside.program_id => beside.programmed = Some((io, result)),
            _ if id == beside.write_id => (beside.write, beside.written) = (Some(io), Some(result)),
            _ => return self.finish_beside(beside, result),
        }
        match (&beside.programmed, &beside.written) {
            (Some((_, Ok(()))), Some(Ok(()))) if beside.is_together => self.queue.submit(BESIDE_FLUSH_ID, Io::Flush),
            (Some((_, Ok(()))), Some(written)) => {
                let written = written.clone();
                return self.finish_beside(beside, written);
            }
            (Some((_, Ok(()))), None) => {
                beside.write.take().into_iter().for_each(|write| self.queue.submit(beside.write_id, write));
            }
            (Some((_, Err(_))), _) if beside.write.is_some() => return self.finish_beside(beside, Ok(())),
            (Some(_), None) | (None, _) | (Some(_), Some(_)) => {}
        }
        self.beside = Some(beside);
        Ok(())
    }

    /// Tells the firmware. If the program failed, the frame is written again without the Put, which is made again.
    fn finish_beside(&mut self, beside: Beside, written: Result<(), MediumError>) -> Result<(), End> {
        let Beside { put, frame, program_id, write_id, programmed, write, .. } = beside;
        let (program, result) = programmed.expect("it comes first, or the flush waited for it");
        let write = write.expect("it was carried out, or never will be");
        match self.core.complete_beside((program_id, program), (write_id, write), result.map(|()| written)) {
            None => self.counts.beside += 1,
            Some((id, io)) => {
                self.queue.submit(id, io);
                self.counts.withdrawn += 1;
                self.model.withdrawn = Some(frame);
                self.waiting.push(Command::Put(put));
            }
        }
        Ok(())
    }
}
