//! A node is gone for good.

use std::time::Instant;

use anyhow::{Context, ensure};

use super::PATIENCE;
use crate::{
    api::{condition, message, wait_for},
    site::Site,
    tell::Tell,
};

/// How the node is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The power is cut.
    PowerOff,
    /// The machine runs on, but nobody reaches it and it reaches nobody.
    CutOff,
}

pub fn the_set_starts_elsewhere(site: &mut Site, tell: &Tell, node: &str, way: Way) -> anyhow::Result<()> {
    site.exec("db-0", "echo lost > /data/word && sync")?;
    let pod = site.pod_uid("db-0")?;
    let claim = site.claim("data-db-0")?.context("the claim is gone")?;
    let claim_uid = claim["metadata"]["uid"].as_str().context("the claim has no UID")?.to_owned();
    let volume = claim["spec"]["volumeName"].as_str().context("the claim is not bound")?.to_owned();

    match way {
        Way::PowerOff => site.power_off(node)?,
        Way::CutOff => site.cut_link(node)?,
    }
    let began = Instant::now();
    site.kubectl(&["delete", "node", node, "--wait=false"])?;

    site.wait_pod_running("db-0", &pod)?;
    let now_on = site.node_of_pod("db-0")?;
    ensure!(now_on != node, "db-0 is said to run on the lost {node}");
    tell.seen(&format!("db-0 runs on {now_on}, {:.0} s after {node} was deleted", began.elapsed().as_secs_f64()));

    let found = site.exec("db-0", "ls -A /data; echo end")?;
    ensure!(!found.contains("word"), "the new volume is not empty: {found:?}");
    let new_claim = site.claim("data-db-0")?.context("the claim is gone")?;
    ensure!(new_claim["metadata"]["uid"] != claim_uid.as_str(), "the claim was not replaced");
    tell.seen("its claim is a new one, its volume empty");

    wait_for(&format!("the old volume {volume} is gone"), PATIENCE, || {
        let persistent = site.api().get(&format!("/api/v1/persistentvolumes/{volume}"))?;
        let logical = site.api().get(&format!("/apis/stowage.dev/v1alpha1/logicalvolumes/{volume}"))?;
        Ok((persistent.is_none() && logical.is_none()).then_some(()))
    })?;
    let storage = wait_for(&format!("the NodeStorage of {node} says that it is lost"), PATIENCE, || {
        let storage = site.node_storage(node)?;
        let told = storage["status"]["loss"]["releasedClaims"]
            .as_array()
            .is_some_and(|claims| claims.iter().any(|claim| claim == "default/data-db-0"));
        let will_be_forgotten = storage["status"]["loss"]["forgetAt"].is_string();
        Ok((condition(&storage, "NodeLost") == "True" && told && will_be_forgotten).then_some(storage))
    })?;
    tell.seen(&format!("the NodeStorage of {node}: {}", message(&storage, "NodeLost")));
    ensure!(site.capacity_of(node)?.is_none(), "capacity of the lost {node} is still published");
    tell.shown("kubectl get nodestorages", &site.kubectl(&["get", "nodestorages"])?);
    Ok(())
}
