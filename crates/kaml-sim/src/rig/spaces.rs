//! Creating namespaces on a device of the laboratory.
//!
//! Lives here:       namespaces of records and of blocks, and waiting until the device knows them.

use super::{BLOCK_BYTES, Rig, RigError};
use kaml_device::{BlockOptions, KeyKind, NamespaceOptions};

impl Rig {
    /// A namespace of records, on some logs or all.
    pub fn create_records(&mut self, name: &str, logs: Vec<u32>) -> Result<u32, RigError> {
        self.create(name, &NamespaceOptions::records(KeyKind::U64).with_logs(logs))
    }

    /// A namespace of this many bytes in logical blocks of 512.
    pub fn create_blocks(&mut self, name: &str, bytes: u64) -> Result<u32, RigError> {
        let options = BlockOptions::new(BLOCK_BYTES, bytes.div_ceil(BLOCK_BYTES.into()));
        self.create(name, &options.into())
    }

    /// Creates a namespace and waits for the root that names it: before that the device does not know it.
    fn create(&mut self, name: &str, options: &NamespaceOptions) -> Result<u32, RigError> {
        let id = self.core.create_namespace(name, options)?;
        let request = self.core.request_root(false);
        self.poll()?;
        while self.core.roots_done() < request {
            self.step()?;
        }
        Ok(id)
    }
}
