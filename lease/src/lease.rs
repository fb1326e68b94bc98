//! A Lease of coordination.k8s.io that one process holds at a time.
//!
//! No clock of another machine is believed. A Lease is free when it has not been renewed for its duration as seen from
//! here, and it is held for less than that duration after the moment at which the last renewal was sent.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease as LeaseObject, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::time::Instant;

/// The numbers of client-go's leader election, doubled: others wait 30 s without a renewal before they take the Lease, the
/// holder stops 10 s before that. An API server that answers after 10 s was seen on a busy machine with two cores, and
/// a program that gives up then only makes it busier.
const DURATION: Duration = Duration::from_secs(30);
const HELD_FOR: Duration = Duration::from_secs(20);
const RENEW_EACH: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_secs(1);

/// Until when this process may write. Cloned freely; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Validity(Arc<Mutex<Option<Instant>>>);

impl Validity {
    /// Whether the Lease is held at `now`. A process that was frozen finds its time over at once when it thaws,
    /// whatever its own timers still believe.
    pub fn holds_at(&self, now: Instant) -> bool {
        self.until().is_some_and(|until| now < until)
    }

    fn until(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For tests of what is done while it is held, and after.
    pub fn until_then(until: Instant) -> Self {
        Self(Arc::new(Mutex::new(Some(until))))
    }

    fn set(&self, until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the lease is not held (any more): another process may be at work")]
pub struct Lost;

pub struct Lease {
    name: String,
    leases: Api<LeaseObject>,
    identity: String,
    clock: fn() -> Timestamp,
    validity: Validity,
}

/// What the Lease is to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Free,
    Ours,
    Theirs,
}

/// The last state of the Lease, and since when it has been so, as seen from here.
#[derive(Debug, Default)]
struct Observed(Option<(Option<String>, Instant)>);

impl Observed {
    fn unchanged_for(&mut self, version: Option<&String>, now: Instant) -> Duration {
        match &self.0 {
            Some((known, since)) if known.as_ref() == version => now.saturating_duration_since(*since),
            Some(_) | None => {
                self.0 = Some((version.cloned(), now));
                Duration::ZERO
            }
        }
    }
}

impl Lease {
    /// `client` must be able to write without the Lease.
    pub fn new(client: &Client, namespace: &str, name: &str, identity: String, clock: fn() -> Timestamp) -> Self {
        let leases = Api::namespaced(client.clone(), namespace);
        Self { name: name.to_owned(), leases, identity, clock, validity: Validity::default() }
    }

    pub fn validity(&self) -> Validity {
        self.validity.clone()
    }

    /// Waits until the Lease is ours.
    pub async fn take(&self) {
        let mut observed = Observed::default();
        loop {
            match self.attempt(&mut observed, HELD_FOR).await {
                Ok(Standing::Ours) => {
                    tracing::info!(lease = self.name, identity = self.identity, "took the lease");
                    return;
                }
                Ok(Standing::Free | Standing::Theirs) => {}
                Err(error) => tracing::warn!(lease = self.name, error = runtime::chain(&error), "taking the lease"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Renews the Lease, and ends when that has failed for too long or another process has taken it.
    pub async fn keep(&self) -> Lost {
        tokio::time::sleep(RENEW_EACH).await;
        while let Some(left) = self.validity.until().and_then(|until| until.checked_duration_since(Instant::now())) {
            match self.attempt(&mut Observed::default(), left).await {
                Ok(Standing::Ours) => tokio::time::sleep(RENEW_EACH).await,
                Ok(Standing::Theirs) => break,
                Ok(Standing::Free) => tokio::time::sleep(RETRY.min(left)).await,
                Err(error) => {
                    tracing::warn!(lease = self.name, error = runtime::chain(&error), "renewing the lease");
                    tokio::time::sleep(RETRY.min(left)).await;
                }
            }
        }
        self.validity.set(None);
        Lost
    }

    /// Lets the next one in at once. Nothing may be written after it.
    pub async fn release(&self) {
        self.validity.set(None);
        let release = async {
            let Some(mut lease) = self.leases.get_opt(&self.name).await? else { return Ok(()) };
            if standing(lease.spec.as_ref(), &self.identity, Duration::ZERO) == Standing::Ours {
                lease.spec.get_or_insert_default().holder_identity = None;
                self.leases.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match tokio::time::timeout(RENEW_EACH, release).await {
            Ok(Ok(())) => tracing::info!(lease = self.name, "released the lease"),
            Ok(Err(error)) => tracing::warn!(lease = self.name, error = runtime::chain(&error), "releasing the lease"),
            Err(_) => tracing::warn!(lease = self.name, "releasing the lease: no answer"),
        }
    }

    /// Takes or renews the Lease if it may be. `Free` means that another process was quicker.
    async fn attempt(&self, observed: &mut Observed, limit: Duration) -> Result<Standing, kube::Error> {
        // The duration begins when the request is sent: the API server can not have stored it before.
        let sent = Instant::now();
        let outcome = match tokio::time::timeout(limit, self.write(observed, sent)).await {
            Ok(outcome) => outcome?,
            Err(_) => Standing::Free,
        };
        match outcome {
            Standing::Ours => self.validity.set(Some(sent + HELD_FOR)),
            Standing::Free | Standing::Theirs => {}
        }
        Ok(outcome)
    }

    async fn write(&self, observed: &mut Observed, now: Instant) -> Result<Standing, kube::Error> {
        let time = MicroTime((self.clock)());
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let mut spec = LeaseSpec { lease_transitions: Some(0), ..LeaseSpec::default() };
            self.fill(&mut spec, time, Standing::Free);
            let lease = LeaseObject { metadata, spec: Some(spec) };
            return won(self.leases.create(&PostParams::default(), &lease).await);
        };
        let unchanged = observed.unchanged_for(lease.metadata.resource_version.as_ref(), now);
        let standing = standing(lease.spec.as_ref(), &self.identity, unchanged);
        if standing == Standing::Theirs {
            return Ok(Standing::Theirs);
        }
        self.fill(lease.spec.get_or_insert_default(), time, standing);
        // With the resourceVersion that was read: of two that try at once, one fails.
        won(self.leases.replace(&self.name, &PostParams::default(), &lease).await)
    }

    fn fill(&self, spec: &mut LeaseSpec, time: MicroTime, before: Standing) {
        if before == Standing::Free {
            spec.holder_identity = Some(self.identity.clone());
            spec.acquire_time = Some(time.clone());
            spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |count| count.saturating_add(1)));
        }
        spec.lease_duration_seconds = i32::try_from(DURATION.as_secs()).ok();
        spec.renew_time = Some(time);
    }
}

fn won(answer: Result<LeaseObject, kube::Error>) -> Result<Standing, kube::Error> {
    match answer {
        Ok(_) => Ok(Standing::Ours),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Standing::Free),
        Err(error) => Err(error),
    }
}

/// `unchanged`: for how long this process has seen the Lease as it is.
fn standing(spec: Option<&LeaseSpec>, identity: &str, unchanged: Duration) -> Standing {
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
    let duration = seconds.map_or(DURATION, Duration::from_secs);
    if holder == identity {
        Standing::Ours
    } else if holder.is_empty() || unchanged > duration {
        Standing::Free
    } else {
        Standing::Theirs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_free_only_when_it_has_not_moved_for_its_duration() {
        for (holder, unchanged, expected) in [
            ("me", 0, Standing::Ours),
            ("", 0, Standing::Free),
            ("other", 0, Standing::Theirs),
            ("other", 15, Standing::Theirs),
            ("other", 16, Standing::Free),
        ] {
            let spec = LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: Some(15),
                ..LeaseSpec::default()
            };
            assert_eq!(standing(Some(&spec), "me", Duration::from_secs(unchanged)), expected, "{holder} {unchanged}");
        }
        assert_eq!(standing(None, "me", Duration::ZERO), Standing::Free);
    }

    #[test]
    fn each_renewal_starts_the_wait_anew() {
        let mut observed = Observed::default();
        let start = Instant::now();
        let version = |text: &str| text.to_owned();
        assert_eq!(observed.unchanged_for(Some(&version("1")), start), Duration::ZERO);
        let later = start + Duration::from_secs(14);
        assert_eq!(observed.unchanged_for(Some(&version("1")), later), Duration::from_secs(14));
        assert_eq!(observed.unchanged_for(Some(&version("2")), later), Duration::ZERO);
    }

    #[test]
    fn a_thawed_holder_finds_its_time_over() {
        let validity = Validity::default();
        let start = Instant::now();
        assert!(!validity.holds_at(start));
        validity.set(Some(start + HELD_FOR));
        assert!(validity.holds_at(start + HELD_FOR - Duration::from_millis(1)));
        assert!(!validity.holds_at(start + HELD_FOR));
    }
}
