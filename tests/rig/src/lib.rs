//! Control planes and nodes in virtual machines, for tests and demonstrations.
//!
//! In reading order: [`setup`] (what the machine must have), [`cache`] (what takes long is made once), [`parts`]
//! (upstream programs), [`guest_image`] (what a machine boots from), [`qemu`], [`disk`] and [`guest`] (a machine).
//!
//! Deliberately absent: an async runtime, a Kubernetes client (kubectl is one of the parts).

mod agent;
pub mod cache;
pub mod control_plane;
pub mod disk;
mod error;
pub mod guest;
pub mod guest_image;
pub mod image;
mod network;
pub mod node;
pub mod parts;
mod pki;
mod progress;
pub mod qemu;
mod qmp;
pub mod run;
mod scope;
pub mod setup;

pub use agent::Said;
pub use error::{Error, Result};
pub use progress::{begin, say};

/// Ends a rig that some program left running, and everything it started. Logs stay.
pub fn down(name: &str) -> Result<()> {
    scope::Scope::attach(name)?.end()
}
