//! What replaces an encrypted connection in a build without TLS: there is none.
//!
//! Lives here:       a type without values.
//! Lives elsewhere:  the type with values (`channel.rs`).

use super::TlsError;
use super::derive::Psk;
use std::io::IoSlice;

/// See `channel.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "made by channels only")]
pub(crate) enum Decrypted {
    Bytes(usize),
    Nothing,
    Closed,
}

/// See the module.
pub(crate) enum Channel {}

impl Channel {
    pub(crate) fn client(_: Psk) -> Result<Channel, TlsError> {
        Err(TlsError::NotBuilt)
    }

    pub(crate) fn server(_: Psk, _: &[u8]) -> Result<Channel, TlsError> {
        Err(TlsError::NotBuilt)
    }

    pub(crate) fn is_open(&self) -> bool {
        match *self {}
    }

    pub(crate) fn handshake(&mut self) -> Result<(), TlsError> {
        match *self {}
    }

    pub(crate) fn suite(&self) -> &'static str {
        match *self {}
    }

    pub(crate) fn space(&mut self) -> &mut [u8] {
        match *self {}
    }

    pub(crate) fn received(&mut self, _: usize) {
        match *self {}
    }

    pub(crate) fn has_unread(&self) -> bool {
        match *self {}
    }

    pub(crate) fn decrypt(&mut self, _: &mut [u8]) -> Result<Decrypted, TlsError> {
        match *self {}
    }

    pub(crate) fn encrypt(&mut self, _: &[IoSlice<'_>]) -> Result<usize, TlsError> {
        match *self {}
    }

    pub(crate) fn unsent(&self) -> &[u8] {
        match *self {}
    }

    pub(crate) fn sent(&mut self, _: usize) {
        match *self {}
    }

    pub(crate) fn rest(&mut self) {
        match *self {}
    }
}
