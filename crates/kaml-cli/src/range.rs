//! Ranges of keys on the command line.
//!
//! Lives here:       the flags --prefix, --from and --to, and the range that they mean.
//! Lives elsewhere:  keys (`keys`), the commands that take ranges (`commands`).
//! May be called by: `commands`.

use crate::failure::Failure;
use crate::keys;
use clap::Args;
use kaml::{KeyKind, NamespaceInfo};
use std::ops::Bound;

/// A range of keys.
pub type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Which keys, of an ordered namespace.
#[derive(Args)]
pub struct RangeArguments {
    /// Only keys that begin so
    #[arg(long, conflicts_with_all = ["from", "to"])]
    prefix: Option<String>,
    /// Only this key and those after it
    #[arg(long)]
    from: Option<String>,
    /// Only keys before this one
    #[arg(long)]
    to: Option<String>,
}

impl RangeArguments {
    /// Whether there is any bound.
    pub fn is_given(&self) -> bool {
        self.prefix.is_some() || self.from.is_some() || self.to.is_some()
    }

    /// The keys that are wanted.
    pub fn bounds(&self) -> Result<Bounds, Failure> {
        if let Some(prefix) = &self.prefix {
            let prefix = bytes(prefix)?;
            let kept = prefix.len() - prefix.iter().rev().take_while(|byte| **byte == u8::MAX).count();
            let mut end = prefix[..kept].to_vec();
            let end = end.last_mut().map(|last| *last += 1).map(|()| end);
            return Ok((Bound::Included(prefix), end.map_or(Bound::Unbounded, Bound::Excluded)));
        }
        let bound = |text: &Option<String>| text.as_deref().map(bytes).transpose();
        let (from, to) = (bound(&self.from)?, bound(&self.to)?);
        Ok((from.map_or(Bound::Unbounded, Bound::Included), to.map_or(Bound::Unbounded, Bound::Excluded)))
    }
}

/// Refuses a namespace whose keys have no order; `flags` are those that need one.
pub fn check_order(namespace: &NamespaceInfo, flags: &str) -> Result<(), Failure> {
    if namespace.keys() == KeyKind::Ordered {
        return Ok(());
    }
    let what = format!("its keys have no order: {flags} need a namespace made with --keys ordered");
    Err(Failure::Usage(format!("namespace `{}`: {what}", namespace.name)))
}

/// A bound on the command line: text, or 0x and hexadecimal digits.
fn bytes(text: &str) -> Result<Vec<u8>, Failure> {
    match text.strip_prefix("0x").map(keys::parse_hex) {
        Some(Ok(bytes)) if !bytes.is_empty() => Ok(bytes),
        _ => Ok(text.as_bytes().to_vec()),
    }
}

/// The same range, borrowed.
pub fn as_slices((lower, upper): &Bounds) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice))
}
