//! The file of hosts: which hosts may connect to `kaml serve`, their secrets and their rights.
//!
//! Lives here:       its form, and what is wrong with one.
//! Lives elsewhere:  what a host may do (`kaml-nvme`), files with secrets (`secrets`).
//! May be called by: `serve`.

use crate::failure::Failure;
use crate::secrets::{read_private, read_secret, read_tls_key};
use kaml_nvme::auth::{Group, Hash, Secret, Strength};
use kaml_nvme::target::{self, Access, HostAccess, Rights};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file as a whole.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    /// The weakest hash function that is accepted.
    hash: Option<String>,
    /// The weakest group.
    group: Option<String>,
    #[serde(default)]
    host: Vec<Host>,
}

/// One host.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Host {
    nqn: String,
    secret: Option<String>,
    secret_file: Option<PathBuf>,
    controller_secret: Option<String>,
    controller_secret_file: Option<PathBuf>,
    tls_key: Option<String>,
    tls_key_file: Option<PathBuf>,
    /// Rights by names of namespaces; `*` for all others.
    #[serde(default)]
    namespaces: BTreeMap<String, Right>,
    #[serde(default)]
    create_namespaces: bool,
}

/// What a host may do with a namespace.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Right {
    None,
    Read,
    Write,
    Administer,
}

impl From<Right> for target::Right {
    fn from(right: Right) -> target::Right {
        match right {
            Right::None => target::Right::None,
            Right::Read => target::Right::Read,
            Right::Write => target::Right::Write,
            Right::Administer => target::Right::Administer,
        }
    }
}

impl Host {
    fn rights(&self) -> Rights {
        let mut namespaces: BTreeMap<String, target::Right> =
            self.namespaces.iter().map(|(name, right)| (name.clone(), (*right).into())).collect();
        let others = namespaces.remove("*").unwrap_or_default();
        Rights { namespaces, others, creates: self.create_namespaces }
    }
}

/// Reads the file. Files that it names are relative to it.
pub fn read(path: &Path) -> Result<Access, Failure> {
    let text = read_private(path)?;
    let bad = |what: String| Failure::Usage(format!("{}: {what}", path.display()));
    // The error shows the line, which can contain a secret: only its place is printed.
    let file: File = toml::from_str(&text).map_err(|error| bad(place_of(&error, &text)))?;
    let mut access = Access::only([]);
    let Strength { hash, group } = access.strength;
    access.strength = Strength {
        hash: file.hash.as_deref().map_or(Ok(hash), str::parse::<Hash>).map_err(bad)?,
        group: file.group.as_deref().map_or(Ok(group), str::parse::<Group>).map_err(bad)?,
    };
    for host in file.host {
        let named = |what: String| bad(format!("host {:?}: {what}", host.nqn));
        let place = |file: &PathBuf| path.parent().unwrap_or(Path::new("")).join(file);
        let both = |name: &str| named(format!("{name} and {name}-file exclude each other"));
        let of = |name: &str, text: &Option<String>, file: &Option<PathBuf>| match (text, file) {
            (Some(_), Some(_)) => Err(both(name)),
            (Some(text), None) => text.parse::<Secret>().map(Some).map_err(|error| named(format!("{name}: {error}"))),
            (None, Some(file)) => read_secret(&place(file)).map(Some),
            (None, None) => Ok(None),
        };
        let tls_key = match (&host.tls_key, &host.tls_key_file) {
            (Some(_), Some(_)) => return Err(both("tls-key")),
            (Some(text), None) => Some(text.parse().map_err(|error| named(format!("tls-key: {error}")))?),
            (None, Some(file)) => Some(read_tls_key(&place(file))?),
            (None, None) => None,
        };
        let secret = of("secret", &host.secret, &host.secret_file)?;
        let controller_secret = of("controller-secret", &host.controller_secret, &host.controller_secret_file)?;
        if controller_secret.is_some() && secret.is_none() {
            return Err(named("has a controller-secret, which nobody asks for without a secret of the host".into()));
        }
        let known = HostAccess { secret, controller_secret, tls_key, rights: host.rights() };
        if access.hosts.insert(host.nqn.clone(), known).is_some() {
            return Err(named("appears twice".into()));
        }
    }
    Ok(access)
}

/// What is wrong, and in which line.
pub fn place_of(error: &toml::de::Error, text: &str) -> String {
    let line = error.span().map(|span| text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1);
    match line {
        Some(line) => format!("line {line}: {}", error.message()),
        None => error.message().to_owned(),
    }
}
