//! The ordered index: keys of 1 byte to 1 KiB, in their order → where the record lies in flash. Exact, as the hash index.
//!
//! Lives here:       the concurrent B+-tree, cursors, bulk builds, checkpoint images.
//! Lives elsewhere:  length codes and slots (`kaml-index`), what an address means and where images are kept (`kaml-device`).
//! Implements:       paper:KAML IV.C (other index structures, "a tree").
//!
//! # Structure
//!
//! A B+-tree. Its nodes are blocks of 1 to 64 cache lines in one reserved range of memory; a node has as many lines as it needs, so it has on
//! average half a line to spare, where nodes of one size are a third empty. Leaves have up to 128 entries or 4 KiB, in the encoding that suits
//! their keys:
//!
//! | keys of a leaf | encoding | bytes of an entry, with a value of five |
//! |---|---|---|
//! | one length, differing in the last eight bytes | difference to the first, in as few bytes as the largest takes | 11 for 10 M random 64-bit keys |
//! | one length | what follows the common prefix | 37 for 10 M textual UUIDs |
//! | any | what follows the part shared with the key before, 16 keys to a group | 17 for paths of 60 bytes |
//!
//! The first two are arrays. In the third, a look-up searches the first keys of the groups by halves, then one group. Inner nodes have short
//! separators, the shortest that part two leaves, of which three bytes are next to the child. *Hints* in the first line of a node name the
//! few entries that a look-up reads.
//!
//! # One writer, optimistic readers
//!
//! Readers take no lock and write nothing. A node has a version, in an array apart from the nodes, and a reader that finds it changed starts
//! again (`versions` has the argument). So blocks are reused at once; there are no epochs, and a reader never holds memory back. All words that
//! readers and writer share are atomics, so a race is no undefined behaviour: what a late reader finds is checked before it is trusted, and no load
//! is out of bounds.
//!
//! Of a change, readers see all or nothing: an entry, or the pieces of a leaf that splits with what separates them.
//!
//! # Memory
//!
//! Blocks of one size share slabs of 64 KiB. Leaves with few entries merge, empty leaves go, and where many blocks of a size are free, the writer
//! moves the nodes of one slab elsewhere, a few with each change. Memory of empty slabs returns to the system.
//!
//! | module     | room                                                                    |
//! |------------|-------------------------------------------------------------------------|
//! | `key`      | limits and comparison of keys                                           |
//! | `arena`    | memory, and all unsafe code                                             |
//! | `blocks`   | which lines are in use                                                  |
//! | `versions` | how a reader notices changes                                            |
//! | `node`     | references, loads, decoded keys                                         |
//! | `hints`    | naming the entries among which a key is                                 |
//! | `leaf`     | the encodings of leaves                                                 |
//! | `decode`   | the entries of a leaf, all or a part of them                            |
//! | `inner`    | inner nodes                                                             |
//! | `tree`     | reading                                                                 |
//! | `writer`   | changing                                                                |
//! | `range`    | iterating                                                               |
//! | `build`    | building from sorted entries                                            |
//! | `image`    | checkpoint images                                                       |
//! | `measure`  | what it costs                                                           |
//! | `ordered`  | the public types, made of the rooms above                               |

mod arena;
mod blocks;
mod build;
mod decode;
mod hints;
mod image;
mod inner;
mod key;
mod leaf;
mod measure;
mod node;
mod ordered;
mod range;
mod tree;
mod versions;
mod writer;

pub use build::{BuildError, OrderedBuilder};
pub use image::{ImageCursor, ImageError, PART_BEGIN_BYTES, PART_BYTES, begins_after, place_of, slot_in_part};
pub use kaml_index::{LenCode, Slot};
pub use key::{KEY_BYTES_MAX, KeyError, check_key};
pub use measure::{MeasuredKeys, OrderedFigures, measure};
pub use ordered::{OrderedLayout, OrderedReader, OrderedWriter};
pub use range::Range;
