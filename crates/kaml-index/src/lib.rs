//! The exact indexes: key → where its record lies in flash. `hash` takes any keys, `dense` numbers below a limit.
//!
//! Lives here:       keys, length codes, the concurrent tables, their growth, listing, snapshots.
//! Lives elsewhere:  what an address means (`kaml-device`), where snapshots are stored (`kaml-device`).
//! Implements:       paper:KAML IV.C (mapping tables); docs/ARCHITECTURE.md "The index".
//!
//! Keys are *exact*: a key's bits are stored in full, most of them as its place (quotienting), so neither a Put nor a
//! Delete nor garbage collection ever reads flash to learn whose slot it found. One writer changes the table; any number
//! of readers probe it on their own threads without locks.
//!
//! | module     | room                                                                    |
//! |------------|-------------------------------------------------------------------------|
//! | `mixed`    | keys to 64 evenly spread bits and back                                  |
//! | `shape`    | a segment's header; mixed bits to bucket and remainder, and back        |
//! | `bucket`   | the bits of a bucket                                                    |
//! | `arena`    | memory, and all unsafe code                                             |
//! | `table`    | reading                                                                 |
//! | `writer`   | changing entries                                                        |
//! | `growth`   | changing segments                                                       |
//! | `outside`  | keys that were chosen to collide                                        |
//! | `snapshot` | images of segments                                                      |
//! | `probe`    | one key in one image                                                    |
//! | `hash`     | the public types of the hash index, made of the rooms above             |
//! | `dense`    | the array of a dense index                                              |
//! | `image`    | images of its segments                                                  |
//! | `index`    | either kind                                                             |
//! | `measure`  | what it costs                                                           |

mod arena;
mod bucket;
mod dense;
mod growth;
mod hash;
mod image;
mod index;
mod key;
mod len_code;
mod measure;
mod mixed;
mod outside;
mod probe;
mod shape;
mod snapshot;
mod table;
mod writer;

pub use arena::NoAddressSpace;
pub use dense::{DenseLayout, DenseReader, DenseWriter};
pub use hash::{HashLayout, HashReader, HashWriter};
pub use index::{Cursor, IndexLayout, IndexReader, IndexWriter, Slot};
pub use key::{FullKey, KEY_BYTES_MAX, KeptKey, Key, KeyBuf, KeyError, KeyKind, KeyRef};
pub use len_code::LenCode;
pub use measure::{IndexFigures, measure};
pub use probe::ImageReader;
pub use snapshot::{SnapshotCursor, SnapshotError};
