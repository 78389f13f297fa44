//! A session store: data of users that are logged in, which ends after a while of silence. It can be run again and again.
//!
//! cargo run -p kaml --example sessions
//!
//! The device removes what has expired by itself, so there is no sweep and no index of times.

use kaml::{Batch, CreateOptions, Device, Error, Expiry, Namespace, NamespaceOptions};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// Sessions on a device. Any number of threads can call it.
pub(crate) struct Sessions {
    sessions: Namespace,
    silence: Duration,
}

impl Sessions {
    pub(crate) fn open(device: &Device, silence: Duration) -> Result<Sessions, Error> {
        let sessions = device.ensure_namespace("sessions", &NamespaceOptions::default().with_ttl(silence))?;
        Ok(Sessions { sessions, silence })
    }

    /// Begins a session. Returns its token, which nobody can guess.
    pub(crate) fn begin(&self, data: &str) -> Result<[u8; 16], Box<dyn std::error::Error>> {
        let mut token = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut token)?;
        self.sessions.put(&token, data.as_bytes())?;
        Ok(token)
    }

    /// The data of a session, whose time begins again; nothing if it has ended.
    pub(crate) fn touch(&self, token: &[u8; 16]) -> Result<Option<String>, Error> {
        let Some(data) = self.sessions.get(token)? else { return Ok(None) };
        let mut batch = Batch::new();
        // A session that ended since it was read does not begin again.
        batch.put_if_present(self.sessions.id(), token, &data).expires(Expiry::After(self.silence));
        match self.sessions.device().write(&batch) {
            Ok(()) => Ok(Some(String::from_utf8_lossy(&data).into_owned())),
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ends a session; nothing happens if it has ended.
    pub(crate) fn end(&self, token: &[u8; 16]) -> Result<(), Error> {
        self.sessions.delete(token)
    }
}

/// What `main` runs, on a device in this directory.
pub(crate) fn demo(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open_or_create(directory.join("sessions.kaml"), &CreateOptions::new(64 << 20))?;
    let sessions = Sessions::open(&device, Duration::from_secs(1800))?;
    let ada = sessions.begin("ada")?;
    println!("{}", sessions.touch(&ada)?.unwrap_or_default());
    sessions.end(&ada)?;
    assert_eq!(sessions.touch(&ada)?, None);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    demo(Path::new("."))
}
