//! What is wanted on this node, read from the NodeStorage's spec. A class that can not be read is left out with a
//! sentence; the others go on.

use std::collections::{BTreeMap, BTreeSet};

use crds::{
    device_class::Membership,
    node_storage::{AssignedClass, DeviceAction, NodeStorageSpec},
    quantity,
    storage_cluster::ExecutionPolicy,
};

use crate::{
    disk::select::Term,
    name::{BadName, Bytes, ClassName, ClusterId, VgName},
};

/// LVM's own default (lvm.conf(5), `allocation/physical_extent_size`).
const EXTENT: Bytes = Bytes(4 << 20);

#[derive(Clone, Debug)]
pub struct Wanted {
    pub cluster: ClusterId,
    /// By priority, the highest first, then by name.
    pub classes: Vec<Class>,
    pub policy: ExecutionPolicy,
    pub deny: Vec<String>,
    pub max_devices: usize,
    pub cleared: BTreeSet<String>,
    /// Devices that a person excluded on this node.
    pub excluded: BTreeSet<String>,
    /// Groups that were on this node when it was last looked at.
    pub known: Vec<KnownGroup>,
    /// Classes that can not be planned for, and why.
    pub troubles: Vec<(String, String)>,
}

/// A group of an earlier look, in the words of whoever kept it: they are compared and shown, and nothing is done by
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownGroup {
    pub class: String,
    pub uuid: String,
    pub name: String,
}

#[derive(Clone, Debug)]
pub struct Class {
    pub name: ClassName,
    pub priority: i32,
    pub include: Vec<Term>,
    pub exclude: Vec<Term>,
    pub membership: Membership,
    pub min: usize,
    pub max: usize,
    pub group: VgName,
    pub extent: Bytes,
    pub reserve: Reserve,
}

/// Space of a group that volumes never get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reserve {
    #[default]
    None,
    Percent(u64),
    Bytes(Bytes),
}

impl Reserve {
    /// Of a group of this size, in whole extents.
    pub fn of(self, size: Bytes, extent: Bytes) -> Bytes {
        let wanted = match self {
            Self::None => Bytes(0),
            Self::Percent(percent) => {
                let part = u128::from(size.0) * u128::from(percent) / 100;
                Bytes(u64::try_from(part).unwrap_or(u64::MAX))
            }
            Self::Bytes(bytes) => bytes,
        };
        Bytes(wanted.extents(extent).saturating_mul(extent.0).min(size.0))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum WantedError {
    #[error("the NodeStorage's spec can not be read")]
    Json(#[from] serde_json::Error),
    #[error("the NodeStorage names no cluster yet")]
    Cluster(#[source] BadName),
}

impl Wanted {
    pub fn parse(json: &[u8]) -> Result<Self, WantedError> {
        Self::new(serde_json::from_slice(json)?)
    }

    pub fn new(spec: NodeStorageSpec) -> Result<Self, WantedError> {
        let cluster = ClusterId::try_from(spec.cluster_id).map_err(WantedError::Cluster)?;
        let mut troubles = Vec::new();
        let mut classes = Vec::new();
        for assigned in spec.classes {
            let name = assigned.name.clone();
            match class(assigned) {
                Ok(class) => classes.push(class),
                Err(why) => troubles.push((name, why)),
            }
        }
        troubles.extend(shared_names(&mut classes));
        classes.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.name.cmp(&b.name)));
        let excluded = spec.devices.into_iter().filter(|word| match word.action {
            DeviceAction::Exclude => true,
        });
        Ok(Self {
            cluster,
            classes,
            policy: spec.rails.execution_policy,
            deny: spec.rails.discovery.deny,
            max_devices: count(spec.rails.safety.max_devices_per_plan),
            cleared: spec.cleared.into_iter().collect(),
            excluded: excluded.map(|word| word.id).collect(),
            known: Vec::new(),
            troubles,
        })
    }
}

fn class(assigned: AssignedClass) -> Result<Class, String> {
    let spec = assigned.spec;
    let name = ClassName::try_from(assigned.name).map_err(|err| err.to_string())?;
    let terms = |raw: Vec<_>| raw.into_iter().map(Term::try_from).collect::<Result<Vec<_>, _>>();
    let size = |text: &str| quantity::parse(text).map(Bytes).map_err(|err| err.to_string());
    let group = spec.volume_group.unwrap_or_default();
    let vg_name = group.name.unwrap_or_else(|| format!("stowage-{name}"));
    let vg_name =
        VgName::try_from(vg_name).map_err(|err| format!("{err}: make a DeviceClass with another volumeGroup.name"))?;
    let reserve = match spec.reserve.unwrap_or_default() {
        crds::device_class::Reserve { percent: Some(percent), .. } => {
            Reserve::Percent(u64::try_from(percent).unwrap_or(0).min(100))
        }
        crds::device_class::Reserve { bytes: Some(bytes), .. } => Reserve::Bytes(size(&bytes)?),
        crds::device_class::Reserve { percent: None, bytes: None } => Reserve::None,
    };
    Ok(Class {
        name,
        priority: spec.priority,
        include: terms(spec.devices.include).map_err(|err| err.to_string())?,
        exclude: terms(spec.devices.exclude).map_err(|err| err.to_string())?,
        membership: spec.devices.membership,
        min: spec.devices.min.map_or(1, count).max(1),
        max: spec.devices.max.map_or(usize::MAX, count),
        group: vg_name,
        extent: group.extent_size.as_deref().map(size).transpose()?.unwrap_or(EXTENT),
        reserve,
    })
}

fn count(number: i32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// A group belongs to one class: two that name one are both left out, and nothing is made for either.
fn shared_names(classes: &mut Vec<Class>) -> Vec<(String, String)> {
    let mut users = BTreeMap::<VgName, Vec<ClassName>>::new();
    for class in classes.iter() {
        users.entry(class.group.clone()).or_default().push(class.name.clone());
    }
    users.retain(|_, users| users.len() > 1);
    classes.retain(|class| !users.contains_key(&class.group));
    let sentence = |group: &VgName, users: &[ClassName]| {
        let users = users.iter().map(ClassName::as_str).collect::<Vec<_>>().join(" and ");
        format!("the DeviceClasses {users} name the same volume group {group}: give each its own volumeGroup.name")
    };
    users
        .iter()
        .flat_map(|(group, users)| users.iter().map(move |user| (user.to_string(), sentence(group, users))))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wanted(classes: serde_json::Value) -> Wanted {
        let spec = json!({"nodeName": "n", "clusterID": "c", "classes": classes});
        Wanted::parse(spec.to_string().as_bytes()).unwrap()
    }

    fn class(name: &str, spec: serde_json::Value) -> serde_json::Value {
        let mut whole = json!({"devices": {"include": [{"ids": ["*"]}]}});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        json!({"name": name, "generation": 1, "spec": whole})
    }

    #[test]
    fn defaults_are_those_of_the_api() {
        let wanted = wanted(json!([class("fast", json!({}))]));
        let fast = &wanted.classes[0];
        assert_eq!((fast.group.as_str(), fast.extent, fast.min, fast.max), ("stowage-fast", EXTENT, 1, usize::MAX));
        assert_eq!((wanted.max_devices, wanted.policy), (32, ExecutionPolicy::Enforce));
        assert!(wanted.deny.contains(&"loop".to_owned()));
    }

    #[test]
    fn a_class_that_can_not_be_read_does_not_stop_the_others() {
        let wanted = wanted(json!([class("a", json!({"reserve": {"bytes": "lots"}})), class("b", json!({}))]));
        assert_eq!(wanted.classes.len(), 1);
        assert_eq!(wanted.troubles[0].0, "a");
        assert!(wanted.troubles[0].1.contains("10Gi"));
    }

    #[test]
    fn two_classes_that_name_one_group_get_nothing() {
        let same = || json!({"volumeGroup": {"name": "vg"}});
        let wanted = wanted(json!([class("a", same()), class("b", same()), class("c", json!({}))]));
        assert_eq!(wanted.classes.iter().map(|class| class.name.as_str()).collect::<Vec<_>>(), ["c"]);
        assert_eq!(wanted.troubles.len(), 2);
    }

    #[test]
    fn the_higher_priority_comes_first() {
        let wanted = wanted(json!([class("b", json!({})), class("a", json!({})), class("z", json!({"priority": 1})),]));
        assert_eq!(wanted.classes.iter().map(|class| class.name.as_str()).collect::<Vec<_>>(), ["z", "a", "b"]);
    }

    #[test]
    fn without_a_cluster_nothing_is_wanted() {
        let spec = json!({"nodeName": "n"}).to_string();
        assert!(matches!(Wanted::parse(spec.as_bytes()), Err(WantedError::Cluster(_))));
    }

    #[test]
    fn a_reserve_is_whole_extents_and_never_more_than_all() {
        let extent = Bytes(4 << 20);
        assert_eq!(Reserve::Percent(10).of(Bytes(100 << 20), extent), Bytes(12 << 20));
        assert_eq!(Reserve::Bytes(Bytes(1)).of(Bytes(100 << 20), extent), extent);
        assert_eq!(Reserve::Bytes(Bytes(u64::MAX)).of(Bytes(100 << 20), extent), Bytes(100 << 20));
        assert_eq!(Reserve::None.of(Bytes(100 << 20), extent), Bytes(0));
    }
}
