//! Which block devices there are, by lsblk and sysfs: what they are, what they are made of, who they belong to.
//! Nothing is opened here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    disk::{
        Claim, Content, Disk,
        identity::{Marks, identity},
        system::{SystemDevices, boot_partition},
    },
    lvm::config,
    mount::table::device_number,
    name::Bytes,
    run::{Argv, Run, RunError},
};

#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("listing block devices")]
    Run(#[from] RunError),
    #[error("reading the list of block devices")]
    Rows(#[from] serde_json::Error),
    #[error("reading {path}")]
    Sysfs { path: PathBuf, source: std::io::Error },
}

/// A device in the words of lsblk, whose JSON has strings, numbers or booleans depending on its release.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Row {
    #[serde(deserialize_with = "required")]
    pub kname: String,
    #[serde(rename = "maj:min", deserialize_with = "required")]
    pub number: String,
    #[serde(rename = "type", deserialize_with = "required")]
    pub kind: String,
    #[serde(default, deserialize_with = "loose")]
    pub size: Option<String>,
    #[serde(default, deserialize_with = "loose")]
    pub ro: Option<String>,
    #[serde(default, deserialize_with = "loose")]
    pub rota: Option<String>,
    #[serde(default, deserialize_with = "loose")]
    pub model: Option<String>,
    #[serde(default, deserialize_with = "loose")]
    pub vendor: Option<String>,
    #[serde(default, deserialize_with = "loose")]
    pub serial: Option<String>,
    #[serde(default, deserialize_with = "loose")]
    pub wwn: Option<String>,
    #[serde(default, deserialize_with = "loose")]
    pub tran: Option<String>,
    #[serde(default, deserialize_with = "loose")]
    pub parttype: Option<String>,
}

#[derive(Deserialize)]
struct Rows {
    blockdevices: Vec<Row>,
}

fn loose<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(match Option::<serde_json::Value>::deserialize(from)? {
        Some(serde_json::Value::String(text)) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        Some(other @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_))) => Some(other.to_string()),
        Some(serde_json::Value::Null | serde_json::Value::Array(_) | serde_json::Value::Object(_)) | None => None,
    })
}

fn required<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    loose(from)?.ok_or_else(|| D::Error::custom("a device without name, number or type"))
}

/// What sysfs and `/dev` add to a row.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The device that this is a partition of, and its number there.
    pub partition_of: Option<(String, String)>,
    pub slaves: Vec<String>,
    pub holders: Vec<String>,
    pub driver: Option<String>,
    pub wwid: Option<String>,
    pub serial: Option<String>,
    pub dm_uuid: Option<String>,
    pub backing: Option<String>,
    /// Whether the file behind a loop device is itself a device.
    pub on_device: bool,
    /// How an NVMe controller is attached, where it is not by PCIe.
    pub fabric: Option<String>,
    pub links: Vec<PathBuf>,
    /// udev runs, and has not told of this device yet: what it is called may still change.
    pub unsettled: bool,
}

/// All block devices that are any.
pub async fn list(run: &impl Run) -> Result<Vec<(Row, Surroundings)>, ListError> {
    let argv = Argv::new("/usr/bin/lsblk").args([
        "--json",
        "--list",
        "--bytes",
        "--all",
        "--output=KNAME,MAJ:MIN,TYPE,SIZE,RO,ROTA,MODEL,VENDOR,SERIAL,WWN,TRAN,PARTTYPE",
    ]);
    let rows = parse(&run.run(argv).await?.stdout)?;
    // The file behind a loop device may be on a file system that does not answer.
    let around = tokio::task::spawn_blocking(move || around(rows)).await;
    around.map_err(|err| ListError::Sysfs { path: "/sys/class/block".into(), source: std::io::Error::other(err) })?
}

fn around(rows: Vec<Row>) -> Result<Vec<(Row, Surroundings)>, ListError> {
    let (links, has_udev) = (links(), config::has_udev());
    rows.into_iter()
        .map(|row| {
            let mut around = surroundings(&row.kname, links.get(&row.kname).cloned().unwrap_or_default())?;
            around.unsettled = has_udev && !Path::new("/run/udev/data").join(format!("b{}", row.number)).exists();
            Ok((row, around))
        })
        .collect()
}

/// The rows of lsblk, each device once: one with several parents is listed below each of them.
fn parse(json: &str) -> Result<Vec<Row>, serde_json::Error> {
    let mut seen = BTreeSet::new();
    let rows = serde_json::from_str::<Rows>(json)?.blockdevices;
    Ok(rows.into_iter().filter(|row| seen.insert(row.kname.clone()) && !is_none(row)).collect())
}

/// Devices that exist in name only: a loop, zram, ram or nbd device to which nothing is bound.
fn is_none(row: &Row) -> bool {
    let unbound = ["loop", "zram", "ram", "nbd"]
        .iter()
        .any(|name| row.kname.strip_prefix(name).is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit())));
    unbound && row.size.as_deref().is_none_or(|size| size == "0")
}

fn surroundings(kernel: &str, links: Vec<PathBuf>) -> Result<Surroundings, ListError> {
    // A name with a slash (cciss/c0d0) has an exclamation mark in sysfs.
    let folder = Path::new("/sys/class/block").join(kernel.replace('/', "!"));
    let text = |name: &str| {
        fs::read_to_string(folder.join(name)).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let names = |name: &str| match fs::read_dir(folder.join(name)) {
        // Partitions have no `slaves`, and a device may be gone by now.
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(ListError::Sysfs { path: folder.join(name), source }),
        Ok(entries) => {
            Ok(entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().replace('!', "/"))).collect())
        }
    };
    let partition_of = text("partition").and_then(|number| {
        let real = fs::canonicalize(&folder).ok()?;
        Some((real.parent()?.file_name()?.to_string_lossy().replace('!', "/"), number))
    });
    let driver = fs::read_link(folder.join("device/driver"))
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let backing = text("loop/backing_file");
    let on_device = backing.as_deref().is_some_and(is_device);
    Ok(Surroundings {
        partition_of,
        slaves: names("slaves")?,
        holders: names("holders")?,
        driver,
        wwid: text("wwid").or_else(|| text("device/wwid")),
        serial: text("serial").or_else(|| text("device/serial")),
        dm_uuid: text("dm/uuid"),
        backing,
        on_device,
        fabric: text("device/transport").filter(|transport| transport != "pcie"),
        links,
        unsettled: false,
    })
}

/// By its path too: the file may be one that this process does not see.
fn is_device(path: &str) -> bool {
    path.starts_with("/dev/") || fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// Stable paths by the kernel's name of what they lead to.
fn links() -> BTreeMap<String, Vec<PathBuf>> {
    let mut all = BTreeMap::<String, Vec<PathBuf>>::new();
    for folder in
        ["/dev/disk/by-id", "/dev/disk/by-path", "/dev/disk/by-partuuid", "/dev/disk/by-partlabel", "/dev/mapper"]
    {
        // Without udev, or without such devices, there is no such folder.
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for link in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let Some(target) = fs::read_link(&link).ok().and_then(|to| Some(to.file_name()?.to_os_string())) else {
                continue;
            };
            all.entry(target.to_string_lossy().into_owned()).or_default().push(link);
        }
    }
    all.values_mut().for_each(|links| links.sort_by_cached_key(|link| (rank(link), link.clone())));
    all
}

/// Which of several paths is shown: the one that says most of the device, and never one that LVM's own label made.
fn rank(link: &Path) -> u8 {
    let name = link.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let by_id = link.starts_with("/dev/disk/by-id");
    match name.as_ref() {
        name if by_id && name.starts_with("lvm-pv-uuid-") => 9,
        name if by_id && ["wwn-", "nvme-eui.", "nvme-uuid.", "dm-uuid-"].iter().any(|p| name.starts_with(p)) => 0,
        _ if by_id => 1,
        _ if link.starts_with("/dev/disk/by-path") => 2,
        _ if link.starts_with("/dev/disk/by-partuuid") => 3,
        _ if link.starts_with("/dev/mapper") => 4,
        _ => 5,
    }
}

/// The devices, not looked at yet. Pure.
pub fn describe(found: &[(Row, Surroundings)], system: &SystemDevices, kubelet_root: &Path) -> Vec<Disk> {
    let by_name = found.iter().map(|(row, around)| (row.kname.as_str(), (row, around))).collect::<BTreeMap<_, _>>();
    let names = identities(&by_name);
    let untouchable = untouchable(&by_name, system);
    found
        .iter()
        .filter(|(row, around)| !is_lv(&row.kind, around))
        .map(|(row, around)| {
            let down = ancestry(&row.kname, &by_name);
            Disk {
                id: names.get(row.kname.as_str()).cloned().unwrap_or_default(),
                kernel: row.kname.clone(),
                node: Path::new("/dev").join(&row.kname),
                links: around.links.clone(),
                number: device_number(&row.number).unwrap_or_default(),
                size: Bytes(row.size.as_deref().and_then(|size| size.parse().ok()).unwrap_or_default()),
                kind: row.kind.clone(),
                model: row.model.clone(),
                vendor: row.vendor.clone(),
                serial: row.serial.clone().or_else(|| around.serial.clone()),
                transport: transport(row, around),
                made_of: down
                    .iter()
                    .filter_map(|name| by_name.get(name))
                    .flat_map(|(row, around)| kinds(row, around))
                    .collect(),
                rotational: is_yes(row.rota.as_deref()),
                read_only: is_yes(row.ro.as_deref()),
                below: parents(around).map(str::to_owned).collect(),
                above: around
                    .holders
                    .iter()
                    .filter(|holder| by_name.get(holder.as_str()).is_none_or(|(row, around)| !is_lv(&row.kind, around)))
                    .cloned()
                    .collect(),
                partitions: found
                    .iter()
                    .filter(|(_, part)| part.partition_of.as_ref().is_some_and(|(of, _)| *of == row.kname))
                    .count(),
                system: untouchable.get(row.kname.as_str()).cloned(),
                inner: down.iter().find_map(|name| inner(*by_name.get(name)?, kubelet_root)),
                content: if around.unsettled {
                    Content::Unknown("udev has not finished with it yet".to_owned())
                } else {
                    Content::Claimed(Claim::NotLookedAt)
                },
            }
        })
        .collect()
}

/// Why something that a device is made of belongs to a volume or a pod. B3.
fn inner((row, around): (&Row, &Surroundings), kubelet_root: &Path) -> Option<String> {
    if is_lv(&row.kind, around) {
        return Some(format!("it lies on the LVM volume {}", row.kname));
    }
    let backing = around.backing.as_deref()?;
    let kubelets = Path::new(backing).starts_with(kubelet_root);
    (kubelets || around.on_device).then(|| format!("{} is a loop device on {backing}", row.kname))
}

fn is_yes(text: Option<&str>) -> bool {
    matches!(text, Some("1" | "true"))
}

/// LVs are no devices to be taken, listed or scanned: they are the content of a group.
fn is_lv(kind: &str, around: &Surroundings) -> bool {
    kind == "lvm" || around.dm_uuid.as_deref().is_some_and(|uuid| uuid.starts_with("LVM-"))
}

fn transport(row: &Row, around: &Surroundings) -> Option<String> {
    around.fabric.clone().or_else(|| row.tran.clone()).or_else(|| {
        // lsblk knows no transport of virtio disks.
        (around.driver.as_deref() == Some("virtio_blk")).then(|| "virtio".to_owned())
    })
}

/// Words by which a deny list may name a device: its transport, its driver, and the kernel's name without numbers.
fn kinds(row: &Row, around: &Surroundings) -> Vec<String> {
    let family = row.kname.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    let family = family.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    // ublk's disks are called ublkb0.
    let family = if family == "ublkb" { "ublk" } else { family };
    [transport(row, around), around.driver.clone(), Some(family.to_owned())].into_iter().flatten().collect()
}

fn parents(around: &Surroundings) -> impl Iterator<Item = &str> {
    around.partition_of.iter().map(|(of, _)| of.as_str()).chain(around.slaves.iter().map(String::as_str))
}

type ByName<'a> = BTreeMap<&'a str, (&'a Row, &'a Surroundings)>;

/// A device and everything that it is made of.
fn ancestry<'a>(kernel: &'a str, by_name: &ByName<'a>) -> BTreeSet<&'a str> {
    let mut all = BTreeSet::from([kernel]);
    let mut next = vec![kernel];
    while let Some(name) = next.pop() {
        let around = by_name.get(name).map(|(_, around)| *around);
        next.extend(around.into_iter().flat_map(parents).filter(|parent| all.insert(parent)));
    }
    all
}

fn identities<'a>(by_name: &ByName<'a>) -> BTreeMap<&'a str, String> {
    let name = |row: &Row, around: &Surroundings, whole: Option<(&str, &str)>| {
        identity(&Marks {
            kernel: &row.kname,
            partition_of: whole,
            wwn: row.wwn.as_deref().or(around.wwid.as_deref()),
            model: row.model.as_deref(),
            serial: row.serial.as_deref().or(around.serial.as_deref()),
            transport: transport(row, around).as_deref(),
            driver: around.driver.as_deref(),
            dm_uuid: around.dm_uuid.as_deref(),
            backing: around.backing.as_deref(),
            links: &around.links,
        })
    };
    let whole = by_name
        .iter()
        .filter(|(_, (_, around))| around.partition_of.is_none())
        .filter_map(|(kernel, (row, around))| Some((*kernel, name(row, around, None)?)))
        .collect::<BTreeMap<_, _>>();
    let parts = by_name.iter().filter_map(|(kernel, (row, around))| {
        let (of, number) = around.partition_of.as_ref()?;
        Some((*kernel, name(row, around, Some((whole.get(of.as_str())?, number)))?))
    });
    let parts = parts.collect::<Vec<_>>();
    whole.into_iter().chain(parts).collect()
}

/// Every device under something that this node runs from, and why.
fn untouchable<'a>(by_name: &ByName<'a>, system: &SystemDevices) -> BTreeMap<&'a str, String> {
    let mut all = BTreeMap::new();
    for (kernel, (row, around)) in by_name {
        let boot = row.parttype.as_deref().and_then(boot_partition);
        let why = device_number(&row.number)
            .and_then(|number| system.get(&number).cloned())
            .or_else(|| boot.map(|what| format!("{what} is on it")));
        let Some(why) = why else { continue };
        // A boot partition makes its disk untouchable, and with it the disk's other partitions.
        let disk = around.partition_of.as_ref().filter(|_| boot.is_some()).map(|(of, _)| of.as_str());
        let beside = by_name
            .iter()
            .filter(|(_, (_, other))| disk.is_some() && other.partition_of.as_ref().map(|(of, _)| of.as_str()) == disk);
        for name in ancestry(kernel, by_name).into_iter().chain(beside.map(|(name, _)| *name)) {
            all.entry(name).or_insert_with(|| why.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests;
