//! What LVM reports: groups with their PVs and LVs, from one `lvm fullreport`.
//!
//! Strict: a row that can not be read fails the report. A group that goes missing from it would be made anew, an LV
//! that goes missing would count as deleted.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    name::{BadName, Bytes, LvmUuid, VgName},
    run::{Argv, Run, RunError},
};

/// A volume group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: VgName,
    pub uuid: LvmUuid,
    /// Counts the changes of its metadata.
    pub seqno: u64,
    pub tags: BTreeSet<String>,
    pub extent: Bytes,
    pub extents: u64,
    pub free: u64,
    pub missing: u64,
    /// Why LVM refuses changes: another system's ID, exported, shared by lvmlockd.
    pub foreign: Option<String>,
    pub pvs: Vec<Pv>,
    pub lvs: Vec<Lv>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pv {
    pub uuid: LvmUuid,
    /// `None`: the device is missing.
    pub node: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lv {
    pub name: String,
    pub uuid: LvmUuid,
    pub size: Bytes,
    pub tags: BTreeSet<String>,
}

/// Groups, and PVs in no group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    pub groups: Vec<Group>,
    pub orphans: Vec<LvmUuid>,
}

impl Group {
    pub fn size(&self) -> Bytes {
        Bytes(self.extents * self.extent.0)
    }

    pub fn has_tag(&self, key: &str, value: &str) -> bool {
        has_tag(&self.tags, key, value)
    }

    pub fn tag(&self, key: &str) -> Option<&str> {
        tag(&self.tags, key)
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Path> {
        self.pvs.iter().filter_map(|pv| pv.node.as_deref())
    }
}

impl Lv {
    pub fn has_tag(&self, key: &str, value: &str) -> bool {
        has_tag(&self.tags, key, value)
    }

    pub fn tag(&self, key: &str) -> Option<&str> {
        tag(&self.tags, key)
    }
}

fn has_tag(tags: &BTreeSet<String>, key: &str, value: &str) -> bool {
    tags.contains(&format!("{key}={value}"))
}

fn tag<'a>(tags: &'a BTreeSet<String>, key: &str) -> Option<&'a str> {
    tags.iter().find_map(|tag| tag.strip_prefix(key)?.strip_prefix('='))
}

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("asking LVM for its groups")]
    Run(#[from] RunError),
    #[error("reading LVM's report")]
    Json(#[from] serde_json::Error),
    #[error("reading LVM's report")]
    Name(#[from] BadName),
}

/// Everything on these PVs. Without a device LVM is not asked: it would fall back to all of them.
pub async fn groups(run: &impl Run, nodes: &[&Path]) -> Result<Groups, ReportError> {
    if nodes.is_empty() {
        return Ok(Groups::default());
    }
    parse(&run.run(argv(nodes)).await?.stdout)
}

pub fn argv(nodes: &[&Path]) -> Argv {
    Argv::lvm("fullreport", nodes.iter().copied()).args([
        "--reportformat=json",
        // Groups of other systems and shared ones are left alone, which they can only be when they are seen.
        "--foreign",
        "--shared",
        "--units=b",
        "--nosuffix",
        "--configreport=vg",
        "--options=vg_name,vg_uuid,vg_tags,vg_extent_size,vg_extent_count,vg_free_count,vg_missing_pv_count,vg_systemid,vg_exported,vg_shared,vg_seqno",
        "--configreport=pv",
        "--options=pv_name,pv_uuid,pv_missing",
        "--configreport=lv",
        "--options=lv_name,lv_uuid,lv_size,lv_tags",
        // Not wanted, and not to be left out.
        "--configreport=pvseg",
        "--options=pv_name",
        "--configreport=seg",
        "--options=segtype",
    ])
}

#[derive(Deserialize)]
struct Document {
    report: Vec<Section>,
}

#[derive(Deserialize)]
struct Section {
    #[serde(default)]
    vg: Vec<VgRow>,
    #[serde(default)]
    pv: Vec<PvRow>,
    #[serde(default)]
    lv: Vec<LvRow>,
}

#[derive(Deserialize)]
struct VgRow {
    vg_name: String,
    vg_uuid: String,
    vg_tags: String,
    #[serde(deserialize_with = "number")]
    vg_extent_size: u64,
    #[serde(deserialize_with = "number")]
    vg_extent_count: u64,
    #[serde(deserialize_with = "number")]
    vg_free_count: u64,
    #[serde(deserialize_with = "number")]
    vg_missing_pv_count: u64,
    vg_systemid: String,
    vg_exported: String,
    vg_shared: String,
    #[serde(deserialize_with = "number")]
    vg_seqno: u64,
}

#[derive(Deserialize)]
struct PvRow {
    pv_name: String,
    pv_uuid: String,
    pv_missing: String,
}

#[derive(Deserialize)]
struct LvRow {
    lv_name: String,
    lv_uuid: String,
    #[serde(deserialize_with = "number")]
    lv_size: u64,
    lv_tags: String,
}

/// LVM writes numbers as strings in its JSON.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|err| D::Error::custom(format!("{text:?} is not a number: {err}")))
}

pub fn parse(json: &str) -> Result<Groups, ReportError> {
    let mut all = Groups::default();
    for section in serde_json::from_str::<Document>(json)?.report {
        let mut vgs = section.vg.into_iter();
        let Some(vg) = vgs.next() else {
            for pv in section.pv {
                all.orphans.push(LvmUuid::try_from(pv.pv_uuid)?);
            }
            continue;
        };
        let foreign = [
            (vg.vg_systemid.as_str(), "it has another system's ID"),
            (vg.vg_exported.as_str(), "it is exported"),
            (vg.vg_shared.as_str(), "it is shared between machines"),
        ];
        all.groups.push(Group {
            name: VgName::try_from(vg.vg_name)?,
            uuid: LvmUuid::try_from(vg.vg_uuid)?,
            seqno: vg.vg_seqno,
            tags: tags(&vg.vg_tags),
            extent: Bytes(vg.vg_extent_size),
            extents: vg.vg_extent_count,
            free: vg.vg_free_count,
            missing: vg.vg_missing_pv_count,
            foreign: foreign.iter().find(|(mark, _)| !mark.is_empty()).map(|(_, what)| (*what).to_owned()),
            pvs: section.pv.into_iter().map(pv).collect::<Result<_, _>>()?,
            lvs: section.lv.into_iter().map(lv).collect::<Result<_, _>>()?,
        });
    }
    Ok(all)
}

fn pv(row: PvRow) -> Result<Pv, BadName> {
    // A missing PV is called `[unknown]`.
    let here = row.pv_missing.is_empty() && row.pv_name.starts_with("/dev/");
    Ok(Pv { uuid: LvmUuid::try_from(row.pv_uuid)?, node: here.then(|| PathBuf::from(row.pv_name)) })
}

fn lv(row: LvRow) -> Result<Lv, BadName> {
    Ok(Lv {
        name: row.lv_name,
        uuid: LvmUuid::try_from(row.lv_uuid)?,
        size: Bytes(row.lv_size),
        tags: tags(&row.lv_tags),
    })
}

fn tags(list: &str) -> BTreeSet<String> {
    list.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_report_is_read() {
        let all = parse(include_str!("../../tests/fixtures/lvm/groups.json")).unwrap();
        let [group] = all.groups.as_slice() else { panic!("{all:?}") };
        assert_eq!(group.name.as_str(), "stowage-fast");
        assert!(group.has_tag("stowage.class", "fast") && group.tag("stowage.cluster") == Some("x"));
        assert_eq!((group.extents, group.free, group.missing, group.extent), (28, 7, 0, Bytes(4 << 20)));
        assert_eq!(group.nodes().count(), 2);
        assert_eq!(group.lvs[0].tag("stowage.volume"), Some("pvc-1"));
        assert_eq!(group.lvs[0].size, Bytes(12 << 20));
        assert_eq!(all.orphans.len(), 1);
    }

    #[test]
    fn a_group_with_a_missing_pv_keeps_it_in_the_list() {
        let all = parse(include_str!("../../tests/fixtures/lvm/missing-pv.json")).unwrap();
        let group = &all.groups[0];
        assert_eq!((group.missing, group.pvs.len(), group.nodes().count()), (1, 2, 1));
    }

    #[test]
    fn a_row_that_can_not_be_read_fails_the_report() {
        let whole = include_str!("../../tests/fixtures/lvm/groups.json");
        for (from, to) in [(r#""28""#, r#""many""#), ("lv_uuid", "lv_id"), ("stowage-fast", "-x")] {
            assert!(parse(&whole.replace(from, to)).is_err(), "{from}");
        }
        assert!(parse("").is_err());
    }

    #[tokio::test]
    async fn lvm_is_not_asked_when_there_is_no_pv() {
        let run = crate::run::Recorded::default();
        assert_eq!(groups(&run, &[]).await.unwrap(), Groups::default());
    }
}
