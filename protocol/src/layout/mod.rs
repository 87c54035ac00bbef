//! Layout of what the server exposes (design.md 3). Everything is little-endian, in 8-byte words.

pub mod addr;
pub mod catalog;
pub mod cell;
pub mod entry;
pub mod line;
pub mod size_class;
pub mod slot;
pub mod state;
