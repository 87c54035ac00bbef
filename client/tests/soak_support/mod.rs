//! What is known of the keys of a soak, and what it measures.

mod known;
mod times;

pub(crate) use known::{Known, PIECE_MIN_BYTES, value};
pub(crate) use times::{Kind, Times};
