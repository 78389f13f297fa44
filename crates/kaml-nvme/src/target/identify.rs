//! Identify.
//!
//! Lives here:       what each page contains about this device.
//! Lives elsewhere:  the layout of the pages (`wire::identify`).
//! Implements:       spec:NVMe-Base "Identify command"; spec:NVMe-NVM and spec:NVMe-KV "Identify Namespace".

use super::access::Right;
use super::controller::{ERRORS_MAX, EVENT_REQUESTS_MAX, KEEP_ALIVE_UNIT, Kind, NAMESPACE_EVENTS};
use super::core::Target;
use super::engine::status_of;
use super::fabrics::version;
use super::options::QUEUE_ENTRIES_MAX;
use super::request::{CAPSULE_DATA_BYTES, DISCOVERY_MDTS, MDTS};
use super::spaces::{Holds, Space};
use crate::wire::command::{Command, CommandSet};
use crate::wire::fabrics::DISCOVERY_NQN;
use crate::wire::identify::{
    Controller as ControllerPage, IndependentNamespace, KvFormat, KvNamespace, LBA_FORMATS, NvmNamespace, PAGE_BYTES,
    cns, controller_list, descriptor, namespace_list, put_descriptor,
};
use crate::wire::status::Status;
use crate::wire::text::{put_ascii, put_name};
use kaml::store::Backing;
use kaml::{BlockInfo, Key, KeyKind};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

/// The largest namespace id is reported in steps of this, so it seldom changes.
const NAMESPACE_STEP: u32 = 1024;
/// SGLs without alignment (bits 1:0), with offsets in the capsule (20), moved by the transport (21).
const SGLS: u32 = 1 | 1 << 20 | 1 << 21;
/// Degrees at which a device should warn, and stop; this one has no temperature, but 0 is not allowed.
pub(super) const WARNING_KELVIN: u16 = 343;
const CRITICAL_KELVIN: u16 = 353;

impl Target {
    pub(crate) fn identify(&mut self, id: u16, command: &Command) -> Result<Vec<u8>, Status> {
        let (what, number) = (command.cdw10.get() as u8, (command.cdw10.get() >> 16) as u16);
        let (nsid, csi) = (command.nsid.get(), Command::csi_of(command.cdw11));
        let mut page = match what {
            cns::CONTROLLER => self.identify_controller(id)?,
            _ if self.controllers.get(&id).is_none_or(|controller| controller.kind == Kind::Discovery) => {
                return Err(Status::INVALID_FIELD);
            }
            cns::NAMESPACE if nsid == u32::MAX => {
                any_nvm_namespace(self.reservation_capabilities()).as_bytes().to_vec()
            }
            cns::NAMESPACE => self.nvm_namespace(id, self.attached_or_none(id, nsid)?)?,
            cns::ALLOCATED_NAMESPACE => self.nvm_namespace(id, self.seen(id, nsid))?,
            cns::ACTIVE_NAMESPACES => self.list_namespaces(id, true, nsid, None)?,
            cns::SET_ACTIVE_NAMESPACES => self.list_namespaces(id, true, nsid, Some(set_of(csi)?))?,
            cns::ALLOCATED_NAMESPACES => self.list_namespaces(id, false, nsid, None)?,
            cns::SET_ALLOCATED_NAMESPACES => self.list_namespaces(id, false, nsid, Some(set_of(csi)?))?,
            cns::DESCRIPTORS => self.descriptors(self.attached(id, nsid)?),
            cns::INDEPENDENT_NAMESPACE => self.attached(id, nsid).map(|_| self.independent_namespace(id, nsid))?,
            cns::SET_NAMESPACE => self.set_namespace(id, self.attached_or_none(id, nsid)?, set_of(csi)?)?,
            cns::SET_ALLOCATED_NAMESPACE => self.set_namespace(id, self.seen(id, nsid), set_of(csi)?)?,
            cns::SET_CONTROLLER => identify_set(set_of(csi)?),
            cns::FORMAT => self.format(command.cdw11.get() as u16, set_of(csi)?)?,
            cns::ATTACHED_CONTROLLERS => {
                self.allocated(id, nsid)?;
                let all = self.storage_controllers(number);
                controller_list(all.filter(|id| self.attached(*id, nsid).is_ok()).collect::<Vec<_>>().into_iter())
            }
            cns::CONTROLLERS => controller_list(self.storage_controllers(number).collect::<Vec<_>>().into_iter()),
            cns::COMMAND_SETS => {
                // One combination: both sets.
                let sets = 1u64 << CommandSet::Nvm.csi() | 1 << CommandSet::KeyValue.csi();
                sets.to_le_bytes().to_vec()
            }
            _ => return Err(Status::INVALID_FIELD),
        };
        page.resize(PAGE_BYTES, 0);
        Ok(page)
    }

    /// Numbers of live storage controllers from `from` on.
    fn storage_controllers(&self, from: u16) -> impl Iterator<Item = u16> + '_ {
        let storage = self.controllers.range(from..).filter(|(_, controller)| controller.kind == Kind::Storage);
        storage.map(|(id, _)| *id)
    }

    fn identify_controller(&self, id: u16) -> Result<Vec<u8>, Status> {
        let controller = self.controllers.get(&id).ok_or(Status::INTERNAL)?;
        let mut page = ControllerPage::new_zeroed();
        put_ascii(&mut page.sn, &self.limits.serial);
        put_ascii(&mut page.mn, "KAML key-value SSD");
        put_ascii(&mut page.fr, env!("CARGO_PKG_VERSION"));
        page.mdts = MDTS;
        page.cntlid = id.into();
        page.ver = version().into();
        page.aerl = EVENT_REQUESTS_MAX as u8 - 1;
        page.lpa = 1 << 2; // offsets in pages
        page.elpe = ERRORS_MAX as u8 - 1;
        page.maxcmd = (QUEUE_ENTRIES_MAX as u16).into();
        page.kas = (KEEP_ALIVE_UNIT.as_millis() as u16 / 100).into();
        page.sgls = SGLS.into();
        page.ctratt = (1 | 1 << 6).into(); // host ids of 128 bits, any command keeps alive
        if controller.kind == Kind::Discovery {
            (page.cntrltype, page.mdts) = (2, DISCOVERY_MDTS);
            put_name(&mut page.subnqn, DISCOVERY_NQN);
            return Ok(page.as_bytes().to_vec());
        }
        page.cntrltype = 1;
        put_name(&mut page.subnqn, &self.options.subsystem);
        page.rab = 6;
        page.lpa |= 1 << 1; // effects
        page.cmic = 1 << 1 | u8::from(self.ports.len() > 1); // several controllers, several ports
        page.oaes = NAMESPACE_EVENTS.into();
        page.oacs = (1u16 << 3).into(); // namespace management
        page.acl = 3;
        page.frmw = 1 << 1 | 1; // one firmware slot, which cannot be written
        (page.wctemp, page.cctemp) = (WARNING_KELVIN.into(), CRITICAL_KELVIN.into());
        let stats = self.engine.device().stats();
        page.tnvmcap[0] = U64::new(stats.capacity_bytes);
        page.unvmcap[0] = U64::new(stats.capacity_bytes.saturating_sub(stats.live_bytes));
        (page.sqes, page.cqes) = (0x66, 0x44); // entries of 64 and 16 bytes
        page.nn = self.namespace_id_max().into();
        page.mnan = NAMESPACE_STEP.into();
        // Compare, Dataset Management, Write Zeroes, reservations, Verify; Get Features shows what is supported.
        page.oncs = (1u16 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 7).into();
        page.vwc = 3 << 1; // no volatile cache; Flush takes all namespaces
        page.ioccsz = U32::new((64 + CAPSULE_DATA_BYTES as u32) / 16);
        page.iorcsz = 1.into();
        page.msdbd = 1;
        page.power_state_0[..2].copy_from_slice(&2500u16.to_le_bytes()); // 25 W, so it is not 0
        Ok(page.as_bytes().to_vec())
    }

    /// The largest id a namespace may have: ids are never used again, so it grows.
    pub(crate) fn namespace_id_max(&self) -> u32 {
        let largest = self.spaces.keys().next_back().copied().unwrap_or(0);
        (largest + 1).next_multiple_of(NAMESPACE_STEP)
    }

    /// An id that could be a namespace's, whether it is or not.
    fn attached_or_none(&self, id: u16, nsid: u32) -> Result<Option<&Space>, Status> {
        match nsid {
            0 => Err(Status::INVALID_NAMESPACE),
            // Only what all namespaces have in common.
            u32::MAX => Ok(None),
            _ => Ok(self.attached(id, nsid).ok()),
        }
    }

    fn independent_namespace(&self, host: u16, nsid: u32) -> Vec<u8> {
        let mut page = IndependentNamespace::new_zeroed();
        page.nsattr = self.attributes(host, nsid);
        page.nsfeat = 1 << 3; // identifiers that are never used again
        page.nmic = 1; // may be attached to several controllers
        page.rescap = self.reservation_capabilities();
        page.nstat = 1; // ready
        page.as_bytes().to_vec()
    }

    /// Attributes of a namespace for a host: bit 0, it cannot be written.
    fn attributes(&self, id: u16, nsid: u32) -> u8 {
        u8::from(self.right(id, nsid) < Right::Write)
    }

    /// The namespaces that a host can read, all of them or those that are attached.
    fn list_namespaces(
        &self,
        id: u16,
        attached: bool,
        behind: u32,
        set: Option<CommandSet>,
    ) -> Result<Vec<u8>, Status> {
        let first = behind.checked_add(1).filter(|first| *first < u32::MAX).ok_or(Status::INVALID_NAMESPACE)?;
        let spaces = self.spaces.range(first..).filter(|(_, space)| set.is_none_or(|set| space.set() == set));
        let seen =
            |nsid: &u32| if attached { self.attached(id, *nsid).is_ok() } else { self.seen(id, *nsid).is_some() };
        Ok(namespace_list(spaces.map(|(nsid, _)| *nsid).filter(seen)))
    }

    /// SPDK requests this page of all namespaces: an error makes it give up the controller, and a namespace without capacity
    /// is none to it. So a Key Value namespace has a capacity here, but no blocks that anybody could take it for a disk.
    fn nvm_namespace(&self, host: u16, space: Option<&Space>) -> Result<Vec<u8>, Status> {
        match space {
            Some(Space { id, holds: Holds::Blocks(_), .. }) => {
                let info = self.engine.device().block_info(*id).map_err(|error| status_of(&error))?;
                let mut page = self.block_namespace(*id, &info);
                page.nsattr = self.attributes(host, *id);
                Ok(page.as_bytes().to_vec())
            }
            Some(Space { holds: Holds::Records(_) | Holds::Versions(_), .. }) => {
                let mut page = NvmNamespace::new_zeroed();
                page.ncap = self.engine.device().stats().capacity_bytes.into();
                Ok(page.as_bytes().to_vec())
            }
            None => Ok(Vec::new()),
        }
    }

    fn block_namespace(&self, nsid: u32, info: &BlockInfo) -> NvmNamespace {
        let mut page = any_nvm_namespace(self.reservation_capabilities());
        (page.nsze, page.ncap, page.nuse) = (info.block_count.into(), info.block_count.into(), info.used_blocks.into());
        page.nvmcap[0] = (info.block_count * u64::from(info.block_bytes)).into();
        let format = LBA_FORMATS.iter().position(|power| 1 << power == info.block_bytes);
        page.flbas = format.expect("blocks have 512 or 4096 bytes") as u8;
        // Numbers of blocks are reported less one.
        let atomic = U16::new((info.atomic_blocks - 1).min(u32::from(u16::MAX)) as u16);
        (page.nawun, page.nawupf) = (atomic, atomic);
        let unit = U16::new((info.unit_bytes / info.block_bytes - 1) as u16);
        (page.npwg, page.npwa, page.npdg, page.npda, page.nows) = (unit, unit, unit, unit, unit);
        page.nguid = self.limits.identity.nguid(nsid);
        page
    }

    fn set_namespace(&self, host: u16, space: Option<&Space>, set: CommandSet) -> Result<Vec<u8>, Status> {
        let Some(space) = space else { return Ok(Vec::new()) };
        match (space.holds, set) {
            (Holds::Records(keys) | Holds::Versions(keys), CommandSet::KeyValue) => {
                Ok(self.kv_namespace(host, space.id, keys))
            }
            // Of blocks without extended formats this page reports nothing.
            (_, CommandSet::Nvm) => Ok(Vec::new()),
            (Holds::Blocks(_), CommandSet::KeyValue) => Err(Status::INVALID_FIELD),
        }
    }

    fn kv_namespace(&self, host: u16, nsid: u32, keys: KeyKind) -> Vec<u8> {
        let stats = self.engine.device().stats();
        let mut page = KvNamespace::new_zeroed();
        page.nsze = stats.capacity_bytes.into();
        page.reserved_8 = page.nsze;
        page.nuse = stats.live_bytes.into();
        page.nmic = 1; // may be attached to several controllers
        page.nsattr = self.attributes(host, nsid);
        page.rescap = self.reservation_capabilities();
        page.novg = self.limits.chunk_bytes.into();
        page.nguid = self.limits.identity.nguid(nsid);
        // Format 0, which is the last one (the number is less one), and in use.
        page.formats[0] = kv_format(keys, Backing::value_bytes_max(self.engine.device(), nsid));
        page.as_bytes().to_vec()
    }

    /// Formats that Create takes: 0 keys of 1 to 16 bytes, 1 64-bit integers.
    fn format(&self, index: u16, set: CommandSet) -> Result<Vec<u8>, Status> {
        let kinds = [KeyKind::Bytes, KeyKind::U64];
        match (set, kinds.get(usize::from(index))) {
            (CommandSet::KeyValue, Some(keys)) => {
                let mut page = KvNamespace::new_zeroed();
                page.nkvf = kinds.len() as u8 - 1;
                page.formats[usize::from(index)] = kv_format(*keys, self.limits.value_bytes_max);
                Ok(page.as_bytes().to_vec())
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn descriptors(&self, space: &Space) -> Vec<u8> {
        let identity = self.limits.identity;
        let mut out = Vec::new();
        put_descriptor(&mut out, descriptor::NGUID, &identity.nguid(space.id));
        put_descriptor(&mut out, descriptor::UUID, &identity.namespace_uuid(space.id));
        put_descriptor(&mut out, descriptor::CSI, &[space.set().csi()]);
        out
    }
}

fn kv_format(keys: KeyKind, value_bytes_max: u64) -> KvFormat {
    let key_bytes = match keys {
        KeyKind::Bytes | KeyKind::Any | KeyKind::Ordered => Key::BYTES_MAX as u16,
        KeyKind::U64 => 8,
    };
    KvFormat {
        key_bytes_max: U16::new(key_bytes),
        reserved: 0,
        additional: 0,
        value_bytes_max: U32::new(value_bytes_max.min(u64::from(u32::MAX)) as u32),
        keys_max: 0.into(), // no limit of its own
        reserved_12: 0.into(),
    }
}

/// What all block namespaces have in common.
fn any_nvm_namespace(capabilities: u8) -> NvmNamespace {
    let mut page = NvmNamespace::new_zeroed();
    // Thin (bit 0), with atomicity (1), identifiers that are never used again (3) and best sizes (4) of its own.
    page.nsfeat = 1 | 1 << 1 | 1 << 3 | 1 << 4;
    page.nmic = 1; // may be attached to several controllers
    page.rescap = capabilities;
    page.dlfeat = 1 | 1 << 3; // deallocated blocks read as zeroes, and Write Zeroes deallocates
    page.nlbaf = LBA_FORMATS.len() as u8 - 1;
    for (power, format) in LBA_FORMATS.iter().zip(&mut page.lbaf) {
        // Smaller blocks than a mapping unit cost a read for a write: the second best performance (bits 25:24).
        let performance = u32::from(*power < 12);
        *format = (u32::from(*power) << 16 | performance << 24).into();
    }
    page
}

fn set_of(csi: u8) -> Result<CommandSet, Status> {
    CommandSet::from_csi(csi).ok_or(Status::COMMAND_SET_UNSUPPORTED)
}

/// What is special to a command set.
fn identify_set(set: CommandSet) -> Vec<u8> {
    match set {
        CommandSet::Nvm => Vec::new(),
        CommandSet::KeyValue => 0x0001_0300u32.to_le_bytes().to_vec(), // its version, 1.3
    }
}
