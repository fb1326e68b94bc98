//! What the host and the agent in the guest say to each other over a virtio-serial port.
//!
//! Deliberately absent: the agent itself, which is the binary of this crate.

pub mod frame;
