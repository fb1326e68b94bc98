//! The real LVM on loop devices, told that there is no device-mapper: it writes its metadata to the disks and activates
//! nothing. Needs root. Every file, device and group carries the test's prefix and is removed by Drop; `KEEP=1` leaves
//! them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use crds::{names::tag, node_storage::DeviceState};
use lvmd::{
    carry_out::{Done, carry_out},
    lvm::{config, report},
    name::{Bytes, ClassName, ClusterId, LvmUuid, VolumeKey, VolumeName},
    node::{GroupError, Node},
    plan::{
        groups::{Plan, Step, plan},
        say,
        volumes::{NewVolume, VolumeError},
        wanted::Wanted,
    },
    report::Report,
    run::{Argv, HostLock, Output, Run, RunError, System},
    volume::ChangeError,
};
use rustix::fs::{Mode, OFlags};
use serde_json::json;

/// The real programs, LVM without device-mapper; keeps what was started.
struct MetadataOnly {
    system: System,
    started: Mutex<Vec<String>>,
    /// A command that is to be cut off before it is started, as by a power cut.
    cut: Mutex<Option<&'static str>>,
}

impl Run for MetadataOnly {
    async fn run(&self, argv: Argv) -> Result<Output, RunError> {
        let argv = if argv.is_lvm() { argv.arg("--driverloaded=n") } else { argv };
        self.started.lock().unwrap().push(argv.to_string());
        let command = argv.args.first().map(|command| command.to_string_lossy().into_owned()).unwrap_or_default();
        if argv.is_lvm() && *self.cut.lock().unwrap() == Some(command.as_str()) {
            // What vgcreate and vgextend do first, and a power cut may leave alone.
            let disk = argv.args[argv.args.len() - 2].clone();
            let _ = self.system.run(Argv::lvm("pvcreate", [Path::new(&disk)]).arg("--driverloaded=n").arg(&disk)).await;
            return self.system.run(Argv::new("/usr/bin/false")).await;
        }
        self.system.run(argv).await
    }
}

/// A look opens every disk of the machine exclusively, so the tests take turns.
static ONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// One test's node: its loop devices are the only ones that its class means.
struct Bench {
    _turn: tokio::sync::MutexGuard<'static, ()>,
    folder: tempfile::TempDir,
    node: Node<MetadataOnly>,
    cluster: ClusterId,
    loops: Vec<PathBuf>,
}

impl Bench {
    async fn new(name: &str) -> Self {
        let turn = ONE.lock().await;
        let folder = tempfile::Builder::new().prefix(&format!("stowage-test-{name}-")).tempdir().unwrap();
        let lvm = config::write(folder.path(), config::Udev::Silent).unwrap();
        let lock = HostLock::open(folder.path()).unwrap();
        let run = MetadataOnly { system: System::new(lvm, lock), started: Mutex::default(), cut: Mutex::default() };
        let node = Node::new(Arc::new(run), folder.path().join("kubelet"), folder.path());
        let cluster = folder.path().file_name().unwrap().to_str().unwrap().replace('.', "-");
        Self { _turn: turn, folder, node, cluster: ClusterId::try_from(cluster).unwrap(), loops: Vec::new() }
    }

    /// A blank loop device.
    async fn disk(&mut self, name: &str, mib: u64) -> PathBuf {
        let file = self.folder.path().join(name);
        fs::File::create(&file).unwrap().set_len(mib << 20).unwrap();
        let argv = Argv::new("/usr/sbin/losetup").args(["--find", "--show"]).arg(&file);
        let device = PathBuf::from(self.node.run.run(argv).await.unwrap().stdout);
        self.loops.push(device.clone());
        device
    }

    fn id(&self, name: &str) -> String {
        format!("loop-{}", self.folder.path().join(name).display())
    }

    fn group(&self) -> String {
        format!("t-{}", self.cluster)
    }

    fn wanted(&self, devices: serde_json::Value) -> Wanted {
        let ids = format!("{}*", self.id(""));
        let mut all = json!({"include": [{"ids": [ids], "types": ["loop"]}]});
        all.as_object_mut().unwrap().extend(devices.as_object().unwrap().clone());
        let spec = json!({
            "nodeName": "n",
            "clusterID": self.cluster.as_str(),
            "classes": [{
                "name": "fast",
                "generation": 1,
                "spec": {"devices": all, "volumeGroup": {"name": self.group()}},
            }],
            "rails": {"discovery": {"deny": ["nbd"]}},
        });
        Wanted::parse(spec.to_string().as_bytes()).unwrap()
    }

    async fn plan(&self, wanted: &Wanted) -> (Plan, Report) {
        let seen = self.node.look(&wanted.deny).await.unwrap();
        let plan = plan(wanted, &seen);
        let report = say::report(wanted, &seen, &plan);
        (plan, report)
    }

    async fn apply(&self, wanted: &Wanted) -> Done {
        let (plan, _) = self.plan(wanted).await;
        carry_out(plan.steps, &wanted.cluster, &self.node).await
    }

    async fn made(&self) -> Wanted {
        let wanted = self.wanted(json!({}));
        let done = self.apply(&wanted).await;
        assert!(done.failed.is_empty(), "{:?}", done.failed);
        wanted
    }

    fn volume(&self, name: &str, mib: u64) -> NewVolume {
        NewVolume {
            key: VolumeKey {
                name: VolumeName::try_from(name).unwrap(),
                cluster: self.cluster.clone(),
                class: ClassName::try_from("fast").unwrap(),
            },
            size: Bytes(mib << 20),
            reserve: Bytes(0),
            access: "Filesystem".to_owned(),
            claim: Some("shop/data-db-0".to_owned()),
            adopt: None,
        }
    }

    async fn groups(&self) -> Vec<report::Group> {
        let nodes = self.loops.iter().map(PathBuf::as_path).collect::<Vec<_>>();
        report::groups(&*self.node.run, &nodes).await.unwrap().groups
    }

    /// How many LVM commands of this kind were started.
    fn started(&self, command: &str) -> usize {
        let like = format!("/usr/sbin/lvm {command} ");
        self.node.run.started.lock().unwrap().iter().filter(|line| line.starts_with(&like)).count()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::env::var_os("KEEP").is_some() {
            let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
            eprintln!("kept: {} {:?}", folder.keep().display(), self.loops);
            return;
        }
        for device in &self.loops {
            #[expect(clippy::disallowed_methods, reason = "Drop can not wait for the runtime")]
            let _ = std::process::Command::new("/usr/sbin/losetup").arg("--detach").arg(device).status();
        }
    }
}

fn checksum(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    fs::read(path).unwrap().hash(&mut hasher);
    hasher.finish()
}

#[tokio::test]
async fn a_group_is_made_of_the_blank_disks_and_of_no_other() {
    let mut bench = Bench::new("blank").await;
    let (a, used, b) = (bench.disk("a", 48).await, bench.disk("used", 32).await, bench.disk("b", 48).await);
    bench.node.run.run(Argv::new("/usr/sbin/mkfs.ext4").arg("-q").arg(&used)).await.unwrap();
    let before = checksum(&used);

    let wanted = bench.wanted(json!({}));
    let (planned, report) = bench.plan(&wanted).await;
    assert_eq!(planned.steps.iter().map(Step::op).collect::<Vec<_>>(), ["CreateGroup", "ExtendGroup"]);
    assert_eq!(report.plan.as_ref().map(|plan| plan.hash.clone()), planned.hash());
    let device = report.devices.iter().find(|device| device.id == bench.id("used")).unwrap();
    assert_eq!((device.state, device.reasons[0].code.as_str()), (DeviceState::Refused, "HasSignature"));
    assert!(device.reasons[0].message.contains("ext4"), "{}", device.reasons[0].message);

    let done = carry_out(planned.steps, &wanted.cluster, &bench.node).await;
    assert!(done.failed.is_empty(), "{:?}", done.failed);
    assert_eq!(done.done.len(), 2);

    let (again, report) = bench.plan(&wanted).await;
    assert_eq!((again.steps, report.plan), (vec![], None));
    let [group] = report.volume_groups.as_slice() else { panic!("{:?}", report.volume_groups) };
    assert_eq!((group.class.as_str(), group.name.as_str(), group.devices), ("fast", bench.group().as_str(), 2));
    let members = bench.groups().await[0].nodes().map(Path::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(members, BTreeSet::from([a, b]));
    assert_eq!(checksum(&used), before);
    // None of LVM's own locks was overridden.
    let started = bench.node.run.started.lock().unwrap().join("\n");
    assert!(!started.contains("--force") && !started.contains("--yes"), "{started}");
}

/// B9.
#[tokio::test]
async fn a_disk_that_appears_later_is_added_unless_the_group_is_static() {
    let mut bench = Bench::new("later").await;
    bench.disk("a", 48).await;
    bench.made().await;
    bench.disk("b", 48).await;
    let (plan, report) = bench.plan(&bench.wanted(json!({"membership": "Static"}))).await;
    assert!(plan.steps.is_empty());
    let device = report.devices.iter().find(|device| device.id == bench.id("b")).unwrap();
    assert_eq!((device.state, device.reasons[0].code.as_str()), (DeviceState::Available, "NotNeeded"));
    let done = bench.apply(&bench.wanted(json!({}))).await;
    assert_eq!((done.done.len(), done.failed.len()), (1, 0), "{:?}", done.failed);
    assert_eq!(bench.groups().await[0].pvs.len(), 2);
}

/// B11: a power cut between pvcreate and the rest of vgcreate or vgextend.
#[tokio::test]
async fn what_an_interrupted_step_left_is_taken_up_again() {
    for cut in ["vgcreate", "vgextend"] {
        let mut bench = Bench::new(cut).await;
        bench.disk("a", 48).await;
        bench.disk("b", 48).await;
        let wanted = bench.wanted(json!({}));
        *bench.node.run.cut.lock().unwrap() = Some(cut);
        let done = bench.apply(&wanted).await;
        assert_eq!(done.failed.len(), 1, "{cut}");
        *bench.node.run.cut.lock().unwrap() = None;
        let done = bench.apply(&wanted).await;
        assert!(done.failed.is_empty(), "{cut}: {:?}", done.failed);
        assert_eq!(bench.groups().await[0].pvs.len(), 2, "{cut}");
    }
}

/// What is left of an interrupted step is taken up only while nobody else uses it, and is forgotten once it is in its
/// group.
#[tokio::test]
async fn what_is_left_of_a_step_and_in_use_is_not_taken_up() {
    let mut bench = Bench::new("left").await;
    let a = bench.disk("a", 48).await;
    let wanted = bench.wanted(json!({}));
    *bench.node.run.cut.lock().unwrap() = Some("vgcreate");
    bench.apply(&wanted).await;
    *bench.node.run.cut.lock().unwrap() = None;
    let begun = || bench.node.looker.begun.read().into_keys().collect::<Vec<_>>();
    assert_eq!(begun(), [bench.id("a")]);
    let user = rustix::fs::open(&a, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()).unwrap();
    assert!(bench.plan(&wanted).await.0.steps.is_empty());
    drop(user);
    let done = bench.apply(&wanted).await;
    assert_eq!((done.done.len(), done.failed.len()), (1, 0), "{:?}", done.failed);
    assert_eq!(begun(), Vec::<String>::new());
}

/// A deny list bars devices from being taken; a group that lies on some is found and used.
#[tokio::test]
async fn a_group_on_denied_devices_is_found_and_no_other_device_is_taken() {
    let mut bench = Bench::new("denied").await;
    bench.disk("a", 48).await;
    let mut wanted = bench.made().await;
    bench.disk("b", 48).await;
    wanted.deny = vec!["loop".to_owned()];
    let (plan, report) = bench.plan(&wanted).await;
    assert_eq!((plan.steps.len(), report.volume_groups.len()), (0, 1));
    bench.node.create_volume(&bench.volume("pvc-1", 4)).await.unwrap();
}

#[tokio::test]
async fn a_foreign_pv_without_a_group_is_not_taken() {
    let mut bench = Bench::new("foreign").await;
    let a = bench.disk("a", 48).await;
    bench.node.run.run(Argv::lvm("pvcreate", [a.as_path()]).arg(&a)).await.unwrap();
    let (plan, report) = bench.plan(&bench.wanted(json!({}))).await;
    assert!(plan.steps.is_empty());
    let device = report.devices.iter().find(|device| device.id == bench.id("a")).unwrap();
    assert_eq!(device.reasons[0].code, "HasSignature");
}

/// A2: what is written between the plan and its step is seen.
#[tokio::test]
async fn a_disk_that_got_data_after_the_plan_is_left_alone() {
    let mut bench = Bench::new("raced").await;
    let a = bench.disk("a", 48).await;
    let wanted = bench.wanted(json!({}));
    let (plan, _) = bench.plan(&wanted).await;
    bench.node.run.run(Argv::new("/usr/sbin/mkfs.ext4").arg("-q").arg(&a)).await.unwrap();
    let before = checksum(&a);
    let done = carry_out(plan.steps, &wanted.cluster, &bench.node).await;
    assert_eq!((done.done.len(), done.failed.len()), (0, 1));
    assert_eq!(checksum(&a), before);
    assert_eq!(bench.started("vgcreate"), 0);
}

/// B14: a group of the wanted name that is not ours.
#[tokio::test]
async fn a_group_of_the_same_name_is_left_alone() {
    let mut bench = Bench::new("name").await;
    let other = bench.disk("other", 48).await;
    bench.disk("a", 48).await;
    let argv = Argv::lvm("vgcreate", [other.as_path()]).arg(bench.group()).arg(&other);
    bench.node.run.run(argv).await.unwrap();
    let (plan, report) = bench.plan(&bench.wanted(json!({}))).await;
    assert!(plan.steps.is_empty());
    assert!(report.troubles.iter().any(|(class, why)| class == "fast" && why.contains(&bench.group())), "{report:?}");
    assert!(report.volume_groups.is_empty());
    let device = report.devices.iter().find(|device| device.id == bench.id("other")).unwrap();
    assert_eq!(device.reasons[0].code, "ForeignGroup");
}

/// A copy of a disk, or a second path to it: LVM would take either for the group's.
#[tokio::test]
async fn a_group_of_which_a_copy_is_there_is_left_alone_until_the_copy_is_gone() {
    let mut bench = Bench::new("double").await;
    let a = bench.disk("a", 48).await;
    bench.node.hears();
    bench.made().await;
    let copy = bench.disk("copy", 48).await;
    fs::write(&copy, fs::read(&a).unwrap()).unwrap();
    bench.node.changed();
    let new = bench.volume("pvc-1", 4);
    // The first look sees both; the second call must not be content with the one that was remembered.
    for _ in 0..3 {
        let (plan, report) = bench.plan(&bench.wanted(json!({}))).await;
        assert_eq!((plan.steps.len(), report.volume_groups[0].state), (0, crds::node_storage::GroupState::Conflict));
        let refused = bench.node.create_volume(&new).await.unwrap_err();
        assert!(matches!(refused, ChangeError::Group(GroupError::Doubled(_))), "{refused}");
    }
    assert_eq!(bench.started("lvcreate"), 0);
    bench.node.run.run(Argv::new("/usr/sbin/losetup").arg("--detach").arg(&copy)).await.unwrap();
    bench.loops.retain(|device| *device != copy);
    bench.node.changed();
    bench.node.create_volume(&new).await.unwrap();
}

/// A19: nothing is done to a group that lacks a device.
#[tokio::test]
async fn a_missing_disk_makes_the_group_partial_and_nothing_more() {
    let mut bench = Bench::new("partial").await;
    bench.disk("a", 48).await;
    let b = bench.disk("b", 48).await;
    let wanted = bench.made().await;
    bench.node.run.run(Argv::new("/usr/sbin/losetup").arg("--detach").arg(&b)).await.unwrap();
    bench.disk("c", 48).await;
    let (plan, report) = bench.plan(&wanted).await;
    assert!(plan.steps.is_empty());
    let [group] = report.volume_groups.as_slice() else { panic!("{report:?}") };
    assert_eq!((group.state, group.devices), (crds::node_storage::GroupState::Partial, 2));
    assert!(report.troubles.iter().any(|(_, why)| why.contains("missing")), "{:?}", report.troubles);
    let refused = bench.node.create_volume(&bench.volume("pvc-1", 4)).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Volume(VolumeError::Group { .. })), "{refused}");
}

#[tokio::test]
async fn a_volume_is_made_once_grown_and_removed() {
    let mut bench = Bench::new("volume").await;
    bench.disk("a", 64).await;
    bench.made().await;
    let new = bench.volume("pvc-1", 5);
    let made = bench.node.create_volume(&new).await.unwrap();
    assert_eq!((made.lv.size, made.lv.name.as_str()), (Bytes(8 << 20), "pvc-1"));
    assert_eq!(made.lv.tag(tag::CLAIM), Some("shop/data-db-0"));
    assert_eq!(made.lv.tag(tag::ACCESS), Some("Filesystem"));
    assert!(!made.lv.tags.contains(tag::USED));

    let again = bench.node.create_volume(&new).await.unwrap();
    assert_eq!((again.lv.uuid.clone(), bench.started("lvcreate")), (made.lv.uuid.clone(), 1));

    let uuid = Some(&made.lv.uuid);
    let grown = bench.node.grow_volume(&new.key, uuid, Bytes(13 << 20), Bytes(0)).await.unwrap();
    assert_eq!(grown.lv.size, Bytes(16 << 20));
    // G4: smaller is as good as done.
    let kept = bench.node.grow_volume(&new.key, uuid, Bytes(1 << 20), Bytes(0)).await.unwrap();
    assert_eq!((kept.lv.size, bench.started("lvextend")), (Bytes(16 << 20), 1));

    let group = made.group.uuid.clone();
    let other = LvmUuid::try_from("aaaaaa-bbbb-cccc-dddd-eeee-ffff-gggggg").unwrap();
    // Another UUID is another LV: this volume's is not there, and the one with its name stays.
    bench.node.delete_volume(&new.key, Some(&group), Some(&other)).await.unwrap();
    assert_eq!(bench.groups().await[0].lvs.len(), 1);
    // In another group nothing counts as gone.
    let missing = bench.node.delete_volume(&new.key, Some(&other), uuid).await.unwrap_err();
    assert!(matches!(missing, ChangeError::GroupMissing { .. }), "{missing}");

    bench.node.delete_volume(&new.key, Some(&group), uuid).await.unwrap();
    bench.node.delete_volume(&new.key, Some(&group), uuid).await.unwrap();
    assert_eq!((bench.groups().await[0].lvs.len(), bench.started("lvremove")), (0, 1));
}

#[tokio::test]
async fn an_lv_whose_tags_do_not_match_is_not_removed() {
    let mut bench = Bench::new("tags").await;
    bench.disk("a", 64).await;
    bench.made().await;
    let mine = bench.node.create_volume(&bench.volume("pvc-1", 4)).await.unwrap();
    let other = bench.volume("pvc-2", 4);
    let refused = bench.node.delete_volume(&other.key, Some(&mine.group.uuid), Some(&mine.lv.uuid)).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Volume(VolumeError::OtherTags { .. })), "{refused}");
    assert_eq!(bench.started("lvremove"), 0);
}

/// E5: a volume of which nothing was reported is removed if nobody ever used it.
#[tokio::test]
async fn without_a_uuid_only_an_unused_lv_is_removed() {
    let mut bench = Bench::new("unused").await;
    bench.disk("a", 64).await;
    bench.made().await;
    let (unused, used) = (bench.volume("pvc-1", 4), bench.volume("pvc-2", 4));
    bench.node.create_volume(&unused).await.unwrap();
    let made = bench.node.create_volume(&used).await.unwrap();
    let argv = Argv::lvm("lvchange", made.group.nodes()).arg("--addtag=stowage.used");
    bench.node.run.run(argv.arg(format!("{}/pvc-2", made.group.name))).await.unwrap();
    bench.node.delete_volume(&unused.key, None, None).await.unwrap();
    let refused = bench.node.delete_volume(&used.key, None, None).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Volume(VolumeError::Used { .. })), "{refused}");
    assert_eq!(bench.groups().await[0].lvs.len(), 1);
}

/// D3, G2.
#[tokio::test]
async fn a_full_group_says_so_with_figures() {
    let mut bench = Bench::new("full").await;
    bench.disk("a", 64).await;
    bench.made().await;
    let free = bench.groups().await[0].free;
    let mut new = bench.volume("pvc-1", 4 * free);
    new.reserve = Bytes(1);
    let full = bench.node.create_volume(&new).await.unwrap_err();
    let ChangeError::Volume(VolumeError::Full { asked, .. }) = &full else { panic!("{full}") };
    assert_eq!(*asked, Bytes((4 * free) << 20));
    new.reserve = Bytes(0);
    bench.node.create_volume(&new).await.unwrap();
    let full = bench.node.create_volume(&bench.volume("pvc-2", 1)).await.unwrap_err();
    assert!(matches!(full, ChangeError::Volume(VolumeError::Full { .. })), "{full}");
    assert_eq!(bench.started("lvcreate"), 1);
}

/// An LV that exists and is not ours yet: it is taken with what is on it, and is never formatted.
#[tokio::test]
async fn an_adopted_lv_counts_as_used() {
    let mut bench = Bench::new("adopt").await;
    bench.disk("a", 64).await;
    bench.made().await;
    let group = bench.groups().await.remove(0);
    let argv = Argv::lvm("lvcreate", group.nodes()).args(["-an", "-Zn", "-Wn", "-l2", "-nold"]);
    bench.node.run.run(argv.arg(group.name.as_str())).await.unwrap();
    let old = bench.groups().await[0].lvs[0].uuid.clone();
    let mut new = bench.volume("pvc-1", 4);
    new.adopt = Some(old.clone());
    let made = bench.node.create_volume(&new).await.unwrap();
    assert_eq!((made.lv.uuid.clone(), made.lv.name.as_str()), (old.clone(), "old"));
    assert!(made.lv.tags.contains(tag::USED));
    assert_eq!(bench.node.create_volume(&new).await.unwrap().lv.uuid, old);
    let mut second = bench.volume("pvc-2", 4);
    second.adopt = Some(old);
    let refused = bench.node.create_volume(&second).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Volume(VolumeError::Adopted { .. })), "{refused}");
}

/// E6, D5: many at once, each made once.
#[tokio::test]
async fn many_at_once_are_each_made_once() {
    let mut bench = Bench::new("many").await;
    bench.disk("a", 128).await;
    bench.made().await;
    let bench = &bench;
    let all = (0..6).flat_map(|number| [number, number]).map(|number| async move {
        bench.node.create_volume(&bench.volume(&format!("pvc-{number}"), 4)).await.unwrap().lv.uuid
    });
    let made = futures::future::join_all(all).await;
    assert_eq!(made.into_iter().collect::<BTreeSet<_>>().len(), 6);
    assert_eq!((bench.groups().await[0].lvs.len(), bench.started("lvcreate")), (6, 6));
}

/// DESIGN 7: one LVM process each, as long as nobody else has changed anything.
#[tokio::test]
async fn a_create_a_grow_and_a_delete_are_one_process_each() {
    let mut bench = Bench::new("cost").await;
    bench.disk("a", 64).await;
    bench.node.hears();
    let wanted = bench.made().await;
    bench.plan(&wanted).await;
    bench.node.run.started.lock().unwrap().clear();
    let new = bench.volume("pvc-1", 4);
    let made = bench.node.create_volume(&new).await.unwrap();
    let grown = bench.node.grow_volume(&new.key, Some(&made.lv.uuid), Bytes(8 << 20), Bytes(0)).await.unwrap();
    assert_eq!(grown.lv.size, Bytes(8 << 20));
    bench.node.delete_volume(&new.key, Some(&made.group.uuid), Some(&made.lv.uuid)).await.unwrap();
    let started = bench.node.run.started.lock().unwrap().clone();
    assert_eq!(started.len(), 3, "{started:#?}");

    // Somebody else's change is heard of, and what was remembered is asked for again.
    let group = bench.groups().await.remove(0);
    let argv = Argv::lvm("lvcreate", group.nodes()).args(["-an", "-Zn", "-Wn", "-l100%FREE", "-nother"]);
    bench.node.run.run(argv.arg(group.name.as_str())).await.unwrap();
    bench.node.changed();
    let full = bench.node.create_volume(&new).await.unwrap_err();
    assert!(matches!(full, ChangeError::Volume(VolumeError::Full { .. })), "{full}");
}
