//! A device that Linux has attached: commands go to the nodes of its namespaces, `/dev/ngXnY`, and through the kernel's own
//! driver to the controller, whatever transport there is.
//!
//! Lives here:       the system call, which node a namespace has.
//! Lives elsewhere:  commands (`keyvalue`, …), the device that it leads to (`remote`).
//! Implements:       docs/nvme.md (Linux passthrough).
//!
//! The kernel never repeats such a command. One call carries one command, which its thread waits for; threads do not wait
//! for each other.
#![allow(unsafe_code, reason = "the kernel is handed the command and its data by address")]

use super::carrier::Carrier;
use super::{Error, Finished};
use crate::wire::command::{Command, Direction, kv};
use crate::wire::identify::{Controller as ControllerPage, cns};
use crate::wire::status::Status;
use kaml_flash::AlignedBuf;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use zerocopy::FromBytes;

/// Milliseconds that a merge may take; other commands get what the kernel gives by itself.
const MERGE_MS_MAX: u32 = 3_600_000;
/// Names all namespaces, which have no node.
const ALL_NAMESPACES: u32 = u32::MAX;
/// The longest transfer, unless the controller allows less.
const TRANSFER_BYTES_MAX: usize = 16 << 20;

/// `struct nvme_passthru_cmd64` of `linux/nvme_ioctl.h`.
#[repr(C)]
struct Passthru {
    opcode: u8,
    flags: u8,
    reserved_2: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    cdw10: [u32; 6],
    timeout_ms: u32,
    reserved_68: u32,
    result: u64,
}

const _: () = assert!(size_of::<Passthru>() == 80);

const ADMIN_COMMAND: Opcode = opcode::read_write::<Passthru>(b'N', 0x47);
const IO_COMMAND: Opcode = opcode::read_write::<Passthru>(b'N', 0x48);
const NAMESPACE_ID: Opcode = opcode::none(b'N', 0x40);

/// A command with its data on its way through the kernel.
struct Call<'a> {
    opcode: Opcode,
    command: Passthru,
    /// What `command.address` names, for as long as the call lasts.
    _data: &'a mut [u8],
}

// SAFETY: the opcodes are those of commands which read and write one `struct nvme_passthru_cmd64`, whose layout is that of
// `Passthru`. The kernel reads or writes `data_bytes` bytes at `address`: both are made of `_data` in `Call::new` alone.
unsafe impl Ioctl for Call<'_> {
    type Output = (Status, u64);
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.command).cast()
    }

    unsafe fn output_from_ptr(status: IoctlOutput, command: *mut c_void) -> rustix::io::Result<(Status, u64)> {
        // SAFETY: it is the pointer of `as_ptr`, to a command that lives until the call returns.
        let result = unsafe { (*command.cast::<Passthru>()).result };
        Ok((Status::from_field((status as u16) << 1), result))
    }
}

impl<'a> Call<'a> {
    fn new(opcode: Opcode, command: &Command, data: &'a mut [u8]) -> Call<'a> {
        let address = if data.is_empty() { 0 } else { data.as_mut_ptr() as u64 };
        let dwords = [command.cdw10, command.cdw11, command.cdw12, command.cdw13, command.cdw14, command.cdw15];
        let command = Passthru {
            opcode: command.opcode,
            flags: 0,
            reserved_2: 0,
            nsid: command.nsid.get(),
            cdw2: command.cdw2.get(),
            cdw3: command.cdw3.get(),
            metadata: 0,
            address,
            metadata_bytes: 0,
            data_bytes: data.len() as u32, // at most the longest transfer
            cdw10: dwords.map(|dword| dword.get()),
            timeout_ms: if command.opcode == kv::MERGE { MERGE_MS_MAX } else { 0 },
            reserved_68: 0,
            result: 0,
        };
        Call { opcode, command, _data: data }
    }
}

/// Requests the namespace of a node.
struct NamespaceOf;

// SAFETY: the command takes nothing and writes nothing; it returns a number.
unsafe impl Ioctl for NamespaceOf {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        NAMESPACE_ID
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(nsid: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        Ok(nsid as u32)
    }
}

/// A controller after Linux, by the nodes of its namespaces.
pub(super) struct Passthrough {
    /// The node that was opened; admin commands go there, too.
    path: PathBuf,
    node: Arc<File>,
    /// Nodes by their namespace, as they are found.
    nodes: Mutex<BTreeMap<u32, Arc<File>>>,
    transfer_bytes_max: usize,
}

impl Passthrough {
    /// Opens the controller of a node, `/dev/ngXnY`.
    pub(super) fn open(path: &Path) -> Result<Passthrough, Error> {
        let node = Arc::new(open_node(path)?);
        let nsid = namespace_of(&node)?;
        let mut identify = Command::new(crate::wire::command::admin::IDENTIFY, 0);
        identify.cdw10 = u32::from(cns::CONTROLLER).into();
        let page = call(&node, ADMIN_COMMAND, &identify, &[], size_of::<ControllerPage>())?.success()?.data;
        let (page, _) =
            ControllerPage::read_from_prefix(&page).map_err(|_| Error::Unsupported("Identify Controller"))?;
        let transfer_bytes_max = match page.mdts {
            0 => TRANSFER_BYTES_MAX,
            power => {
                4096usize.checked_shl(u32::from(power)).map_or(TRANSFER_BYTES_MAX, |max| max.min(TRANSFER_BYTES_MAX))
            }
        };
        let nodes = Mutex::new(BTreeMap::from([(nsid, Arc::clone(&node))]));
        Ok(Passthrough { path: path.to_owned(), node, nodes, transfer_bytes_max })
    }

    /// The node of a namespace of the same subsystem.
    fn node_of(&self, nsid: u32) -> Result<Arc<File>, Error> {
        let mut nodes = self.nodes.lock().expect("no panics under this lock");
        if !nodes.contains_key(&nsid) {
            for (found, node) in self.siblings() {
                nodes.entry(found).or_insert(node);
            }
        }
        let missing = || Error::Connection(format!("namespace {nsid} has no node next to {}", self.path.display()));
        nodes.get(&nsid).cloned().ok_or_else(missing)
    }

    /// All nodes of the subsystem that can be opened.
    fn siblings(&self) -> Vec<(u32, Arc<File>)> {
        let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let prefix = name(&self.path).rsplit_once('n').map_or_else(String::new, |(prefix, _)| format!("{prefix}n"));
        let list = std::fs::read_dir(self.path.parent().unwrap_or(Path::new("/dev")));
        let paths = list.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let ours =
            paths.filter(|path| name(path).strip_prefix(&prefix).is_some_and(|number| number.parse::<u32>().is_ok()));
        ours.filter_map(|path| {
            let node = open_node(&path).ok()?;
            Some((namespace_of(&node).ok()?, Arc::new(node)))
        })
        .collect()
    }
}

/// Whether a path leads to such a node.
pub(super) fn is_node(path: &Path) -> bool {
    let is_ng = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("ng"));
    is_ng && std::fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device())
}

fn open_node(path: &Path) -> Result<File, Error> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|error| Error::Refused(format!("{}: {error}", path.display())))
}

fn namespace_of(node: &File) -> Result<u32, Error> {
    // SAFETY: see `NamespaceOf`; a file that is no node of a namespace refuses the command.
    unsafe { rustix::ioctl::ioctl(node, NamespaceOf) }.map_err(failed)
}

fn call(node: &File, opcode: Opcode, command: &Command, data: &[u8], room: usize) -> Result<Finished, Error> {
    let is_read = command.direction() == Direction::Out;
    // The kernel maps whole pages: it refuses long data that begin within one.
    let mut moved = if is_read { AlignedBuf::zeroed(room) } else { AlignedBuf::copy_of(data) };
    // SAFETY: see `Call`; a file that is no node of a namespace refuses the command.
    let called = unsafe { rustix::ioctl::ioctl(node, Call::new(opcode, command, &mut moved)) };
    let (status, result) = called.map_err(failed)?;
    match status.kind() {
        // The way to the controller was lost (spec:NVMe-Base "Path Related Status").
        3 => Err(Error::Connection(status.to_string())),
        _ => Ok(Finished { status, result, data: if is_read { moved.to_vec() } else { Vec::new() } }),
    }
}

fn failed(errno: Errno) -> Error {
    match errno {
        Errno::AGAIN | Errno::INTR | Errno::NODEV | Errno::NXIO | Errno::IO => Error::Connection(errno.to_string()),
        _ => Error::Refused(errno.to_string()),
    }
}

impl Carrier for Passthrough {
    fn admin(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error> {
        call(&self.node, ADMIN_COMMAND, &command, data, room)
    }

    fn io(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error> {
        if command.nsid == ALL_NAMESPACES {
            return Err(Error::Refused("Linux takes no command for all namespaces".into()));
        }
        call(&*self.node_of(command.nsid.get())?, IO_COMMAND, &command, data, room)
    }

    fn transfer_bytes_max(&self) -> usize {
        self.transfer_bytes_max
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}
