//! Comparing a target with its source.
//!
//! Lives here:       records of the source that the target has not or has otherwise, and records that only the target has.
//! Lives elsewhere:  applying changes meanwhile (`apply`).

use super::apply::{Follower, Touched};
use super::{Stop, of_source, of_target};
use crate::failure::Failure;
use crate::keys;
use crate::place::Place;
use kaml::{Expiry, KeyBuf, NamespaceId};
use std::time::SystemTime;

/// Records that are compared at a time.
const RECORDS: usize = 2000;

impl Follower<'_> {
    /// Compares every record, while changes are applied; what was found, in words.
    ///
    /// # Errors
    /// A record differs.
    pub fn verify(&mut self) -> Result<String, Stop> {
        let mut count = 0u64;
        for source in self.target.spaces.keys().copied().collect::<Vec<_>>() {
            count += self.verify_source(source)?;
            self.verify_target(source)?;
        }
        Ok(format!("{count} records are the same as on the source"))
    }

    fn touched_meanwhile(&mut self) -> Result<Touched, Stop> {
        let until = self.source.position().map_err(of_source)?;
        self.catch_up(&until)?;
        Ok(self.touched.take().map(|(_, touched)| touched).unwrap_or_default())
    }

    fn target_number(&self, source: NamespaceId) -> Option<NamespaceId> {
        self.target.spaces.get(&source).map(|followed| followed.target)
    }

    fn verify_source(&mut self, source: NamespaceId) -> Result<u64, Stop> {
        let (mut after, mut count) = (None::<KeyBuf>, 0);
        loop {
            self.touched = Some((source, Touched::default()));
            let (records, has_more) = self.source.timed_records(source, after.as_ref(), RECORDS).map_err(of_source)?;
            let touched = self.touched_meanwhile()?;
            let Some(target) = self.target_number(source) else { return Ok(count) };
            after = records.last().map(|(key, ..)| key.clone());
            for (key, value, expires) in records {
                count += 1;
                if touched.has(&key) || self.is_same(target, &key, &value, expires)? {
                    continue;
                }
                return Err(self.differs(target, &key));
            }
            if !has_more || after.is_none() {
                return Ok(count);
            }
        }
    }

    fn is_same(
        &self,
        target: NamespaceId,
        key: &KeyBuf,
        value: &[u8],
        expires: Option<SystemTime>,
    ) -> Result<bool, Stop> {
        let device = self.target.device();
        let found = device.get(target, key).map_err(of_target)?;
        if found.is_none() && expires.is_some_and(|time| time <= SystemTime::now()) {
            return Ok(true);
        }
        let expected = expires.map_or(Expiry::Never, Expiry::At);
        Ok(found.as_deref() == Some(value) && device.expiry(target, key).map_err(of_target)? == Some(expected))
    }

    fn verify_target(&mut self, source: NamespaceId) -> Result<(), Stop> {
        let mut after = None::<KeyBuf>;
        loop {
            let Some(target) = self.target_number(source) else { return Ok(()) };
            self.touched = Some((source, Touched::default()));
            let found = Place::list(self.target.device(), target, after.as_ref(), RECORDS).map_err(of_target)?;
            if found.is_empty() {
                self.touched = None;
                return Ok(());
            }
            let exist = self.source.exist_many(source, &found).map_err(of_source)?;
            let touched = self.touched_meanwhile()?;
            for (key, exists) in found.iter().zip(exist) {
                // It may have expired on the source alone, whose clock is another one.
                let expires = || self.target.device().expiry(target, key).map_err(of_target);
                if !exists && !touched.has(key) && expires()? == Some(Expiry::Never) {
                    return Err(self.differs(target, key));
                }
            }
            after = found.last().cloned();
        }
    }

    fn differs(&self, target: NamespaceId, key: &KeyBuf) -> Stop {
        let info = self.target.device().namespaces().into_iter().find(|info| info.id == target);
        let (name, shown) = match info {
            Some(info) => (info.name.clone(), keys::show(key, info.keys())),
            None => (target.to_string(), key.to_string()),
        };
        let what = "is not as on the source; follow with a new target, and report this as a fault";
        Stop::Fatal(Failure::Failed(format!("namespace {name:?}: key `{shown}` {what}")))
    }
}
