//! The Rust programs of the guides, each compiled and run as a test. They leave their files in the directory of this package, where they
//! find them the next time.
//!
//! Lives here:       which pages have such programs.
//! Lives elsewhere:  their commands (`kaml-cli/tests/guides.rs`) and programs in other languages.

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/rust.md")]
struct Rust;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/transactions.md")]
struct Transactions;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/history.md")]
struct History;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/modelling.md")]
struct Modelling;
