//! One operator at a time: a Lease of coordination.k8s.io. Other holders' clocks are not trusted: a Lease has run out when
//! it has not changed for its duration by our own clock.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::time::Instant;

/// The numbers of client-go for controllers, doubled: a busy API server was seen to answer after ten seconds.
const DURATION: Duration = Duration::from_secs(30);
const GIVE_UP: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_secs(5);

/// A Lease that is to be held by one process.
pub struct Held {
    leases: Api<Lease>,
    name: String,
    identity: String,
    clock: fn() -> Timestamp,
}

/// What a look at the Lease says.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Free,
    Ours,
    Theirs,
}

impl Held {
    pub fn new(client: &Client, namespace: &str, name: &str, identity: String, clock: fn() -> Timestamp) -> Self {
        Self { leases: Api::namespaced(client.clone(), namespace), name: name.to_owned(), identity, clock }
    }

    /// Waits until the Lease is ours.
    pub async fn acquire(&self) {
        // What the other one wrote last, and when it was first seen.
        let mut seen: Option<(Option<String>, Instant)> = None;
        loop {
            match self.try_once(&mut seen).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(error = runtime::chain(&error), lease = self.name, "taking the lease"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Ends when the Lease could not be renewed in time: then no more may be done. That is sooner than anybody else
    /// may take it.
    pub async fn keep(&self) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < GIVE_UP {
            tokio::time::sleep(PAUSE).await;
            let mut never = None;
            match tokio::time::timeout(GIVE_UP.saturating_sub(renewed.elapsed()), self.try_once(&mut never)).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                // Another process changed it in between, or has it by now.
                Ok(Ok(false)) | Err(_) => {}
                Ok(Err(error)) => {
                    tracing::warn!(error = runtime::chain(&error), lease = self.name, "renewing the lease")
                }
            }
        }
    }

    /// Lets the next one in at once.
    pub async fn release(&self) {
        let Ok(Some(mut lease)) = self.leases.get_opt(&self.name).await else { return };
        if state(&lease, &self.identity, None) != State::Ours {
            return;
        }
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
        }
        if let Err(error) = self.leases.replace(&self.name, &PostParams::default(), &lease).await {
            tracing::warn!(error = runtime::chain(&error), lease = self.name, "letting the lease go");
        }
    }

    async fn try_once(&self, seen: &mut Option<(Option<String>, Instant)>) -> Result<bool, kube::Error> {
        let now = MicroTime((self.clock)());
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let spec = LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                lease_transitions: Some(0),
                ..LeaseSpec::default()
            };
            let lease = Lease { metadata, spec: Some(spec) };
            return won(self.leases.create(&PostParams::default(), &lease).await);
        };
        let version = lease.metadata.resource_version.clone();
        if seen.as_ref().is_none_or(|(known, _)| *known != version) {
            *seen = Some((version, Instant::now()));
        }
        let unchanged = seen.as_ref().map(|(_, since)| since.elapsed());
        let state = state(&lease, &self.identity, unchanged);
        let spec = lease.spec.get_or_insert_default();
        match state {
            State::Theirs => return Ok(false),
            State::Ours => {}
            State::Free => {
                spec.holder_identity = Some(self.identity.clone());
                spec.acquire_time = Some(now.clone());
                spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0) + 1);
            }
        }
        spec.lease_duration_seconds = i32::try_from(DURATION.as_secs()).ok();
        spec.renew_time = Some(now);
        // With the resourceVersion that was read: of two that try at once, one fails.
        won(self.leases.replace(&self.name, &PostParams::default(), &lease).await)
    }
}

fn won(answer: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

/// `unchanged`: for how long this process has seen the Lease as it is.
fn state(lease: &Lease, identity: &str, unchanged: Option<Duration>) -> State {
    let spec = lease.spec.as_ref();
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    if holder == identity {
        return State::Ours;
    }
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
    let duration = seconds.map_or(DURATION, Duration::from_secs);
    if holder.is_empty() || unchanged.is_some_and(|unchanged| unchanged > duration) {
        State::Free
    } else {
        State::Theirs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holder: &str) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        };
        Lease { spec: Some(spec), ..Lease::default() }
    }

    #[test]
    fn a_lease_is_taken_only_when_it_has_not_moved_for_its_duration() {
        for (holder, unchanged, expected) in [
            ("me", None, State::Ours),
            ("", None, State::Free),
            ("other", None, State::Theirs),
            ("other", Some(15), State::Theirs),
            ("other", Some(16), State::Free),
        ] {
            let unchanged = unchanged.map(Duration::from_secs);
            assert_eq!(state(&held_by(holder), "me", unchanged), expected, "{holder} {unchanged:?}");
        }
    }
}
