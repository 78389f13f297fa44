//! `kaml identity`: the names by which hosts know a device.

use crate::failure::Failure;
use crate::store::DeviceArgument;
use clap::Args;
use kaml::NamespaceInfo;
use kaml_nvme::target::Identity;
use kaml_terminal::output;
use serde::Serialize;

/// Flags of `kaml identity`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml identity data.kaml
  kaml identity data.kaml --json | jq -r .subsystem
  kaml identity copy.kaml --new

A copy of a device has the identity of the original. A host that sees both treats them as two paths to the same data. Give \
the copy another identity first. Stored data do not change. The device must not be in use.")]
pub struct Arguments {
    #[command(flatten)]
    device: DeviceArgument,
    /// Give the device another identity, drawn at random
    #[arg(long)]
    new: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Names {
    uuid: String,
    serial: String,
    subsystem: String,
    namespaces: Vec<NamespaceNames>,
}

#[derive(Serialize)]
struct NamespaceNames {
    id: u32,
    name: String,
    nguid: String,
    uuid: String,
}

impl Arguments {
    /// Shows the names, after changing them if that is needed.
    pub fn run(self) -> Result<(), Failure> {
        let identity = Identity::of(self.device.identity(self.new)?);
        let namespaces = match self.device.open_to_read() {
            Ok(device) => device.namespaces(),
            // The names of the device itself are known, however damaged it is.
            Err(failure) => {
                eprintln!("kaml: the names of its namespaces are unknown: {failure}");
                Vec::new()
            }
        };
        let names = Names {
            uuid: identity.uuid(),
            serial: identity.serial(),
            subsystem: identity.subsystem(),
            namespaces: namespaces.iter().map(|space| NamespaceNames::of(&identity, space)).collect(),
        };
        if self.json { output::json(&names) } else { output::text(&names.text()) }
    }
}

impl Names {
    fn text(&self) -> String {
        let Names { uuid, serial, subsystem, namespaces } = self;
        let mut text = format!("UUID       {uuid}\nserial     {serial}\nsubsystem  {subsystem}\n");
        for NamespaceNames { id, name, nguid, uuid } in namespaces {
            text += &format!("namespace {id} {name:?}: NGUID {nguid}, UUID {uuid}\n");
        }
        text
    }
}

impl NamespaceNames {
    fn of(identity: &Identity, space: &NamespaceInfo) -> NamespaceNames {
        let hex = |bytes: [u8; 16]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        NamespaceNames {
            id: space.id,
            name: space.name.clone(),
            nguid: hex(identity.nguid(space.id)),
            uuid: Identity::of(identity.namespace_uuid(space.id)).uuid(),
        }
    }
}
