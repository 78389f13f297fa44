//! The C API: `libkaml.so`, `libkaml.a` and `include/kaml.h`.
//!
//! Lives here:       the functions of `kaml.h`, handles, status codes, and the messages of what went wrong.
//! Lives elsewhere:  everything they do (`kaml`).
//! Implements:       docs/c-api.md; paper:KAML Tables I and II as C knows them.
//!
//! The header is generated from this source; a test compares the two.
//!
//! Rules that every function keeps:
//! - it is one call of [`failure::call`], which turns errors into a status and a message, and panics into
//!   `KAML_INTERNAL`;
//! - it reads and writes what pointers lead to only through [`arguments`], where null, alignment and lengths are
//!   checked;
//! - handles are numbers that are looked up ([`handle`]); they are never followed.
//!
//! `unsafe` is allowed in this crate because a C function is unsafe by nature; the contract of all of them is one, that
//! of [`arguments`], which the header gives its callers in its first lines.

#![allow(unsafe_code, reason = "C calls in with raw pointers; see above")]
#![allow(non_camel_case_types, reason = "types are called in Rust what they are called in C")]
#![allow(clippy::missing_safety_doc, reason = "the contract is the same for all: that of `arguments`")]

#[cfg(panic = "abort")]
compile_error!("panics are caught at the boundary, which takes panic = \"unwind\"");

pub mod arguments;
pub mod backups;
pub mod changes;
pub mod device;
pub mod failure;
mod handle;
mod histories;
pub mod inspect;
pub mod many;
pub mod options;
mod owned;
pub mod ranges;
pub mod records;
pub mod snapshots;
pub mod status;
pub mod store;
pub mod txn;
pub mod versions;
pub mod writes;
