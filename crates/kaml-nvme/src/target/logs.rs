//! Get Log Page.
//!
//! Lives here:       what each page contains about this device.
//! Lives elsewhere:  the layout of the pages (`wire::logs`), events that announce them (`controller`).
//! Implements:       spec:NVMe-Base "Get Log Page command"; spec:NVMe-oF "Discovery Log Page".

use super::controller::{CHANGED_MAX, Controller, ERRORS_MAX, Event, Kind, warning};
use super::core::Target;
use super::options::Security;
use crate::wire::command::{Command, CommandSet, admin, kv, nvm};
use crate::wire::fabrics::CNTLID_DYNAMIC;
use crate::wire::identify::namespace_list;
use crate::wire::logs::{
    DiscoveryHead, DiscoveryRecord, ErrorEntry, Health, LogRequest, SECURITY_TLS_1_3, effect, lid,
};
use crate::wire::reservations;
use crate::wire::status::Status;
use crate::wire::text::{put_ascii, put_name};
use crate::wire::vendor::{DevicePage, encode_namespaces};
use kaml::Stats;
use std::net::SocketAddr;
use zerocopy::little_endian::U64;
use zerocopy::{FromZeros, IntoBytes};

/// A SMART unit: 1000 sectors of 512 bytes.
const UNIT_BYTES: u64 = 512_000;
/// Sixty degrees below the warning: a device without a temperature must not show absolute zero.
const TEMPERATURE_KELVIN: u16 = 300;
/// Spare blocks below this share are a warning.
const SPARE_THRESHOLD_PERCENT: u8 = 10;
impl Target {
    pub(crate) fn log_page(&mut self, id: u16, local: SocketAddr, command: &Command) -> Result<Vec<u8>, Status> {
        let request = LogRequest::of(command).ok_or(Status::INVALID_FIELD)?;
        let controller = self.controllers.get(&id).ok_or(Status::INTERNAL)?;
        let page = match (controller.kind, request.lid) {
            (Kind::Discovery, lid::DISCOVERY) => self.discovery(controller, local),
            (Kind::Discovery, _) => return Err(Status::INVALID_LOG_PAGE),
            (_, lid::SUPPORTED) => supported(),
            (_, lid::ERRORS) => errors(controller),
            (_, lid::HEALTH) => self.health(controller),
            (_, lid::FIRMWARE) => firmware(),
            (_, lid::CHANGED_NAMESPACES) => changed(controller),
            (_, lid::EFFECTS) => effects(CommandSet::from_csi(request.csi).ok_or(Status::COMMAND_SET_UNSUPPORTED)?),
            (_, lid::RESERVATIONS) => controller.notices.page(),
            (_, lid::KAML) => self.device_page(),
            (_, lid::KAML_NAMESPACES) => self.namespaces_page(id),
            _ => return Err(Status::INVALID_LOG_PAGE),
        };
        let begin = usize::try_from(request.offset).ok().filter(|begin| *begin <= page.len());
        let begin = begin.ok_or(Status::INVALID_FIELD)?;
        let bytes = request.bytes.min(command.sgl.length.get() as usize);
        // What lies after the end of a page reads as zeros.
        let mut data: Vec<u8> = page[begin..].iter().copied().take(bytes).collect();
        data.resize(bytes, 0);
        self.read_page(id, &request);
        Ok(data)
    }

    /// Reading a page whole acknowledges the event that announced it.
    fn read_page(&mut self, id: u16, request: &LogRequest) {
        let Some(controller) = self.controllers.get_mut(&id).filter(|_| !request.retain) else { return };
        controller.acknowledge(request.lid);
        if request.lid == lid::CHANGED_NAMESPACES {
            controller.changed_namespaces.clear();
        }
        if request.lid == lid::RESERVATIONS && controller.notices.next() {
            controller.raise(Event::RESERVATIONS);
        }
    }

    fn health(&self, controller: &Controller) -> Vec<u8> {
        let stats = self.engine.device().stats();
        let spare = spare_percent(&stats);
        let mut page = Health::new_zeroed();
        page.critical_warning = self.warnings(&stats) | temperature_warning(controller);
        page.temperature_kelvin = TEMPERATURE_KELVIN.into();
        (page.spare_percent, page.spare_threshold_percent) = (spare, SPARE_THRESHOLD_PERCENT);
        page.units_read[0] = U64::new(stats.read_bytes.div_ceil(UNIT_BYTES));
        page.units_written[0] = U64::new(stats.host_bytes.div_ceil(UNIT_BYTES));
        page.host_reads[0] = U64::new(self.engine.read_count);
        page.host_writes[0] = U64::new(self.engine.write_count);
        page.power_cycles[0] = U64::new(1); // this one; earlier ones are not counted
        page.power_on_hours[0] = U64::new(self.began.elapsed().as_secs() / 3600);
        page.unsafe_shutdowns[0] = U64::new(u64::from(!self.engine.device().info().was_clean));
        page.media_errors[0] = U64::new(stats.damaged_records + stats.program_failures + self.media_error_count);
        page.error_entries[0] = U64::new(controller.error_count);
        page.as_bytes().to_vec()
    }

    /// Critical warnings of the device.
    fn warnings(&self, stats: &Stats) -> u8 {
        let spare = if spare_percent(stats) < SPARE_THRESHOLD_PERCENT { warning::SPARE } else { 0 };
        let stopped = self.engine.device().stopped().map_or(0, |_| warning::RELIABILITY | warning::READ_ONLY);
        spare | stopped
    }

    /// Notifies hosts that enabled it of what is wrong with the device.
    pub(crate) fn notify_of_health(&mut self) {
        if !self.controllers.values().any(Controller::hears_warnings) {
            return;
        }
        let warnings = self.warnings(&self.engine.device().stats());
        self.controllers
            .values_mut()
            .for_each(|controller| controller.warn(warnings | temperature_warning(controller)));
    }

    /// Features and counters of KAML (`docs/nvme-vendor.md`).
    fn device_page(&self) -> Vec<u8> {
        let device = self.engine.device();
        DevicePage::of(&device.info(), &device.stats()).as_bytes().to_vec()
    }

    /// Namespaces that are attached, with their names.
    fn namespaces_page(&self, id: u16) -> Vec<u8> {
        let infos = self.engine.device().namespaces();
        encode_namespaces(infos.iter().filter(|info| self.attached(id, info.id).is_ok()))
    }

    /// A record for each port of the subsystem, if this host may connect to it.
    fn discovery(&self, controller: &Controller, local: SocketAddr) -> Vec<u8> {
        let mut head = DiscoveryHead::new_zeroed();
        let allowed = self.options.access.admits(&controller.host.nqn);
        let ports = if allowed { ports_for(local, &self.ports) } else { Vec::new() };
        (head.generation, head.record_count) = (1.into(), U64::new(ports.len() as u64));
        let mut page = head.as_bytes().to_vec();
        for (port, address) in ports {
            let security = self.security.get(usize::from(port) - 1).copied().unwrap_or_default();
            let mut record = DiscoveryRecord::new_zeroed();
            record.transport = 3; // TCP
            put_address(&mut record, address);
            record.subsystem_type = 2; // NVM subsystem
            // Secure channels required or not, and flow control can be off.
            record.requirements = if security == Security::Required { 1 } else { 2 } | 1 << 2;
            record.security[0] = if security == Security::Plain { 0 } else { SECURITY_TLS_1_3 };
            record.port = port.into();
            record.cntlid = CNTLID_DYNAMIC.into();
            record.admin_queue_size = 32.into();
            put_name(&mut record.subsystem, &self.options.subsystem);
            page.extend(record.as_bytes());
        }
        page
    }
}

/// The ports that a host can reach which has reached us at `local`, with their numbers; that one is the first. A listener at all addresses is shown
/// at this one, and one for this machine alone is shown to this machine alone.
fn ports_for(local: SocketAddr, ports: &[SocketAddr]) -> Vec<(u16, SocketAddr)> {
    let here = |address: &SocketAddr| address.ip().to_canonical();
    let mut found: Vec<(u16, SocketAddr)> = Vec::new();
    for (number, port) in (1..).zip(ports) {
        let address = if port.ip().is_unspecified() { SocketAddr::new(local.ip(), port.port()) } else { *port };
        let is_reachable = !here(&address).is_loopback() || here(&local).is_loopback();
        let is_known = found.iter().any(|(_, known)| (here(known), known.port()) == (here(&address), address.port()));
        if is_reachable && !is_known {
            found.push((number, address));
        }
    }
    found.sort_by_key(|(_, address)| (here(address), address.port()) != (here(&local), local.port()));
    if found.is_empty() { vec![(1, local)] } else { found }
}

/// A listener for both families has IPv4 addresses as IPv6 ones: hosts are shown the IPv4 address.
fn put_address(record: &mut DiscoveryRecord, local: SocketAddr) {
    let address = local.ip().to_canonical();
    record.family = if address.is_ipv4() { 1 } else { 2 };
    put_ascii(&mut record.service, &local.port().to_string());
    put_ascii(&mut record.address, &address.to_string());
}

fn spare_percent(stats: &Stats) -> u8 {
    let good = stats.block_count.saturating_sub(stats.bad_blocks);
    (u64::from(good) * 100 / u64::from(stats.block_count.max(1))) as u8
}

fn temperature_warning(controller: &Controller) -> u8 {
    let [over, under] = controller.thresholds_kelvin;
    if TEMPERATURE_KELVIN >= over || TEMPERATURE_KELVIN <= under { warning::TEMPERATURE } else { 0 }
}

fn supported() -> Vec<u8> {
    let mut page = vec![0; 1024];
    let standard = [lid::SUPPORTED, lid::ERRORS, lid::HEALTH, lid::FIRMWARE, lid::CHANGED_NAMESPACES, lid::EFFECTS];
    for lid in standard.into_iter().chain([lid::RESERVATIONS, lid::KAML, lid::KAML_NAMESPACES]) {
        page[usize::from(lid) * 4] = 1;
    }
    page
}

/// As long as Identify reports (ELPE), so hosts may read it piece by piece.
fn errors(controller: &Controller) -> Vec<u8> {
    let mut page: Vec<u8> = controller.errors.iter().flat_map(|entry| entry.as_bytes().to_vec()).collect();
    page.resize(ERRORS_MAX * size_of::<ErrorEntry>(), 0);
    page
}

fn firmware() -> Vec<u8> {
    let mut page = vec![0; 512];
    page[0] = 1; // slot 1 is active
    put_ascii(&mut page[8..16], env!("CARGO_PKG_VERSION"));
    page
}

fn changed(controller: &Controller) -> Vec<u8> {
    let changed = &controller.changed_namespaces;
    if changed.len() > CHANGED_MAX {
        return namespace_list(std::iter::once(u32::MAX));
    }
    namespace_list(changed.iter().copied())
}

fn effects(set: CommandSet) -> Vec<u8> {
    let mut page = vec![0; 4096];
    let mut put = |at: usize, value: u32| page[at..at + 4].copy_from_slice(&value.to_le_bytes());
    use admin as a;
    for opcode in
        [a::GET_LOG_PAGE, a::IDENTIFY, a::ABORT, a::SET_FEATURES, a::GET_FEATURES, a::ASYNC_EVENT, a::KEEP_ALIVE]
    {
        put(usize::from(opcode) * 4, effect::SUPPORTED);
    }
    put(usize::from(a::SET_NAMESPACE) * 4, effect::SUPPORTED);
    for opcode in [a::NAMESPACE_MANAGEMENT, a::NAMESPACE_ATTACHMENT] {
        put(usize::from(opcode) * 4, effect::SUPPORTED | effect::INVENTORY_CHANGE);
    }
    let io: &[(u8, u32)] = match set {
        CommandSet::Nvm => &[
            (nvm::FLUSH, 0),
            (nvm::WRITE, effect::CONTENT_CHANGE),
            (nvm::READ, 0),
            (nvm::COMPARE, 0),
            (nvm::WRITE_ZEROES, effect::CONTENT_CHANGE),
            (nvm::DATASET_MANAGEMENT, effect::CONTENT_CHANGE),
            (nvm::VERIFY, 0),
            (kv::BEGIN_BACKUP, 0),
            (kv::SEND_BASE, 0),
            (kv::READ_BACKUP, 0),
            (kv::END_BACKUP, 0),
        ],
        CommandSet::KeyValue => &[
            (kv::FLUSH, 0),
            (kv::STORE, effect::CONTENT_CHANGE),
            (kv::RETRIEVE, 0),
            (kv::LIST, 0),
            (kv::DELETE, effect::CONTENT_CHANGE),
            (kv::EXIST, 0),
            (kv::PUT, effect::CONTENT_CHANGE),
            (kv::NAME_KEYS, 0),
            (kv::RETRIEVE_NAMED, 0),
            (kv::EXIST_NAMED, 0),
            (kv::NAME_RANGE, 0),
            (kv::RETRIEVE_RANGE, 0),
            (kv::COUNT_RANGE, 0),
            (kv::DELETE_RANGE, effect::CONTENT_CHANGE),
            (kv::OPEN_SNAPSHOT, 0),
            (kv::CLOSE_SNAPSHOT, 0),
            (kv::BEGIN_BACKUP, 0),
            (kv::SEND_BASE, 0),
            (kv::READ_BACKUP, 0),
            (kv::END_BACKUP, 0),
            (kv::RETRIEVE_VERSION, 0),
            (kv::UNDO, effect::CONTENT_CHANGE),
            (kv::SNAPSHOT, effect::CONTENT_CHANGE),
            (kv::HISTORY, 0),
            (kv::VERSIONS, 0),
            (kv::DIFF, 0),
            (kv::MERGE, effect::CONTENT_CHANGE),
        ],
    };
    for opcode in reservations::opcode::ALL {
        put(1024 + usize::from(opcode) * 4, effect::SUPPORTED);
    }
    for (opcode, more) in io {
        put(1024 + usize::from(*opcode) * 4, effect::SUPPORTED | more);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   hosts are shown the ports that they can reach, the one that they have reached first, and no port twice.
    /// Method: listeners at one address, at all, and at this machine alone; hosts here and elsewhere.
    #[test]
    fn reachable_ports_are_shown() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let shown = |local: &str, ports: &[&str]| -> Vec<String> {
            let ports: Vec<_> = ports.iter().map(|port| at(port)).collect();
            ports_for(at(local), &ports).iter().map(|(port, address)| format!("{port} {address}")).collect()
        };
        assert_eq!(shown("192.0.2.1:4420", &[]), ["1 192.0.2.1:4420"]);
        assert_eq!(shown("192.0.2.1:4420", &["0.0.0.0:4420"]), ["1 192.0.2.1:4420"]);
        let both = ["192.0.2.1:4420", "192.0.3.1:4420", "127.0.0.1:8009"];
        assert_eq!(shown("192.0.3.1:4420", &both), ["2 192.0.3.1:4420", "1 192.0.2.1:4420"]);
        assert_eq!(shown("127.0.0.1:8009", &both).len(), 3);
        assert_eq!(shown("192.0.2.1:4420", &["192.0.2.1:4420", "[::]:4420"]), ["1 192.0.2.1:4420"]);
        assert_eq!(shown("[::ffff:192.0.2.1]:4420", &["0.0.0.0:8009", "[::]:4420"]).len(), 2);
    }

    /// Goal:   the family that discovery reports is that of the address that it reports, also where the system calls it another's.
    #[test]
    fn families_are_those_of_addresses() {
        for (local, family, address) in
            [("192.0.2.1:4420", 1, "192.0.2.1"), ("[::ffff:192.0.2.1]:4420", 1, "192.0.2.1"), ("[::1]:4420", 2, "::1")]
        {
            let mut record = DiscoveryRecord::new_zeroed();
            put_address(&mut record, local.parse().unwrap());
            assert_eq!((record.family, &record.address[..address.len()]), (family, address.as_bytes()), "{local}");
            assert_eq!(record.service[..5], *b"4420 ");
        }
    }
}
