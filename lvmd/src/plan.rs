//! What is to be done: pure functions from what is wanted and what was seen to steps. No I/O, no clock.
//!
//! `wanted` reads the NodeStorage's spec, `devices` decides for each device which class may have it and why not,
//! `groups` makes steps of that, `say` puts it into the words of the status, `volumes` decides about one volume.

pub mod devices;
pub mod groups;
pub mod say;
pub mod volumes;
pub mod wanted;
