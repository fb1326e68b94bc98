//! StorageClasses of the DeviceClasses: what is wanted, and what stands in the way.

use std::collections::BTreeMap;

use crds::{
    device_class::{DeviceClass, DeviceClassSpec, ReclaimPolicy, StorageClassTemplate, VolumeBindingMode},
    names,
};
use k8s_openapi::{api::storage::v1::StorageClass, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::ResourceExt;

/// Read by claims without a class, see the Kubernetes reference on well-known annotations.
pub const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

pub fn storage_class(class: &str, spec: &DeviceClassSpec, template: &StorageClassTemplate) -> StorageClass {
    let mut labels = template.labels.clone();
    labels.insert(names::label::MANAGED_BY.to_owned(), names::label::OWNED_BY_OPERATOR.to_owned());
    labels.insert(names::label::DEVICE_CLASS.to_owned(), class.to_owned());
    let mut annotations = template.annotations.clone();
    // Also said when it is not: otherwise what a person annotated by hand would stay.
    annotations.insert(IS_DEFAULT.to_owned(), template.default.to_string());
    let fs_type = template.fs_type.unwrap_or(spec.filesystem.type_);
    let mount_options = template.mount_options.as_ref().unwrap_or(&spec.filesystem.mount_options);
    StorageClass {
        metadata: ObjectMeta {
            name: Some(template.name.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        provisioner: names::DRIVER.to_owned(),
        parameters: Some(BTreeMap::from([
            (names::parameter::DEVICE_CLASS.to_owned(), class.to_owned()),
            (names::parameter::FS_TYPE.to_owned(), fs_type.as_str().to_owned()),
        ])),
        reclaim_policy: Some(
            match template.reclaim_policy {
                ReclaimPolicy::Delete => "Delete",
                ReclaimPolicy::Retain => "Retain",
            }
            .to_owned(),
        ),
        volume_binding_mode: Some(
            match template.volume_binding_mode {
                VolumeBindingMode::WaitForFirstConsumer => "WaitForFirstConsumer",
                VolumeBindingMode::Immediate => "Immediate",
            }
            .to_owned(),
        ),
        allow_volume_expansion: Some(template.allow_volume_expansion),
        mount_options: (!mount_options.is_empty()).then(|| mount_options.clone()),
        allowed_topologies: None,
    }
}

/// Whether the operator made it. The label alone does not say so once somebody removed it; that the operator
/// owns fields of it does.
pub fn is_ours(there: &StorageClass) -> bool {
    let labelled = there.labels().get(names::label::MANAGED_BY).map(String::as_str);
    labelled == Some(names::label::OWNED_BY_OPERATOR)
        || there.managed_fields().iter().any(|fields| fields.manager.as_deref() == Some(names::manager::OPERATOR))
}

/// Whether `wanted` can only be had by deleting what is there: the API server lets these fields never change
/// (pkg/apis/storage/validation, ValidateStorageClassUpdate).
pub fn must_be_made_anew(there: &StorageClass, wanted: &StorageClass) -> bool {
    there.provisioner != wanted.provisioner
        || there.parameters != wanted.parameters
        || there.reclaim_policy != wanted.reclaim_policy
        || there.volume_binding_mode != wanted.volume_binding_mode
}

/// What is to be done about StorageClasses.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    pub apply: Vec<StorageClass>,
    /// Deleted, and then made anew by `apply`.
    pub replace: Vec<StorageClass>,
    pub prune: Vec<String>,
    /// By DeviceClass: why a StorageClass of it is not made, for a person.
    pub taken: BTreeMap<String, Vec<String>>,
    /// Names of the StorageClasses that claims without a class get, when there is more than one.
    pub defaults: Vec<String>,
}

/// `classes` without the ones that are being deleted.
pub fn plan(classes: &[&DeviceClass], there: &[&StorageClass]) -> Plan {
    let mut plan = Plan::default();
    let mut wanted: BTreeMap<&str, Vec<(String, StorageClass)>> = BTreeMap::new();
    for class in classes {
        for template in &class.spec.storage_classes {
            let made = storage_class(&class.name_any(), &class.spec, template);
            wanted.entry(&template.name).or_default().push((class.name_any(), made));
        }
    }
    for (name, wishes) in &wanted {
        let there = there.iter().find(|there| there.metadata.name.as_deref() == Some(name));
        let taken = |why: String, plan: &mut Plan| {
            for (class, _) in wishes {
                plan.taken.entry(class.clone()).or_default().push(why.clone());
            }
        };
        match (wishes.as_slice(), there) {
            ([_, _, ..], _) => {
                let classes: Vec<&str> = wishes.iter().map(|(class, _)| class.as_str()).collect();
                taken(
                    format!(
                        "StorageClass {name} is asked for by the DeviceClasses {}: remove it from all but one",
                        classes.join(", ")
                    ),
                    &mut plan,
                );
            }
            ([_], Some(there)) if !is_ours(there) => taken(
                format!(
                    "a StorageClass {name} is there that Stowage has not made: choose another name, or delete that StorageClass"
                ),
                &mut plan,
            ),
            ([(_, wanted)], Some(there)) if must_be_made_anew(there, wanted) => plan.replace.push(wanted.clone()),
            ([(_, wanted)], _) => plan.apply.push(wanted.clone()),
            ([], _) => {}
        }
    }
    plan.prune = there
        .iter()
        .filter(|there| is_ours(there) && !wanted.contains_key(there.name_any().as_str()))
        .map(|there| there.name_any())
        .collect();
    plan.defaults = defaults(&plan, there);
    plan
}

fn defaults(plan: &Plan, there: &[&StorageClass]) -> Vec<String> {
    let is_default = |class: &StorageClass| class.annotations().get(IS_DEFAULT).is_some_and(|is| is == "true");
    let made = plan.apply.iter().chain(&plan.replace);
    let others = there.iter().copied().filter(|there| {
        let name = there.name_any();
        !plan.prune.contains(&name) && !plan.apply.iter().chain(&plan.replace).any(|made| made.name_any() == name)
    });
    let mut all: Vec<String> =
        made.chain(others).filter(|class| is_default(class)).map(ResourceExt::name_any).collect();
    all.sort();
    if all.len() > 1 { all } else { Vec::new() }
}
