//! One process at a time, and nothing written by any other.
//!
//! In reading order: `lease` (who holds it, and until when), `guarded` (a client that asks before it writes).
//!
//! Deliberately absent: what the process does while it holds the lease, and what it is called.

mod guarded;
mod lease;

pub use guarded::client;
pub use lease::{Lease, Lost, Validity};
