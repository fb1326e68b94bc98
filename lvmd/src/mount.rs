//! Everything that mounts, and what is on what it mounts.

pub mod attach;
pub mod filesystem;
pub mod options;
pub mod path;
pub mod publish;
pub mod stage;
pub mod stats;
pub mod superblock;
pub mod table;
