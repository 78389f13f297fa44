//! Notes that can be read as they were: every change is kept, moments have names, and everything can return to one. It can be run again and again.
//!
//! cargo run -p kaml --example notes

use kaml::{At, CreateOptions, Device, Error, Key, Namespace, NamespaceOptions, VersionOptions};
use std::path::Path;

/// Notes on a device. Any number of threads can call it. A title has at most 16 bytes.
pub(crate) struct Notes {
    device: Device,
    notes: Namespace,
    /// Name of a moment to the number of its snapshot.
    moments: Namespace,
}

impl Notes {
    pub(crate) fn open(device: Device) -> Result<Notes, Error> {
        let notes = device.ensure_namespace("notes", &VersionOptions::default().into())?;
        let moments = device.ensure_namespace("moments", &NamespaceOptions::default())?;
        Ok(Notes { device, notes, moments })
    }

    pub(crate) fn write(&self, title: &str, text: &str) -> Result<(), Error> {
        self.notes.put(title, text.as_bytes())
    }

    /// A note as it is, or as it was at a moment.
    pub(crate) fn read(&self, title: &str, moment: Option<&str>) -> Result<Option<String>, Error> {
        let at = match moment {
            None => At::Latest,
            Some(name) => match self.snapshot(name)? {
                Some(number) => At::Snapshot(number),
                None => return Ok(None),
            },
        };
        let found = self.device.get_version(self.notes.id(), Key::new(title.as_bytes())?, at)?;
        Ok(found.map(|record| String::from_utf8_lossy(&record.value).into_owned()))
    }

    /// Gives this moment a name.
    pub(crate) fn mark(&self, name: &str) -> Result<(), Error> {
        let number = self.device.snapshot(self.notes.id())?;
        self.moments.put(name, &number.to_be_bytes())
    }

    /// Makes the last change of a note undone.
    pub(crate) fn undo(&self, title: &str) -> Result<bool, Error> {
        self.device.undo(self.notes.id(), Key::new(title.as_bytes())?, 1)
    }

    /// Returns all notes to a moment. What was before is a moment, too, with this name. Returns false if there is no such moment.
    pub(crate) fn return_to(&self, moment: &str, before: &str) -> Result<bool, Error> {
        let Some(number) = self.snapshot(moment)? else { return Ok(false) };
        let old = self.device.roll_back(self.notes.id(), number)?;
        self.moments.put(before, &old.to_be_bytes())?;
        Ok(true)
    }

    /// How many versions of a note there are, at most 100.
    pub(crate) fn versions(&self, title: &str) -> Result<usize, Error> {
        Ok(self.device.history(self.notes.id(), Key::new(title.as_bytes())?, 100)?.len())
    }

    fn snapshot(&self, name: &str) -> Result<Option<u32>, Error> {
        Ok(self.moments.get(name)?.and_then(|value| value.try_into().ok()).map(u32::from_be_bytes))
    }
}

/// What `main` runs, on a device in this directory.
pub(crate) fn demo(directory: &Path) -> Result<(), Error> {
    let notes = Notes::open(Device::open_or_create(directory.join("notes.kaml"), &CreateOptions::new(64 << 20))?)?;
    notes.write("shopping", "tea")?;
    notes.mark("monday")?;
    notes.write("shopping", "tea, cups")?;
    notes.write("shopping", "tea, cups, cats")?;
    notes.undo("shopping")?;
    println!("now: {}", notes.read("shopping", None)?.unwrap_or_default());
    println!("on monday: {}", notes.read("shopping", Some("monday"))?.unwrap_or_default());
    notes.return_to("monday", "tuesday")?;
    println!(
        "returned: {}, after {} versions",
        notes.read("shopping", None)?.unwrap_or_default(),
        notes.versions("shopping")?
    );
    Ok(())
}

fn main() -> Result<(), Error> {
    demo(Path::new("."))
}
