//! Secrets of hosts and controllers in files.
//!
//! Lives here:       reading files that only their owner may read; the flags that name them for a remote device.
//! Lives elsewhere:  what a secret is (`kaml-nvme`), the file of all hosts (`commands::serve::hosts`).
//! May be called by: commands, `store`.

use crate::failure::Failure;
use clap::Args;
use kaml_nvme::auth::Secret;
use kaml_nvme::host::{Credentials, Error, HostKey, HostOptions};
use kaml_nvme::tls::{self, TlsKey};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of the longest file with a secret or with hosts.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Bits of a mode that let others than the owner in.
const OTHERS: u32 = 0o077;

/// How `kaml` appears to a served device.
#[derive(Args, Clone, Debug, Default)]
pub struct HostArguments {
    /// File with the secret of this host, as `nvme gen-dhchap-key` prints it, for a served device that requires authentication
    #[arg(long, value_name = "FILE")]
    dhchap_secret_file: Option<PathBuf>,
    /// File with the secret of the served device, which then has to prove that it is the right one
    #[arg(long, value_name = "FILE", requires = "dhchap_secret_file")]
    dhchap_ctrl_secret_file: Option<PathBuf>,
    /// File with the TLS key that this host shares with the served device, as `nvme gen-tls-key` prints it; connections are then encrypted
    #[arg(long, value_name = "FILE")]
    tls_key_file: Option<PathBuf>,
    /// Version of the identity that names the TLS key
    #[arg(long, value_name = "VERSION", requires = "tls_key_file", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    tls_identity: u8,
    /// Qualified name of this host for a served device [default: derived from the machine's identity]
    #[arg(long, value_name = "NQN")]
    host_nqn: Option<String>,
}

impl HostArguments {
    /// How to connect to a served device.
    pub fn options(&self) -> Result<HostOptions, Failure> {
        let mut options = HostOptions::default();
        if let Some(secret) = &self.dhchap_secret_file {
            let controller_secret = self.dhchap_ctrl_secret_file.as_deref().map(read_secret).transpose()?;
            options.credentials = Some(Credentials::new(read_secret(secret)?, controller_secret));
        }
        if let Some(file) = &self.tls_key_file {
            refuse_without_tls()?;
            options.tls = Some(HostKey { key: read_tls_key(file)?, version: self.tls_identity });
        }
        options.host = self.host_nqn.clone().unwrap_or(options.host);
        Ok(options)
    }

    /// An error of connecting as this host; its name is what an operator has to add to the hosts of the served device.
    pub fn named(&self, error: Error) -> String {
        match &error {
            Error::NotAuthenticated(_) | Error::NotSecured(_) => {
                let host = self.host_nqn.clone().unwrap_or_else(|| HostOptions::default().host);
                format!("{error} (this host is {host:?})")
            }
            _ => error.to_string(),
        }
    }
}

/// Reads a file with a secret.
pub fn read_secret(path: &Path) -> Result<Secret, Failure> {
    let text = read_private(path)?;
    text.trim().parse().map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
}

/// Reads a file with a TLS key.
pub fn read_tls_key(path: &Path) -> Result<TlsKey, Failure> {
    let text = read_private(path)?;
    text.trim().parse().map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
}

/// Refuses what needs TLS in a build without it.
pub fn refuse_without_tls() -> Result<(), Failure> {
    if tls::IS_BUILT { Ok(()) } else { Err(Failure::Usage(tls::TlsError::NotBuilt.to_string())) }
}

/// Reads a file that only its owner, this user or root, may read or write.
pub fn read_private(path: &Path) -> Result<String, Failure> {
    let failed = || Failure::io(path.display());
    let mut file = std::fs::File::open(path).map_err(failed())?;
    let found = file.metadata().map_err(failed())?;
    if !found.is_file() {
        return Err(Failure::Usage(format!("{}: is no file", path.display())));
    }
    if found.mode() & OTHERS != 0 {
        let mode = found.mode() & 0o777;
        return Err(Failure::Usage(format!(
            "{name}: has mode {mode:o}, so others than its owner can use the secrets in it; run chmod 600 {name}, and replace the secrets if \
             others may have read them",
            name = path.display()
        )));
    }
    let us = rustix::process::geteuid().as_raw();
    if found.uid() != us && found.uid() != 0 {
        let owner = found.uid();
        return Err(Failure::Usage(format!(
            "{}: belongs to user {owner}; it must belong to user {us} or root",
            path.display()
        )));
    }
    let mut text = String::new();
    file.by_ref().take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed())?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(Failure::Usage(format!("{}: is longer than {FILE_BYTES_MAX} bytes", path.display())));
    }
    Ok(text)
}
