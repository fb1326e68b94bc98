//! What the objects say, in the words of the ledger. Pure.

use std::{borrow::Borrow, collections::HashSet};

use crds::{
    condition::{self, kind},
    logical_volume::LogicalVolume,
    names,
    node_storage::{GroupState, NodeStorage, VolumeGroupStatus},
    quantity,
};
use k8s_openapi::{
    api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;

use super::ledger::{Entry, Group, Place};

/// The name that csi-provisioner gives to the volume of a claim: its default `--volume-name-prefix` and the claim's UID.
pub fn volume_of_claim(uid: &str) -> String {
    format!("pvc-{uid}")
}

/// What `volume_of_claim` was made of.
pub fn claim_uid(volume: &str) -> Option<&str> {
    volume.strip_prefix("pvc-").filter(|uid| !uid.is_empty())
}

/// The DeviceClass that a StorageClass of ours names.
pub fn device_class(storage_class: &StorageClass) -> Option<&str> {
    (storage_class.provisioner == names::DRIVER)
        .then_some(storage_class.parameters.as_ref())
        .flatten()
        .and_then(|parameters| parameters.get(names::parameter::DEVICE_CLASS))
        .map(String::as_str)
}

/// Whether the Node is gone, however long ago.
pub fn is_lost(storage: &NodeStorage) -> bool {
    let conditions = storage.status.as_ref().map_or(&[][..], |status| &status.conditions);
    condition::is_true(conditions, kind::NODE_LOST)
}

/// The groups of a node that take volumes. None while the status speaks of an earlier Node of the same name.
pub fn groups(storage: &NodeStorage) -> Vec<(Place, Group)> {
    let answered = storage.spec.node_uid.is_empty() || storage.was_looked_at();
    if is_lost(storage) || !answered || storage.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let assigned = |class: &str| storage.spec.classes.iter().any(|assigned| assigned.name == class);
    let all = storage.status.as_ref().map_or(&[][..], |status| &status.volume_groups);
    // Two groups of one class are a `Conflict`, and both say so.
    all.iter()
        .filter(|group| group.state == GroupState::Ready && assigned(&group.class))
        .map(|group| (Place { node: storage.spec.node_name.clone(), class: group.class.clone() }, figures(group)))
        .collect()
}

/// Why a node takes no volumes of `class`, for a person.
pub fn why_not(storage: Option<&NodeStorage>, class: &str) -> String {
    let Some(storage) = storage else {
        return "has no NodeStorage: it is gone, or the agent does not run there".into();
    };
    let status = storage.status.as_ref();
    let group = status.and_then(|status| status.volume_groups.iter().find(|group| group.class == class));
    if is_lost(storage) {
        "is gone".into()
    } else if !storage.spec.classes.iter().any(|assigned| assigned.name == class) {
        format!("does not have DeviceClass {class}: its nodeSelector says where it is")
    } else if !storage.was_looked_at() {
        "has not been looked at yet".into()
    } else {
        let state = match group.map(|group| group.state) {
            None => "no volume group",
            Some(GroupState::Partial) => "a volume group that lacks a device",
            Some(GroupState::Conflict) => "a volume group that is not the only one",
            Some(GroupState::Ready) => "a volume group, but the class is being deleted",
        };
        format!("has, for DeviceClass {class}, {state}: see its NodeStorage")
    }
}

fn figures(group: &VolumeGroupStatus) -> Group {
    let bytes = |signed: i64| u64::try_from(signed).unwrap_or(0);
    Group {
        size: bytes(group.size),
        extent: bytes(group.extent_size),
        unmanaged: bytes(group.unmanaged),
        reserve: bytes(group.reserve),
        max_volume_size: bytes(group.max_volume_size),
    }
}

/// What a LogicalVolume takes, made or not, until it is gone: while it grows, what it will have; while it is told to be
/// smaller again, what it has.
pub fn volume(volume: &LogicalVolume) -> Entry {
    let has = volume.status.as_ref().and_then(|status| status.size).unwrap_or(0);
    Entry {
        place: Place { node: volume.spec.node_name.clone(), class: volume.spec.device_class.clone() },
        volume: volume.name_any(),
        bytes: u64::try_from(volume.spec.size.max(has)).unwrap_or(0),
    }
}

/// LVs of this cluster without an object take room all the same. `there`: the names of the LogicalVolumes; a node's
/// list may be older than an object made for one of its LVs.
pub fn orphans<S: Borrow<str> + std::hash::Hash + Eq>(storage: &NodeStorage, there: &HashSet<S>) -> Vec<Entry> {
    let all = storage.status.as_ref().map_or(&[][..], |status| &status.orphans);
    let entry = |orphan: &crds::node_storage::Orphan| Entry {
        place: Place { node: storage.spec.node_name.clone(), class: orphan.class.clone() },
        // Two LVs may carry one name, and each takes room.
        volume: format!("{} {}", orphan.name, orphan.lv_uuid),
        bytes: u64::try_from(orphan.size).unwrap_or(0),
    };
    all.iter().filter(|orphan| !there.contains(orphan.name.as_str())).map(entry).collect()
}

/// A promise, and what orders it where the order of arrival is not known: after a start all come at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Promise {
    pub entry: Entry,
    pub created: Option<Time>,
}

/// The room that a claim was promised when the scheduler chose a node for it. `class_of` says which DeviceClass a
/// StorageClass of ours names.
pub fn promise<'a>(claim: &PersistentVolumeClaim, class_of: impl Fn(&str) -> Option<&'a str>) -> Option<Promise> {
    let node = claim.annotations().get(names::annotation::SELECTED_NODE).filter(|node| !node.is_empty())?;
    let spec = claim.spec.as_ref()?;
    if spec.volume_name.as_ref().is_some_and(|name| !name.is_empty()) || claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let class = class_of(spec.storage_class_name.as_ref()?)?;
    let asked = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    Some(Promise {
        entry: Entry {
            place: Place { node: node.clone(), class: class.to_owned() },
            volume: volume_of_claim(claim.metadata.uid.as_deref()?),
            // The API server has read it before.
            bytes: quantity::bytes(asked).ok()?,
        },
        created: claim.metadata.creation_timestamp.clone(),
    })
}

#[cfg(test)]
mod tests {
    use crds::{
        condition::reason,
        logical_volume::{LogicalVolumeSpec, LogicalVolumeStatus},
        node_storage::{Agent, AssignedClass, NodeStorageSpec, NodeStorageStatus, Orphan},
    };

    use super::*;

    fn group(class: &str, state: GroupState) -> VolumeGroupStatus {
        VolumeGroupStatus {
            class: class.into(),
            name: format!("stowage-{class}"),
            uuid: "u".into(),
            size: 100,
            extent_size: 4,
            unmanaged: 8,
            reserve: 12,
            max_volume_size: 96,
            devices: 1,
            state,
            last_error: None,
        }
    }

    fn storage() -> NodeStorage {
        let assigned = |name: &str| AssignedClass { name: name.into(), ..AssignedClass::default() };
        let mut storage = NodeStorage::new(
            "n1",
            NodeStorageSpec {
                node_name: "n1".into(),
                node_uid: "uid".into(),
                classes: vec![assigned("fast"), assigned("slow")],
                ..NodeStorageSpec::default()
            },
        );
        storage.status = Some(NodeStorageStatus {
            agent: Some(Agent { node_uid: "uid".into(), ..Agent::default() }),
            volume_groups: vec![
                group("fast", GroupState::Ready),
                group("slow", GroupState::Partial),
                group("old", GroupState::Ready),
            ],
            ..NodeStorageStatus::default()
        });
        storage
    }

    fn place(class: &str) -> Place {
        Place { node: "n1".into(), class: class.into() }
    }

    /// D4: a group that is not Ready, or whose class is not assigned here (any more), takes no volumes.
    #[test]
    fn only_ready_groups_of_assigned_classes_count() {
        let figures = Group { size: 100, extent: 4, unmanaged: 8, reserve: 12, max_volume_size: 96 };
        assert_eq!(groups(&storage()), [(place("fast"), figures)]);
    }

    #[test]
    fn a_lost_node_has_no_room_from_the_first_moment() {
        for why in [reason::GRACE, reason::RELEASED, reason::NODE_DELETED] {
            let mut lost = storage();
            let condition = condition::new(kind::NODE_LOST, "True", why, "", None);
            lost.status.as_mut().unwrap().conditions.push(condition);
            assert_eq!(groups(&lost), [], "{why}");
        }
    }

    #[test]
    fn a_person_is_told_why_a_node_takes_no_volumes() {
        let mut back = storage();
        back.spec.node_uid = "newer".into();
        let mut bare = storage();
        bare.status.as_mut().unwrap().volume_groups.clear();
        for (storage, class, why) in [
            (None, "fast", "NodeStorage"),
            (Some(&storage()), "slow", "lacks a device"),
            (Some(&storage()), "other", "nodeSelector"),
            (Some(&back), "fast", "looked at"),
            (Some(&bare), "fast", "no volume group"),
        ] {
            assert!(why_not(storage, class).contains(why), "{}", why_not(storage, class));
        }
    }

    /// A7: the figures are those of the machine that had the name before.
    #[test]
    fn a_node_that_came_back_has_no_room_until_it_was_looked_at() {
        let mut back = storage();
        back.spec.node_uid = "newer".into();
        assert_eq!(groups(&back), []);
    }

    #[test]
    fn a_volume_takes_the_larger_of_what_it_has_and_what_it_will_have() {
        let spec = |size| LogicalVolumeSpec {
            node_name: "n1".into(),
            device_class: "fast".into(),
            size,
            access: Default::default(),
            claim: None,
            adopt: None,
            discard: false,
        };
        let mut growing = LogicalVolume::new("a", spec(20));
        assert_eq!(volume(&growing).bytes, 20);
        growing.status = Some(LogicalVolumeStatus { size: Some(12), ..LogicalVolumeStatus::default() });
        assert_eq!(volume(&growing).bytes, 20);
        growing.status = Some(LogicalVolumeStatus { size: Some(24), ..LogicalVolumeStatus::default() });
        assert_eq!(volume(&growing), Entry { place: place("fast"), volume: "a".into(), bytes: 24 });
    }

    #[test]
    fn an_orphan_takes_room_until_an_object_stands_for_it() {
        let mut with = storage();
        let orphan = |name: &str, lv_uuid: &str| Orphan {
            name: name.into(),
            class: "fast".into(),
            lv_uuid: lv_uuid.into(),
            size: 8,
            claim: None,
            used: true,
        };
        with.status.as_mut().unwrap().orphans = vec![orphan("a", "1"), orphan("a", "2"), orphan("b", "3")];
        assert_eq!(orphans(&with, &HashSet::from(["b"])).len(), 2);
    }

    fn claim(json: serde_json::Value) -> PersistentVolumeClaim {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_claim_is_a_promise_from_the_chosen_node_to_the_binding() {
        let with = |node: Option<&str>, class: &str, bound: Option<&str>| {
            claim(serde_json::json!({
                "metadata": {
                    "name": "c", "namespace": "d", "uid": "1234",
                    "annotations": node.map(|node| serde_json::json!({ names::annotation::SELECTED_NODE: node })),
                },
                "spec": {
                    "storageClassName": class, "volumeName": bound,
                    "resources": { "requests": { "storage": "1Gi" } },
                },
            }))
        };
        let class_of = |name: &str| (name == "ours").then_some("fast");
        let promised = promise(&with(Some("n1"), "ours", None), class_of).unwrap();
        assert_eq!(promised.entry, Entry { place: place("fast"), volume: "pvc-1234".into(), bytes: 1 << 30 });
        assert_eq!(promise(&with(None, "ours", None), class_of), None);
        assert_eq!(promise(&with(Some("n1"), "other", None), class_of), None);
        assert_eq!(promise(&with(Some("n1"), "ours", Some("pvc-1234")), class_of), None);
    }

    #[test]
    fn a_storage_class_is_ours_by_its_provisioner() {
        let storage_class = |provisioner: &str| StorageClass {
            provisioner: provisioner.into(),
            parameters: Some([(names::parameter::DEVICE_CLASS.to_owned(), "fast".to_owned())].into()),
            ..StorageClass::default()
        };
        assert_eq!(device_class(&storage_class(names::DRIVER)), Some("fast"));
        assert_eq!(device_class(&storage_class("other")), None);
    }
}
