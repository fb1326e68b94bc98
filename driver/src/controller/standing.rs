//! What a LogicalVolume that is there means for a call. Pure.

use crds::{
    condition::{self, kind, reason},
    logical_volume::{LogicalVolume, State},
    names,
    quantity::for_people,
};

use super::request::{Nodes, Wish};

/// Whether a LogicalVolume is what a wish of the same name asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is; it may not be ready yet.
    Fits,
    /// It is being removed, or is to be.
    Leaving,
    /// Somebody deleted it, without saying that its data may go.
    DeletedByHand,
    /// It is on a node that is not asked for (any more).
    Elsewhere,
    Differs(String),
}

pub fn compare(volume: &LogicalVolume, wish: &Wish) -> Standing {
    let spec = &volume.spec;
    if spec.discard {
        return Standing::Leaving;
    }
    if volume.metadata.deletion_timestamp.is_some() {
        return Standing::DeletedByHand;
    }
    if spec.device_class != wish.class {
        return Standing::Differs(format!("of DeviceClass {}", spec.device_class));
    }
    if spec.access != wish.access {
        return Standing::Differs(format!("with access {}", spec.access.as_str()));
    }
    let size = bytes(spec.size);
    if size < wish.size.required || wish.size.limit.is_some_and(|limit| size > limit) {
        return Standing::Differs(format!("of {}", for_people(size)));
    }
    match &wish.topology {
        Nodes::Of(nodes) if !nodes.contains(&names::topology_value(&spec.node_name)) => Standing::Elsewhere,
        Nodes::Of(_) | Nodes::Any => Standing::Fits,
    }
}

/// How far the node is with what it was last asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The LV is there, with this many bytes.
    Done(u64),
    /// Not yet; what the node says of it, if anything.
    Working(String),
    NoSpace(String),
    NoGroup(String),
    /// The node goes on trying.
    Failed(String),
}

pub fn progress(volume: &LogicalVolume) -> Progress {
    let Some(status) = &volume.status else { return Progress::Working(String::new()) };
    let size = status.size.map_or(0, bytes);
    if status.lv_uuid.is_some() && size >= bytes(volume.spec.size) && matches!(status.state, Some(State::Ready)) {
        return Progress::Done(size);
    }
    let ready = condition::find(&status.conditions, kind::READY);
    let Some(ready) = ready.filter(|ready| ready.status == "False") else { return Progress::Working(String::new()) };
    let message = ready.message.clone();
    if ready.observed_generation != volume.metadata.generation {
        // It speaks of what was asked before.
        return Progress::Working(String::new());
    }
    match ready.reason.as_str() {
        reason::NO_SPACE => Progress::NoSpace(message),
        reason::NO_GROUP => Progress::NoGroup(message),
        reason::CREATE_FAILED | reason::EXPAND_FAILED | reason::DELETE_FAILED => Progress::Failed(message),
        _ => Progress::Working(message),
    }
}

pub fn bytes(signed: i64) -> u64 {
    u64::try_from(signed).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use crds::logical_volume::{Access, LogicalVolumeSpec, LogicalVolumeStatus};
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;
    use crate::controller::request::Size;

    fn volume() -> LogicalVolume {
        let mut volume = LogicalVolume::new(
            "pvc-1",
            LogicalVolumeSpec {
                node_name: "n1".into(),
                device_class: "fast".into(),
                size: 100,
                access: Access::Filesystem,
                claim: None,
                adopt: None,
                discard: false,
            },
        );
        volume.metadata.generation = Some(2);
        volume
    }

    fn wish() -> Wish {
        Wish {
            name: "pvc-1".into(),
            class: "fast".into(),
            size: Size { required: 90, limit: None },
            access: Access::Filesystem,
            filesystem: None,
            claim: None,
            topology: Nodes::Of(vec!["n1".into()]),
        }
    }

    #[test]
    fn a_volume_of_the_same_name_fits_or_says_why_not() {
        let with = |change: fn(&mut LogicalVolume), wished: fn(&mut Wish)| {
            let (mut volume, mut wish) = (volume(), wish());
            change(&mut volume);
            wished(&mut wish);
            compare(&volume, &wish)
        };
        let same: fn(&mut LogicalVolume) = |_| {};
        assert_eq!(with(same, |_| {}), Standing::Fits);
        assert_eq!(with(same, |w| w.topology = Nodes::Any), Standing::Fits);
        assert_eq!(with(same, |w| w.topology = Nodes::Of(vec!["n2".into()])), Standing::Elsewhere);
        assert_eq!(with(|v| v.spec.discard = true, |_| {}), Standing::Leaving);
        let deleted: fn(&mut LogicalVolume) = |v| v.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(with(deleted, |_| {}), Standing::DeletedByHand);
        for wished in [
            (|w| w.class = "slow".into()) as fn(&mut Wish),
            |w| w.access = Access::Block,
            |w| w.size.required = 101,
            |w| w.size.limit = Some(99),
        ] {
            assert!(matches!(with(same, wished), Standing::Differs(_)));
        }
    }

    #[test]
    fn progress_is_read_from_what_the_node_says_of_this_generation() {
        let says = |status: &str, reason: &str, generation| {
            let mut volume = volume();
            volume.status = Some(LogicalVolumeStatus {
                conditions: vec![condition::new(kind::READY, status, reason, "m", Some(generation))],
                ..LogicalVolumeStatus::default()
            });
            progress(&volume)
        };
        let m = || "m".to_owned();
        assert_eq!(progress(&volume()), Progress::Working(String::new()));
        assert_eq!(says("False", reason::WORKING, 2), Progress::Working(m()));
        assert_eq!(says("False", reason::NO_SPACE, 2), Progress::NoSpace(m()));
        assert_eq!(says("False", reason::NO_GROUP, 2), Progress::NoGroup(m()));
        assert_eq!(says("False", reason::CREATE_FAILED, 2), Progress::Failed(m()));
        assert_eq!(says("False", reason::NO_SPACE, 1), Progress::Working(String::new()));
    }

    /// D9: comparisons are ≥.
    #[test]
    fn a_volume_is_done_when_it_has_at_least_what_is_asked_for() {
        for (size, state, lv, done) in [
            (100, State::Ready, true, true),
            (104, State::Ready, true, true),
            (99, State::Ready, true, false),
            (100, State::Growing, true, false),
            (100, State::Ready, false, false),
        ] {
            let mut volume = volume();
            volume.status = Some(LogicalVolumeStatus {
                size: Some(size),
                state: Some(state),
                lv_uuid: lv.then(|| "uuid".into()),
                ..LogicalVolumeStatus::default()
            });
            assert_eq!(matches!(progress(&volume), Progress::Done(_)), done, "{size} {state:?} {lv}");
        }
    }
}
