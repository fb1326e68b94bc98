//! The main job, from blank disks to a lost node: every step is carried out on
//! real parts and asserts what a person would look for. The test and the demo
//! are this one story.

mod loss;
mod volumes;

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{
    api::{condition, wait_for},
    site::{BLANK_DISKS, DATA_DISK, Site},
    tell::Tell,
};

/// One vcpu without hardware help, two nodes side by side: a pod takes seconds to start. When the operator itself was on
/// the node that is lost, pod GC (up to 80 s), its restart and its lease (30 s) come before anything else. A limit is for
/// a thing that will not happen, not for one that is slow.
pub const PATIENCE: Duration = Duration::from_secs(360);

/// The whole story on a cluster that it makes itself. The cluster is left as the story ends: Stowage runs, and
/// no volume is left.
pub fn tell_all(name: &str, tell: &mut Tell) -> anyhow::Result<Site> {
    tell.step("1. A control plane and two nodes with blank disks, and one disk with somebody's files on it");
    let mut site = Site::start(name)?;
    match chapters(&mut site, tell) {
        Ok(()) => {
            tell.summary();
            Ok(site)
        }
        Err(error) => {
            let folder = site.diagnose();
            Err(error.context(format!("what every part said last is in {}", folder.display())))
        }
    }
}

fn chapters(site: &mut Site, tell: &mut Tell) -> anyhow::Result<()> {
    site.add_nodes(&["node1", "node2"])?;
    tell.shown("kubectl get nodes", &site.kubectl(&["get", "nodes"])?);

    tell.step("2. Stowage is installed: definitions, permissions, the operator");
    site.install()?;
    tell.shown(
        "kubectl apply -k config/default; kubectl -n stowage-system get pods",
        &site.kubectl(&["-n", "stowage-system", "get", "pods"])?,
    );

    tell.step("3. One StorageCluster and one DeviceClass are applied; nobody touches a node");
    site.apply_file("config/samples/demo.yaml")?;
    driver_is_deployed(site, tell)?;

    tell.step("4. Each node's blank disks become a volume group; the disk with files is left alone, with the reason");
    for node in ["node1", "node2"] {
        group_is_made(site, tell, node)?;
    }
    tell.shown("kubectl get stowage", &site.kubectl(&["get", "stowage"])?);

    tell.step("5. The scheduler knows what is free; a StatefulSet gets a volume that has a wall");
    capacity_is_true(site, tell, &["node1", "node2"])?;
    volumes::a_set_finds_its_data_again(site, tell)?;
    volumes::too_big_stays_pending(site, tell)?;
    volumes::a_full_volume_harms_nothing_else(site, tell)?;

    tell.step("6. The claim grows under the running pod; a block volume works");
    volumes::the_claim_grows(site, tell)?;
    volumes::a_block_volume_works(site, tell)?;
    tell.shown("kubectl get logicalvolumes", &site.kubectl(&["get", "logicalvolumes"])?);

    volumes::side_characters_leave(site, tell)?;

    tell.step("7. A third node joins; its group and capacity are there without anybody doing anything");
    site.add_nodes(&["node3"])?;
    group_is_made(site, tell, "node3")?;
    capacity_is_true(site, tell, &["node3"])?;
    tell.shown("kubectl get nodestorages", &site.kubectl(&["get", "nodestorages"])?);

    tell.step("8. The node under the StatefulSet is powered off and its Node deleted; the set runs elsewhere");
    let first = site.node_of_pod("db-0")?;
    loss::the_set_starts_elsewhere(site, tell, &first, loss::Way::PowerOff)?;
    tell.step("8b. The same when the machine is cut off from the network before its agent could do anything");
    let second = site.node_of_pod("db-0")?;
    loss::the_set_starts_elsewhere(site, tell, &second, loss::Way::CutOff)?;

    tell.step("9. Everything is deleted: no LV, no object is left, the groups stay");
    volumes::nothing_is_left(site, tell)?;
    for node in site.nodes() {
        site.data_disk_is_untouched(&node)?;
    }
    tell.seen("the disk with files is byte for byte what it was, on every node");
    Ok(())
}

fn driver_is_deployed(site: &Site, tell: &Tell) -> anyhow::Result<()> {
    let namespace = "/apis/apps/v1/namespaces/stowage-system";
    wait_for("the DaemonSet stowage-node is ready on every node", PATIENCE, || {
        let set = site.api().get(&format!("{namespace}/daemonsets/stowage-node"))?.unwrap_or_default();
        let status = &set["status"];
        let all = status["numberReady"].as_i64() == Some(2) && status["desiredNumberScheduled"].as_i64() == Some(2);
        Ok(all.then_some(()))
    })?;
    wait_for("the Deployment stowage-controller is available", PATIENCE, || {
        let deployment = site.api().get(&format!("{namespace}/deployments/stowage-controller"))?.unwrap_or_default();
        Ok((deployment["status"]["availableReplicas"].as_i64() == Some(1)).then_some(()))
    })?;
    for path in [
        "/apis/storage.k8s.io/v1/csidrivers/csi.stowage.dev",
        "/apis/storage.k8s.io/v1/storageclasses/stowage-standard",
    ] {
        site.api().get(path)?.with_context(|| format!("{path} is not there"))?;
    }
    tell.shown(
        "kubectl -n stowage-system get pods -o wide",
        &site.kubectl(&["-n", "stowage-system", "get", "pods", "-o", "wide"])?,
    );
    Ok(())
}

/// The NodeStorage of a node, once it is Ready with the group of the class `standard`.
pub(crate) fn ready_storage(site: &Site, node: &str) -> anyhow::Result<Value> {
    wait_for(&format!("the volume group of {node} is ready"), PATIENCE, || {
        let storage = site.node_storage(node)?;
        let has_group = storage["status"]["volumeGroups"].as_array().is_some_and(|groups| groups.len() == 1);
        Ok((condition(&storage, "Ready") == "True" && has_group).then_some(storage))
    })
}

fn group_is_made(site: &Site, tell: &Tell, node: &str) -> anyhow::Result<()> {
    let storage = ready_storage(site, node)?;
    let group = &storage["status"]["volumeGroups"][0];
    ensure!(group["state"] == "Ready" && group["class"] == "standard", "not the group that is wanted: {group}");
    let members = group["devices"].as_i64().unwrap_or_default();
    ensure!(members == i64::try_from(BLANK_DISKS.len())?, "{members} devices in the group, not {}", BLANK_DISKS.len());
    let name = group["name"].as_str().unwrap_or_default();
    // What the object says is what LVM on the node says.
    let pvs = site.node_sh(node, &format!("pvs --noheadings -o pv_name -S vg_name={name} | wc -l"))?;
    ensure!(pvs.trim() == BLANK_DISKS.len().to_string(), "LVM on {node} has {} PVs in {name}", pvs.trim());

    let devices = storage["status"]["devices"].as_array().cloned().unwrap_or_default();
    let kept = devices.iter().find(|device| device["serial"] == DATA_DISK);
    let kept = kept.with_context(|| format!("{DATA_DISK} is not listed: {devices:?}"))?;
    ensure!(kept["state"] == "Refused", "the disk with files is {}", kept["state"]);
    let reason = &kept["reasons"][0];
    ensure!(reason["code"] == "HasSignature", "the reason is {reason}");
    tell.seen(&format!(
        "{node}: {name} with {members} disks; {DATA_DISK} is left alone: {}: {}",
        reason["code"].as_str().unwrap_or_default(),
        reason["message"].as_str().unwrap_or_default()
    ));
    site.data_disk_is_untouched(node)
}

/// The capacity objects of these nodes say what LVM says is free.
fn capacity_is_true(site: &Site, tell: &Tell, nodes: &[&str]) -> anyhow::Result<()> {
    for node in nodes {
        let published = wait_for(&format!("the capacity of {node} is published"), PATIENCE, || site.capacity_of(node))?;
        let free = site.free_in_group(node)?;
        ensure!(published == free, "{node}: published {published} bytes, LVM has {free} free");
    }
    tell.seen("the CSIStorageCapacity objects say what `vgs` says on the nodes");
    tell.shown(
        "kubectl -n stowage-system get csistoragecapacities",
        &site.kubectl(&["-n", "stowage-system", "get", "csistoragecapacities", "-o", "custom-columns=CLASS:.storageClassName,NODE:.nodeTopology.matchLabels,CAPACITY:.capacity,LARGEST:.maximumVolumeSize"])?,
    );
    Ok(())
}
