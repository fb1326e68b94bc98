//! Control planes and nodes in virtual machines, for tests and demonstrations.
//!
//! ```no_run
//! use rig::{
//!     control_plane::{ControlPlane, Options},
//!     disk::{Disk, GIB},
//!     node::NodeOptions,
//! };
//!
//! let node = NodeOptions { disks: vec![Disk::blank("data", 4 * GIB)], ..NodeOptions::default() };
//! let (cluster, nodes) = ControlPlane::start_with_nodes("example", &Options::default(), &[("node1", node)])?;
//! println!("{}", cluster.kubectl(["get", "nodes"])?);
//! nodes[0].power_cut()?;
//! # Ok::<_, rig::Error>(())
//! ```
//!
//! In reading order: [`setup`] (what the host must have), [`run`] (starts programs), [`cache`] (what takes long is made
//! once), `scope` (what is started is ended), [`parts`] (upstream programs), [`guest_image`] (what a machine boots
//! from), [`disk`], [`qemu`] and [`guest`] (a machine), [`image`] (container images), `network`, `pki`,
//! [`control_plane`], [`node`], `saved` (whole clusters as files).
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
mod saved;
mod scope;
pub mod setup;

pub use agent::Said;
pub use error::{Error, Result};
pub use progress::{begin, say};

/// Ends a rig that some program left running, and everything it started; no rig by this name is no error. Logs stay.
pub fn down(name: &str) -> Result<()> {
    scope::Scope::end_of(name)
}
