//! Doing what a workload says, and measuring it.

pub mod drive;
pub mod history;
pub mod measure;
pub mod pace;
pub mod phase;
pub mod series;
