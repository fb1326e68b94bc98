//! Steps about volumes in pods.

use anyhow::{Context, ensure};

use super::PATIENCE;
use crate::{api::wait_for, site::Site, tell::Tell};

const MIB: u64 = 1 << 20;

pub fn a_set_finds_its_data_again(site: &Site, tell: &Tell) -> anyhow::Result<()> {
    site.apply(include_str!("../../manifests/statefulset.yaml"))?;
    let first = site.wait_pod_running("db-0", "")?;
    site.exec("db-0", "echo kept > /data/word && sync")?;
    let node = site.node_of_pod("db-0")?;
    tell.seen(&format!("db-0 runs on {node} and has written to its volume"));
    tell.shown("kubectl get pvc,pv,pods -o wide", &site.kubectl(&["get", "pvc,pv,pods", "-o", "wide"])?);

    site.kubectl(&["delete", "pod", "db-0", "--grace-period=0", "--force"])?;
    site.wait_pod_running("db-0", &first)?;
    let word = site.exec("db-0", "cat /data/word")?;
    ensure!(word.trim() == "kept", "the pod that was killed finds {word:?}");
    tell.seen("db-0 was killed, started again and finds its data");
    Ok(())
}

pub fn too_big_stays_pending(site: &Site, tell: &Tell) -> anyhow::Result<()> {
    site.apply(include_str!("../../manifests/too-big.yaml"))?;
    let said = wait_for("the scheduler says why too-big does not run", PATIENCE, || {
        let pod = site.api().get("/api/v1/namespaces/default/pods/too-big")?.unwrap_or_default();
        let message = crate::api::message(&pod, "PodScheduled").to_owned();
        Ok(message.contains("free storage").then_some(message))
    })?;
    let claim = site.claim("too-big")?.context("the claim too-big is gone")?;
    ensure!(claim["status"]["phase"] == "Pending", "the claim is {}", claim["status"]["phase"]);
    tell.seen(&format!("a claim of 1Ti stays Pending: {said}"));
    site.kubectl(&["delete", "pod/too-big", "pvc/too-big", "--wait=true"])?;
    Ok(())
}

pub fn a_full_volume_harms_nothing_else(site: &Site, tell: &Tell) -> anyhow::Result<()> {
    let node = site.node_of_pod("db-0")?;
    site.apply(&include_str!("../../manifests/neighbour.yaml").replace("NODE", &node))?;
    site.wait_pod_running("neighbour", "")?;
    let checksum = "dd if=/dev/urandom of=/data/f bs=1M count=32 2>/dev/null; sync; sha256sum /data/f";
    let before = site.exec("neighbour", checksum)?;

    // busybox's dd says why it stopped; the exit code alone could be anything.
    let full = site.exec("db-0", "dd if=/dev/zero of=/data/big bs=1M count=2000 2>&1; sync; df -k /data | tail -1")?;
    ensure!(full.contains("No space left on device"), "writing past the size ended with {full:?}");
    tell.seen("writing past the claim's size fails with: No space left on device");

    let after = site.exec("neighbour", "sha256sum /data/f && echo more > /data/more && sync")?;
    ensure!(before.trim() == after.trim(), "the neighbour's file changed: {before:?}, {after:?}");
    site.exec("db-0", "rm /data/big && sync && cat /data/word")?;
    let free = site.free_in_group(&node)?;
    let published = wait_for("the capacity is published", PATIENCE, || {
        Ok(site.capacity_of(&node)?.filter(|published| *published == free))
    })?;
    tell.seen(&format!(
        "the neighbour in the same group is whole and writable; {} MiB are free there",
        published / MIB
    ));
    Ok(())
}

pub fn the_claim_grows(site: &Site, tell: &Tell) -> anyhow::Result<()> {
    let size = || -> anyhow::Result<u64> {
        let line = site.exec("db-0", "df -k /data | tail -1")?;
        let blocks = line.split_whitespace().nth(1).with_context(|| format!("df printed {line:?}"))?;
        Ok(blocks.parse::<u64>().with_context(|| format!("df printed {line:?}"))? << 10)
    };
    let (before, pod) = (size()?, site.pod_uid("db-0")?);
    let wanted = r#"{"spec":{"resources":{"requests":{"storage":"640Mi"}}}}"#;
    site.kubectl(&["patch", "pvc", "data-db-0", "--type=merge", "-p", wanted])?;
    wait_for("the claim has its new size", PATIENCE, || {
        let claim = site.claim("data-db-0")?.unwrap_or_default();
        Ok((claim["status"]["capacity"]["storage"] == "640Mi").then_some(()))
    })?;
    let after = size()?;
    ensure!(after >= before + 300 * MIB, "the filesystem had {before} bytes and has {after}");
    ensure!(site.pod_uid("db-0")? == pod, "the pod was started anew");
    let word = site.exec("db-0", "cat /data/word")?;
    ensure!(word.trim() == "kept", "after the growth the file says {word:?}");
    tell.seen(&format!("the filesystem grew from {} to {} MiB, with the pod running", before / MIB, after / MIB));
    Ok(())
}

pub fn a_block_volume_works(site: &Site, tell: &Tell) -> anyhow::Result<()> {
    site.apply(include_str!("../../manifests/block.yaml"))?;
    site.wait_pod_running("raw", "")?;
    // The last MiB is written and read back past the cache; the one behind it is not there.
    let script = "set -e; dd if=/dev/urandom of=/tmp/a bs=1M count=1 2>/dev/null; \
                  dd if=/tmp/a of=/dev/xvda bs=1M seek=63 2>/dev/null; sync; \
                  dd if=/dev/xvda of=/tmp/b bs=1M skip=63 count=1 2>/dev/null; cmp /tmp/a /tmp/b; \
                  dd if=/tmp/a of=/dev/xvda bs=1M seek=64 2>&1 || true";
    let past_the_end = site.exec("raw", script)?;
    ensure!(past_the_end.contains("No space left on device"), "behind the end: {past_the_end:?}");
    tell.seen("a block volume of 64 MiB takes its last MiB and nothing behind it");
    Ok(())
}

/// What is no longer needed goes, so that the story of the lost node has one claim.
pub fn side_characters_leave(site: &Site, tell: &Tell) -> anyhow::Result<()> {
    site.kubectl(&["delete", "pod/neighbour", "pod/raw", "pvc/neighbour", "pvc/raw", "--wait=true", "--timeout=180s"])?;
    wait_for("only the set's volume is left", PATIENCE, || {
        Ok((site.api().list("/apis/stowage.dev/v1alpha1/logicalvolumes")?.len() == 1).then_some(()))
    })?;
    tell.seen("the claims of the other pods are deleted, and their LVs are gone");
    Ok(())
}

pub fn nothing_is_left(site: &Site, tell: &Tell) -> anyhow::Result<()> {
    site.kubectl(&["delete", "statefulset/db", "--wait=true", "--timeout=180s"])?;
    wait_for("the set's pod is gone", PATIENCE, || {
        Ok(site.api().get("/api/v1/namespaces/default/pods/db-0")?.is_none().then_some(()))
    })?;
    site.kubectl(&["delete", "pvc", "--all", "--wait=true", "--timeout=180s"])?;
    wait_for("no PersistentVolume and no LogicalVolume is left", PATIENCE, || {
        let volumes = site.api().list("/api/v1/persistentvolumes")?;
        let logical = site.api().list("/apis/stowage.dev/v1alpha1/logicalvolumes")?;
        Ok((volumes.is_empty() && logical.is_empty()).then_some(()))
    })?;
    for node in site.nodes_in_cluster()? {
        let volumes = site.node_sh(&node, "lvs --noheadings -o lv_name")?;
        ensure!(volumes.trim().is_empty(), "LVs are left on {node}: {volumes}");
        let groups = site.node_sh(&node, "vgs --noheadings -o vg_name")?;
        ensure!(groups.trim() == "stowage-standard", "the groups of {node} are {groups:?}");
        tell.shown(&format!("{node}# vgs"), &site.node_sh(&node, "vgs")?);
    }
    tell.seen("no LV, no LogicalVolume, no PersistentVolume is left; the groups stay");
    Ok(())
}
