//! The CSI driver of Stowage. It has two halves that meet only in objects of the
//! API server: `node` runs beside `lvmd` on every node, `controller` once per cluster.
//!
//! In reading order: `csi` and `identity` (what both serve), `in_flight` (one call per volume), `hands` (how a node
//! reaches lvmd), `node`, `controller`.
//!
//! Deliberately absent: anything that touches a device, a mount or a path: lvmd does.

pub mod csi;

pub mod identity;

pub mod in_flight;

pub mod hands;

pub mod node;

pub mod controller;
