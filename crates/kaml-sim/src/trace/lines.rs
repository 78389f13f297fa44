//! Lines and records of fixed length from a stream.
//!
//! Lives here:       the bound of a line, the count of lines and bytes, archives that are given as they are.

use super::TraceError;
use std::io::{BufRead, Read};

/// The longest line. Requests of Mooncake have some thousand hashes of seven digits.
const LINE_BYTES_MAX: usize = 1 << 20;

const ARCHIVES: [(&[u8], &str); 3] =
    [(&[0x28, 0xB5, 0x2F, 0xFD], "zstd -dc"), (&[0x1F, 0x8B], "gzip -dc"), (&[0xFD, b'7', b'z', b'X', b'Z'], "xz -dc")];

pub(super) struct Input<R> {
    from: R,
    line: Vec<u8>,
    /// Lines or records so far.
    count: u64,
    pub(super) bytes: u64,
}

impl<R: BufRead> Input<R> {
    pub(super) fn new(from: R) -> Input<R> {
        Input { from, line: Vec::new(), count: 0, bytes: 0 }
    }

    /// Archives begin with bytes that no trace begins with.
    fn refuse_archives(&mut self) -> Result<(), TraceError> {
        if self.count > 0 {
            return Ok(());
        }
        let begin = self.from.fill_buf().map_err(|error| TraceError::Io { line: 1, error })?;
        match ARCHIVES.iter().find(|(magic, _)| begin.starts_with(magic)) {
            Some((_, tool)) => Err(TraceError::Compressed { tool }),
            None => Ok(()),
        }
    }

    /// The next line without its end, and its number from 1.
    pub(super) fn line(&mut self, format: &'static str) -> Result<Option<(u64, &[u8])>, TraceError> {
        self.refuse_archives()?;
        self.line.clear();
        let line = self.count + 1;
        let mut bounded = (&mut self.from).take(LINE_BYTES_MAX as u64 + 1);
        let bytes = bounded.read_until(b'\n', &mut self.line).map_err(|error| TraceError::Io { line, error })?;
        self.bytes += bytes as u64;
        if bytes == 0 {
            return Ok(None);
        }
        self.count = line;
        if bytes > LINE_BYTES_MAX {
            return Err(TraceError::TooLong { line, most: LINE_BYTES_MAX, format });
        }
        Ok(Some((line, self.line.trim_ascii_end())))
    }

    /// The next record of a fixed length.
    pub(super) fn record<const BYTES: usize>(&mut self) -> Result<Option<[u8; BYTES]>, TraceError> {
        self.refuse_archives()?;
        let mut record = [0; BYTES];
        let mut found = 0;
        while found < BYTES {
            match self.from.read(&mut record[found..]) {
                Ok(0) => break,
                Ok(bytes) => found += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TraceError::Io { line: self.count + 1, error }),
            }
        }
        self.bytes += found as u64;
        if found == 0 {
            return Ok(None);
        }
        self.count += 1;
        match found == BYTES {
            true => Ok(Some(record)),
            false => Err(TraceError::CutShort { record: self.count, found, bytes: BYTES }),
        }
    }
}
