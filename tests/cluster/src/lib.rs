//! Stowage on real parts: what the tests of this tier, the demo and the
//! benchmarks share.
//!
//! In reading order: `api` (asking the API server, waiting for what it says),
//! `tell` (what a person reads meanwhile), `site` (a cluster with Stowage on it),
//! `fleet` (nodes without machines, for questions about the control plane alone),
//! `plane` (a control plane without machines), `main_job` (the whole story, step by step, with everything it
//! asserts).

pub mod api;
pub mod fleet;
pub mod main_job;
pub mod plane;
pub mod site;
pub mod tell;
