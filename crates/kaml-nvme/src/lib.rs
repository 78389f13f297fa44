//! NVMe/TCP for KAML: a Key Value SSD that unmodified hosts attach, and a host of our own.
//!
//! Lives here:       the structures of the protocol (`wire`), the transport without sockets (`transport`), authentication (`auth`), encryption
//!                   (`tls`), the target (`target`), the host (`host`).
//! Lives elsewhere:  the device that is served (`kaml`).
//! Implements:       spec:NVMe-Base, spec:NVMe-KV, spec:NVMe-TCP; docs/nvme.md.

pub mod auth;
pub mod host;
pub mod target;
pub mod tls;
pub mod transport;
pub mod wire;
