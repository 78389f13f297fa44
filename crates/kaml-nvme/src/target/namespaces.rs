//! Namespace Management and Attachment: CreateNamespace and DeleteNamespace over NVMe.
//!
//! Lives here:       creating, deleting, attaching, detaching, changing attributes (a command of ours).
//! Lives elsewhere:  the data with KAML attributes (`wire::manage`), which hosts are notified (`core`).
//! Implements:       spec:NVMe-Base "Namespace Management command", "Namespace Attachment command"; paper:KAML Table I.
//!
//! A controller is made when a host connects and forgotten when it leaves, so attachments last as long: a host that
//! connects finds all namespaces attached. A namespace that a host creates is attached to no live controller.

use super::core::{ALL_NAMESPACES, Origin, Outcome, Target};
use super::engine::{done, status_of};
use super::workers::{Change, Done};
use crate::wire::command::{Command, CommandSet};
use crate::wire::identify::LBA_FORMATS;
use crate::wire::identify::read_controller_list;
use crate::wire::manage::{Create, Wanted, decode_change};
use crate::wire::status::Status;
use kaml::{BlockOptions, Bytes, Device, KeyKind, NamespaceKind, NamespaceOptions};
use zerocopy::FromBytes;

/// What Namespace Management, or Attachment, is to do.
const SELECT: u32 = 0xf;

impl Target {
    pub(crate) fn manage_namespace(&mut self, origin: Origin, id: u16, command: &Command, data: &[u8]) -> Outcome {
        debug_assert!(self.is_by(origin, id));
        match command.cdw10.get() & SELECT {
            0 => self.create(origin, id, command, data).into(),
            1 => self.delete_namespace(origin, id, command.nsid.get()).into(),
            _ => Status::INVALID_FIELD.into(),
        }
    }

    fn create(&mut self, origin: Origin, id: u16, command: &Command, data: &[u8]) -> Result<(), Status> {
        self.check_creates(id)?;
        let (create, _) = Create::read_from_prefix(data).map_err(|_| Status::SGL_LENGTH)?;
        let blocks = match CommandSet::from_csi(Command::csi_of(command.cdw11)) {
            Some(CommandSet::KeyValue) => None,
            Some(CommandSet::Nvm) => Some(block_options(&create)?),
            None => return Err(Status::COMMAND_SET_UNSUPPORTED),
        };
        let wanted = create.kaml.read()?;
        self.managing += 1;
        self.engine.start_managing(origin, move |worker| create_namespace(&worker.device, &wanted, blocks));
        Ok(())
    }

    fn delete_namespace(&mut self, origin: Origin, id: u16, nsid: u32) -> Result<(), Status> {
        let deleted_ids: Vec<u32> = match nsid {
            ALL_NAMESPACES => self.spaces.keys().copied().filter(|nsid| self.seen(id, *nsid).is_some()).collect(),
            _ => vec![self.allocated(id, nsid)?.id],
        };
        deleted_ids.iter().try_for_each(|nsid| self.check_administers(id, *nsid))?;
        self.managing += 1;
        self.engine.start_managing(origin, move |worker| {
            let deleted = deleted_ids.iter().try_for_each(|nsid| worker.device.delete_namespace(*nsid));
            let change = if deleted.is_ok() { Change::Deleted(nsid) } else { Change::Failed };
            let result = deleted.map(|()| (0, Bytes::default())).map_err(|error| status_of(&error));
            Done { result, namespace: Some(change) }
        });
        Ok(())
    }

    /// Renames a namespace, maps it to other logs, or states what of it may go when space runs low (`docs/nvme-vendor.md`).
    pub(crate) fn change_namespace(
        &mut self,
        origin: Origin,
        id: u16,
        command: &Command,
        data: &[u8],
    ) -> Result<(), Status> {
        let nsid = self.seen(id, command.nsid.get()).ok_or(Status::INVALID_NAMESPACE)?.id;
        self.check_administers(id, nsid)?;
        let change = decode_change(command.cdw10.get(), data)?;
        self.engine.start(origin, move |worker| done(worker.device.set_namespace(nsid, &change)));
        Ok(())
    }

    pub(crate) fn attach_namespace(&mut self, id: u16, command: &Command, data: &[u8]) -> Result<u64, Status> {
        let nsid = command.nsid.get();
        self.allocated(id, nsid)?;
        self.check_administers(id, nsid)?;
        let list = read_controller_list(data).filter(|list| !list.is_empty()).ok_or(Status::INVALID_CONTROLLER_LIST)?;
        if !list.iter().all(|id| self.controllers.contains_key(id)) {
            return Err(Status::INVALID_CONTROLLER_LIST);
        }
        let attach = match command.cdw10.get() & SELECT {
            0 => true,
            1 => false,
            _ => return Err(Status::INVALID_FIELD),
        };
        // All or none: nothing is changed before everything was looked at.
        let is_attached = |target: &Target, id: &u16| !target.controllers[id].detached.contains(&nsid);
        if list.iter().any(|id| is_attached(self, id) == attach) {
            return Err(if attach { Status::NAMESPACE_ATTACHED } else { Status::NAMESPACE_NOT_ATTACHED });
        }
        for id in &list {
            let controller = self.controllers.get_mut(id).expect("all of the list were just seen");
            if attach {
                controller.detached.remove(&nsid)
            } else {
                controller.detached.insert(nsid)
            };
        }
        self.notify_of_namespace(nsid, |controller| controller.id != id && list.contains(&controller.id));
        Ok(0)
    }
}

/// What a block namespace is to be. It is thin: less capacity than blocks is no reason to refuse it.
fn block_options(create: &Create) -> Result<BlockOptions, Status> {
    let format = LBA_FORMATS.get(usize::from(create.flbas & 0xf)).ok_or(Status::INVALID_FORMAT)?;
    if create.ncap.get() > create.nsze.get() {
        return Err(Status::INVALID_FIELD);
    }
    Ok(BlockOptions::new(1 << format, create.nsze.get()))
}

/// Creates a namespace, under a name that is free if none is needed; returns its id.
fn create_namespace(device: &Device, wanted: &Wanted, blocks: Option<BlockOptions>) -> Done {
    let keys = wanted.keys.unwrap_or(KeyKind::Bytes);
    let kind = match (blocks, wanted.versions) {
        (Some(_), Some(_)) => return Done { result: Err(Status::INVALID_FIELD), namespace: Some(Change::Failed) },
        (Some(blocks), None) => NamespaceKind::Blocks(blocks),
        (None, Some(versions)) => NamespaceKind::Versions(keys, versions),
        (None, None) => NamespaceKind::Records(keys),
    };
    let options = NamespaceOptions::new(kind).with_logs(wanted.logs.clone()).with_compression(wanted.compression);
    let done = |result, change| Done { result, namespace: Some(change) };
    let mut number = 0;
    loop {
        number += 1;
        let name = wanted.name.clone().unwrap_or_else(|| format!("nvme-{number}"));
        match device.create_namespace(&name, &options) {
            Ok(id) => return done(Ok((u64::from(id), Bytes::default())), Change::Created(id)),
            Err(kaml::Error::NamespaceExists(_)) if wanted.name.is_none() => {}
            Err(error) => return done(Err(status_of(&error)), Change::Failed),
        }
    }
}
