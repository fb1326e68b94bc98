//! Makes, grows and removes the LV of one volume.

use crate::{
    dm,
    lvm::{
        command,
        report::{Group, Lv, ReportError},
    },
    mount::table::{Table, TableError},
    name::{BadName, Bytes, LvmUuid, VolumeKey},
    node::{GroupError, Node},
    plan::volumes::{self, Creation, NewVolume, VolumeError, find, own_tags},
    run::{Run, RunError},
    turn::Subject,
};

#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error("seeing what came of it")]
    Report(#[from] ReportError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("LVM said nothing, and the LV is not as it should be")]
    NotDone,
    #[error("the group of volume {name} ({group}) is not on this node: its LV is not counted as gone")]
    GroupMissing { name: String, group: String },
    #[error("the volume group {group} vanished while it was changed")]
    Vanished { group: String },
    #[error("volume {name} is in use: {by}")]
    InUse { name: String, by: String },
    #[error("looking who uses the volume")]
    Holder(#[source] std::io::Error),
    #[error("looking who uses the volume")]
    Table(#[from] TableError),
}

impl From<BadName> for ChangeError {
    fn from(err: BadName) -> Self {
        Self::Volume(err.into())
    }
}

/// An LV and its group as they are now.
#[derive(Clone, Debug)]
pub struct Made {
    pub group: Group,
    pub lv: Lv,
}

impl<R: Run> Node<R> {
    /// The group of a volume as it is remembered, if what is to be done can be decided by that; else as LVM says it is.
    async fn group_for<T, E>(
        &self,
        key: &VolumeKey,
        decide: impl Fn(&Group) -> Result<T, E>,
    ) -> Result<Group, ChangeError> {
        let none = || VolumeError::NoGroup { class: key.class.to_string() };
        match self.group(&key.cluster, &key.class).await? {
            Some(group) if decide(&group).is_ok() => Ok(group),
            Some(_) => Ok(self.asked_group(&key.cluster, &key.class).await?.ok_or_else(none)?),
            None => Err(none().into()),
        }
    }

    /// Makes the volume, or finds it.
    pub async fn create_volume(&self, new: &NewVolume) -> Result<Made, ChangeError> {
        let _turn = self.turns.wait(Subject::Group(new.key.class.to_string())).await;
        let group = self.group_for(&new.key, |group| volumes::create(group, new).map(drop)).await?;
        let argv = match volumes::create(&group, new)? {
            Creation::Found(lv) => return Ok(Made { lv: lv.clone(), group }),
            Creation::Make { name, extents, tags } => command::create_volume(&group, &name, extents, &tags),
            Creation::Adopt { lv, tags } => command::change_tags(&group, lv, [], &tags),
        };
        let outcome = self.run.run(argv).await;
        // Whatever the command said, the group says what came of it: an LV, or the reason why there is none.
        let group = self.reported(&group).await?;
        match (volumes::create(&group, new)?, outcome) {
            (Creation::Found(lv), _) => Ok(Made { lv: lv.clone(), group }),
            (Creation::Make { .. } | Creation::Adopt { .. }, Err(err)) => Err(err.into()),
            (Creation::Make { .. } | Creation::Adopt { .. }, Ok(_)) => Err(ChangeError::NotDone),
        }
    }

    /// Grows the LV to at least `size`.
    pub async fn grow_volume(
        &self,
        key: &VolumeKey,
        uuid: Option<&LvmUuid>,
        size: Bytes,
        reserve: Bytes,
    ) -> Result<Made, ChangeError> {
        let _turn = self.turns.wait(Subject::Group(key.class.to_string())).await;
        let decide = |group: &Group| volumes::grow(group, existing(group, key, uuid)?, size, reserve);
        let group = self.group_for(key, decide).await?;
        let lv = existing(&group, key, uuid)?;
        let Some(extents) = volumes::grow(&group, lv, size, reserve)? else {
            return Ok(Made { lv: lv.clone(), group });
        };
        let outcome = self.run.run(command::extend_volume(&group, lv, extents)).await;
        let group = self.reported(&group).await?;
        let lv = existing(&group, key, uuid)?.clone();
        match (volumes::grow(&group, &lv, size, reserve)?, outcome) {
            (None, _) => Ok(Made { lv, group }),
            (Some(_), Err(err)) => Err(err.into()),
            (Some(_), Ok(_)) => Err(ChangeError::NotDone),
        }
    }

    /// Removes the LV, or finds it gone.
    pub async fn delete_volume(
        &self,
        key: &VolumeKey,
        vg: Option<&LvmUuid>,
        lv: Option<&LvmUuid>,
    ) -> Result<(), ChangeError> {
        let _turn = self.turns.wait(Subject::Group(key.class.to_string())).await;
        let there = |group: &Group| vg.is_none_or(|vg| group.uuid == *vg);
        let found = |group: &Group| there(group) && matches!(volumes::remove(group, key, lv), Ok(Some(_)));
        let group = match self.group(&key.cluster, &key.class).await? {
            Some(group) if found(&group) => Some(group),
            // "Not there" counts only when LVM has just said so.
            Some(_) | None => self.asked_group(&key.cluster, &key.class).await?.filter(there),
        };
        let group = match (group, vg) {
            (Some(group), _) => group,
            // No LV was ever reported, and a whole look finds no group that could have one.
            (None, None) if lv.is_none() => return Ok(()),
            (None, vg) => {
                let group = vg.map_or_else(|| format!("of DeviceClass {}", key.class), LvmUuid::to_string);
                return Err(ChangeError::GroupMissing { name: key.name.to_string(), group });
            }
        };
        let Some(found) = volumes::remove(&group, key, lv)? else { return Ok(()) };
        if let Some(active) = dm::of(&found.uuid).map_err(ChangeError::Holder)?
            && let Some(by) = user(&active).await?
        {
            return Err(ChangeError::InUse { name: key.name.to_string(), by });
        }
        let outcome = self.run.run(command::remove_volume(&group, &found.uuid, &own_tags(key)?)).await;
        let now = self.reported(&group).await?;
        match (now.lvs.iter().any(|lv| lv.uuid == found.uuid), outcome) {
            (false, _) => Ok(()),
            (true, Err(err)) => Err(err.into()),
            (true, Ok(_)) => Err(ChangeError::NotDone),
        }
    }

    /// The group after an own command.
    async fn reported(&self, group: &Group) -> Result<Group, ChangeError> {
        self.after(group).await?.ok_or_else(|| ChangeError::Vanished { group: group.name.to_string() })
    }
}

fn existing<'a>(group: &'a Group, key: &VolumeKey, uuid: Option<&LvmUuid>) -> Result<&'a Lv, VolumeError> {
    let name = || key.name.to_string();
    let lv = find(group, key)?.ok_or_else(|| VolumeError::NotFound { name: name() })?;
    match uuid {
        Some(asked) if *asked != lv.uuid => {
            Err(VolumeError::OtherLv { name: name(), found: lv.uuid.clone(), asked: asked.clone() })
        }
        Some(_) | None => Ok(lv),
    }
}

/// Who uses an active LV, in words.
async fn user(active: &dm::Active) -> Result<Option<String>, ChangeError> {
    let table = Table::read()?;
    if let Some(mount) = table.of(active.number).next() {
        return Ok(Some(format!("it is mounted at {}", mount.point.display())));
    }
    let holders = dm::holders(active);
    if !holders.is_empty() {
        return Ok(Some(format!("{} is made of it", holders.join(", "))));
    }
    let device = active.clone();
    let held = tokio::task::spawn_blocking(move || dm::is_held(&device)).await;
    let held = held.map_err(std::io::Error::other).and_then(|held| held).map_err(ChangeError::Holder)?;
    Ok(held.then(|| "a program or another mount namespace of this node has it open".to_owned()))
}
