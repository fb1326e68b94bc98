//! Live reads of the claims on a lost node.

use std::{collections::BTreeMap, sync::Arc};

use crds::logical_volume::LogicalVolume;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim},
};
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::Policies;
use crate::{
    claim::{self, ClaimFacts, ClaimVerdict},
    tell::Survey,
};

/// So many reads at a time.
const AT_ONCE: usize = 8;

/// What a namespace says, and the sets in it.
#[derive(Clone, Debug, Default)]
pub struct Around {
    namespace: Option<Namespace>,
    sets: Vec<StatefulSet>,
}

pub async fn around(client: &Client, namespace: &str) -> Result<Around, kube::Error> {
    Ok(Around {
        namespace: Api::<Namespace>::all(client.clone()).get_opt(namespace).await?,
        sets: Api::<StatefulSet>::namespaced(client.clone(), namespace).list(&ListParams::default()).await?.items,
    })
}

/// A claim as it was just read, and what is to become of it.
#[derive(Clone, Debug)]
pub struct Read {
    pub claim: PersistentVolumeClaim,
    pub verdict: ClaimVerdict,
}

/// `None`: the volume has no claim, or it is gone.
pub async fn claim(
    client: &Client,
    node: &str,
    volume: &LogicalVolume,
    around: &Around,
    policies: &Policies,
) -> Result<Option<Read>, kube::Error> {
    let Some(named) = &volume.spec.claim else { return Ok(None) };
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &named.namespace);
    let Some(claim) = claims.get_opt(&named.name).await? else { return Ok(None) };
    let bound_to = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).filter(|name| !name.is_empty());
    let bound = match bound_to {
        Some(name) => Api::<PersistentVolume>::all(client.clone()).get_opt(&name).await?,
        None => None,
    };
    let verdict = claim::judge(&ClaimFacts {
        node,
        volume: &volume.name_any(),
        claim: &claim,
        bound: bound.as_ref(),
        namespace: around.namespace.as_ref(),
        stateful_sets: &around.sets,
        policies: policies.of(volume),
    });
    Ok(Some(Read { claim, verdict }))
}

/// `<namespace>/<name>`
pub fn title(claim: &PersistentVolumeClaim) -> String {
    format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any())
}

pub async fn survey(
    client: &Client,
    node: &str,
    volumes: &[Arc<LogicalVolume>],
    policies: &Policies,
) -> Result<Survey, kube::Error> {
    let all = all(client, node, volumes, policies).await?;
    let mut survey = Survey { claimless: volumes.len().saturating_sub(all.len()), ..Survey::default() };
    for (_, read) in all {
        let title = title(&read.claim);
        match read.verdict {
            ClaimVerdict::Delete | ClaimVerdict::DeleteItsPod { .. } => survey.delete.push(title),
            ClaimVerdict::Keep(why) => {
                survey.keep.insert(title, why);
            }
            ClaimVerdict::NotOurs => {}
        }
    }
    survey.delete.sort();
    Ok(survey)
}

/// Every claim of `volumes` that is there.
pub async fn all(
    client: &Client,
    node: &str,
    volumes: &[Arc<LogicalVolume>],
    policies: &Policies,
) -> Result<Vec<(Arc<LogicalVolume>, Read)>, kube::Error> {
    let mut namespaces = BTreeMap::new();
    for named in volumes.iter().filter_map(|volume| volume.spec.claim.as_ref()) {
        if !namespaces.contains_key(&named.namespace) {
            namespaces.insert(named.namespace.clone(), around(client, &named.namespace).await?);
        }
    }
    let nothing = Around::default();
    // Not by a closure: the compiler does not see that its futures may go to another thread.
    let mut reads = Vec::new();
    for volume in volumes {
        let namespace = volume.spec.claim.as_ref().map(|claim| claim.namespace.as_str()).unwrap_or_default();
        let around = namespaces.get(namespace).unwrap_or(&nothing);
        reads.push(one(client, node, volume, around, policies));
    }
    let found: Vec<Option<(Arc<LogicalVolume>, Read)>> =
        stream::iter(reads).buffer_unordered(AT_ONCE).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

async fn one(
    client: &Client,
    node: &str,
    volume: &Arc<LogicalVolume>,
    around: &Around,
    policies: &Policies,
) -> Result<Option<(Arc<LogicalVolume>, Read)>, kube::Error> {
    Ok(claim(client, node, volume, around, policies).await?.map(|read| (volume.clone(), read)))
}
