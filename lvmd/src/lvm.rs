//! LVM, as far as it is known here: its settings, its reports, its commands.

pub mod command;
pub mod config;
pub mod metadata;
pub mod report;
