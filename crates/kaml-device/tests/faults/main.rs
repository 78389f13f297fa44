//! The firmware on flash that fails.

mod blocks;
mod indexes;
mod rig;
mod ring;
mod space;
