//! Commands of the NVM command set, one call each.
//!
//! Lives here:       building commands, reading answers.
//! Lives elsewhere:  their fields (`wire::blocks`), sending them (`queue`).
//! Implements:       spec:NVMe-NVM "NVM Command Set".

use super::{Controller, Error, Queue, Ticket};
use crate::wire::blocks::{DATASET_DEALLOCATE, ZEROES_DEALLOCATE, encode_ranges, put_range};
use crate::wire::command::{Command, nvm};
use crate::wire::identify::{NvmNamespace, cns};
use std::ops::Range;
use zerocopy::FromBytes;

/// A block namespace, reached through one queue.
#[derive(Clone, Copy)]
pub struct Blocks<'a> {
    queue: &'a Queue,
    nsid: u32,
    block_bytes: u32,
    block_count: u64,
}

impl<'a> Blocks<'a> {
    /// Asks the controller what the namespace is.
    pub fn new(controller: &Controller, queue: &'a Queue, nsid: u32) -> Result<Blocks<'a>, Error> {
        let page = controller.identify(cns::NAMESPACE, nsid, 0)?;
        let (page, _) = NvmNamespace::read_from_prefix(&page).map_err(|_| Error::Unsupported("Identify Namespace"))?;
        let format = page.lbaf[usize::from(page.flbas & 0xf)].get();
        match format >> 16 & 0xff {
            power @ 9..=16 if page.nsze.get() > 0 => {
                Ok(Blocks { queue, nsid, block_bytes: 1 << power, block_count: page.nsze.get() })
            }
            _ => Err(Error::Unsupported("blocks in this namespace")),
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes as usize
    }

    /// Blocks of the namespace.
    pub fn block_count(&self) -> u64 {
        self.block_count
    }

    fn command(&self, opcode: u8, first_block: u64, count: u64) -> Result<Command, Error> {
        let mut command = Command::new(opcode, self.nsid);
        let count = u32::try_from(count).ok();
        let put = count.and_then(|count| put_range(&mut command, first_block, count));
        put.map(|()| command).ok_or(Error::Unsupported("so many blocks in one command"))
    }

    /// The command that reads so many bytes, which must be whole blocks.
    pub fn reading(&self, first_block: u64, bytes: usize) -> Result<Command, Error> {
        self.command(nvm::READ, first_block, self.count_of(bytes)?)
    }

    /// The command that writes so many bytes, which must be whole blocks.
    pub fn writing(&self, first_block: u64, bytes: usize) -> Result<Command, Error> {
        self.command(nvm::WRITE, first_block, self.count_of(bytes)?)
    }

    fn count_of(&self, bytes: usize) -> Result<u64, Error> {
        match bytes.is_multiple_of(self.block_bytes()) {
            true => Ok((bytes / self.block_bytes()) as u64),
            false => Err(Error::Unsupported("parts of blocks")),
        }
    }

    /// Starts a read of this many bytes, which must be whole blocks.
    pub fn submit_read(&self, first_block: u64, bytes: usize) -> Result<Ticket, Error> {
        self.queue.submit(self.reading(first_block, bytes)?, &[], bytes)
    }

    /// Starts a write of whole blocks.
    pub fn submit_write(&self, first_block: u64, data: &[u8]) -> Result<Ticket, Error> {
        self.queue.submit(self.writing(first_block, data.len())?, data, 0)
    }

    /// Reads so many bytes, which must be whole blocks.
    pub fn read(&self, first_block: u64, bytes: usize) -> Result<Vec<u8>, Error> {
        Ok(self.queue.wait(self.submit_read(first_block, bytes)?)?.success()?.data)
    }

    /// Writes whole blocks.
    pub fn write(&self, first_block: u64, data: &[u8]) -> Result<(), Error> {
        self.queue.wait(self.submit_write(first_block, data)?)?.success().map(drop)
    }

    /// Whether the blocks hold these bytes: a compare failure if they do not.
    pub fn compare(&self, first_block: u64, data: &[u8]) -> Result<(), Error> {
        let command = self.command(nvm::COMPARE, first_block, self.count_of(data.len())?)?;
        self.queue.execute(command, data, 0)?.success().map(drop)
    }

    /// Whether the blocks can be read.
    pub fn verify(&self, first_block: u64, count: u64) -> Result<(), Error> {
        self.queue.execute(self.command(nvm::VERIFY, first_block, count)?, &[], 0)?.success().map(drop)
    }

    /// Makes blocks read as zeroes, deallocated if the controller can.
    pub fn write_zeroes(&self, first_block: u64, count: u64) -> Result<(), Error> {
        let mut command = self.command(nvm::WRITE_ZEROES, first_block, count)?;
        command.cdw12 = (command.cdw12.get() | ZEROES_DEALLOCATE).into();
        self.queue.execute(command, &[], 0)?.success().map(drop)
    }

    /// Deallocates up to 256 ranges of blocks.
    pub fn deallocate(&self, ranges: &[Range<u64>]) -> Result<(), Error> {
        let data = encode_ranges(ranges).ok_or(Error::Unsupported("these ranges in one command"))?;
        let mut command = Command::new(nvm::DATASET_MANAGEMENT, self.nsid);
        command.cdw10 = (ranges.len() as u32 - 1).into();
        command.cdw11 = DATASET_DEALLOCATE.into();
        self.queue.execute(command, &data, 0)?.success().map(drop)
    }

    /// Makes everything durable that completed.
    pub fn flush(&self) -> Result<(), Error> {
        self.queue.execute(Command::new(nvm::FLUSH, self.nsid), &[], 0)?.success().map(drop)
    }
}
