//! Versioned namespaces: every version of every key, found by hash, two bytes of memory a key.
//!
//! Lives here:       the page buffer, placement, sealed segments and their tables, versions, snapshots, retention.
//! Lives elsewhere:  blocks, the commit ring, reading and programming (`kaml-device`).
//! Implements:       paper:Muninn 3-6; docs/versioned.md.
//!
//! Nothing here reads, writes, waits, or reads the clock. A search names pages, the caller reads them and hands back
//! what it read; a sealed segment is an image, its table in its last pages, that the caller programs where it likes.
//!
//! | module      | room                                                        |
//! |-------------|-------------------------------------------------------------|
//! | `hash`      | all that is hashed from keys                                |
//! | `record`    | a version's bytes                                           |
//! | `buffer`    | the page buffer: rows of versions that are not sealed yet   |
//! | `placement` | which page each record of a segment goes to                 |
//! | `retrieval` | the table that stores this choice                                     |
//! | `seal`      | a row's versions to a segment                               |
//! | `packed`    | columns of bits, one bit for each segment                   |
//! | `retrieval_columns` | 64 segments' retrieval tables as columns            |
//! | `bloom`     | the paper's own index, as a baseline                        |
//! | `group`     | 64 segments that are searched at once                       |
//! | `row`       | a chain of groups, and what will be in the next segment     |
//! | `format`    | a sealed table as bytes                                     |
//! | `mend`      | such a table from the records, where it is damaged          |
//! | `columns`   | the whole index                                             |
//! | `search`    | a key's versions, newest first                              |
//! | `timeline`  | user versions, snapshots, rolling back                      |
//! | `versions`  | the namespace: what is put, deleted, rolled back            |
//! | `reads`     | get as of, undo, list, while it changes                     |
//! | `steps`     | history, diff, old versions, a read at a time               |
//! | `copy`      | all versions of a row, for a backup                         |
//! | `retention` | which old versions are kept                                 |
//! | `merge`     | giving the space of the others back                         |

mod bloom;
mod buffer;
mod columns;
mod copy;
mod error;
mod format;
mod group;
mod hash;
mod mend;
mod merge;
mod packed;
mod parameters;
mod placement;
mod reads;
mod record;
mod retention;
mod retrieval;
mod retrieval_columns;
mod row;
mod seal;
mod search;
mod steps;
mod timeline;
mod versions;

pub use bloom::{BLOOM_HASHES_MAX, BloomOptions, BloomParameters};
pub use columns::{Columns, MemoryUse, SegmentInfo};
pub use copy::copy_row;
pub use error::Error;
pub use format::SegmentTable;
pub use group::{SEGMENTS_MAX, SegmentAt};
pub use kaml_index::Key;
pub use merge::{Dropped, LargeValue, MergePlan, MergeScope, Merged, merge, plan_merge};
pub use parameters::{Index, Parameters};
pub use reads::{At, Record, Source, exists, get, get_seen, is_whole, list, newest, undone, verify, view_of};
pub use record::{HEADER_BYTES, Kind, Version, records};
pub use retention::Retention;
pub use retrieval_columns::ValueShape;
pub use seal::Sealed;
pub use search::{Candidate, Place, Search};
pub use steps::{Diff, Difference, History, Lookup, Past, Steps, history};
pub use timeline::{Command, Snapshot, Timeline, View};
pub use versions::{Stamp, Versions};
