//! Disks, groups and volumes on a machine with device-mapper. FIELD-REPORTS' numbers stand at the tests that
//! hold them.

use anyhow::{Context, ensure};
use node_tests::{Machine, block_staging, block_target, every_blank_disk, staging, target, volume};
use rig::disk::{Content, Disk, GIB, MIB};
use serde_json::{Value, json};

fn ext4(folder: &std::path::Path, name: &str) -> anyhow::Result<Disk> {
    let file = folder.join(name);
    std::fs::File::create(&file)?.set_len(64 * MIB)?;
    rig::run::Run::new("mkfs.ext4").arg("-q").arg(&file).check()?;
    Ok(Disk::blank(name, 64 * MIB).with(Content::File(file)))
}

/// A GPT without a partition.
fn table(folder: &std::path::Path, name: &str) -> anyhow::Result<Disk> {
    let file = folder.join(name);
    std::fs::File::create(&file)?.set_len(64 * MIB)?;
    rig::run::Run::new("sfdisk").arg("-q").arg(&file).input("label: gpt\n").check()?;
    Ok(Disk::blank(name, 64 * MIB).with(Content::File(file)))
}

fn device<'a>(report: &'a Value, serial: &str) -> anyhow::Result<&'a Value> {
    let devices = report["devices"].as_array().context("no devices")?;
    devices
        .iter()
        .find(|device| device["serial"] == serial)
        .with_context(|| format!("{serial} is not listed: {report}"))
}

/// A1, A2, A9, B1, B2: blank disks become one group, and everything else is left with a reason.
#[test]
fn blank_disks_become_a_group_and_all_others_say_why_not() -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("node-tests-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let machine = Machine::boot(
        "disks",
        vec![
            Disk::blank("a", GIB),
            Disk::blank("b", GIB),
            ext4(&folder, "files")?,
            table(&folder, "table")?,
            Disk::blank("noise", 64 * MIB),
            Disk::blank("mounted", 64 * MIB),
        ],
    )?;
    // Bytes without any signature, and a filesystem that is mounted where lvmd does not see it.
    machine.sh("dd if=/dev/urandom of=/dev/disk/by-id/virtio-noise bs=4k count=1 2>/dev/null; \
         mkfs.ext4 -q /dev/disk/by-id/virtio-mounted && mkdir -p /mnt/m && \
         (setsid unshare -m sh -c 'mount /dev/disk/by-id/virtio-mounted /mnt/m && touch /run/is-mounted && sleep 600' \
          > /dev/null 2>&1 < /dev/null &) ; \
         for i in $(seq 100); do [ -e /run/is-mounted ] && break; sleep 0.1; done; \
         sync; udevadm settle -t 20")?;
    let untouched = ["files", "table", "noise"];
    let sums = |machine: &Machine| -> anyhow::Result<Vec<String>> {
        untouched.iter().map(|id| machine.sh(&format!("sha256sum < /dev/disk/by-id/virtio-{id}"))).collect()
    };
    let before = sums(&machine)?;

    let report = machine.settle(&every_blank_disk())?;
    ensure!(report["volume_groups"][0]["devices"] == 2, "the group: {}", report["volume_groups"]);
    for (id, code) in
        [("files", "HasSignature"), ("table", "HasPartitions"), ("noise", "NotZero"), ("mounted", "InUse")]
    {
        let device = device(&report, id)?;
        ensure!(device["state"] == "Refused" && device["reasons"][0]["code"] == code, "{id}: {device}");
        ensure!(!device["reasons"][0]["message"].as_str().unwrap_or_default().is_empty(), "{id} gives no sentence");
    }
    ensure!(machine.sh("pvs --noheadings | wc -l")?.trim() == "2", "LVM has other PVs");
    ensure!(sums(&machine)? == before, "a disk that was refused was written to");

    // B6: a disk that is plugged in later is taken; nothing else changes.
    machine.guest.plug_disk(&Disk::blank("late", GIB))?;
    machine.sh(
        "for i in $(seq 100); do [ -e /dev/disk/by-id/virtio-late ] && break; sleep 0.1; done; udevadm settle -t 20",
    )?;
    let report = machine.settle(&every_blank_disk())?;
    ensure!(report["volume_groups"][0]["devices"] == 3, "after the third disk: {}", report["volume_groups"]);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// G1, H2, E1: the life of a volume, with every call made twice.
#[test]
fn a_volume_lives_and_every_call_may_be_repeated() -> anyhow::Result<()> {
    let machine = Machine::boot("life", vec![Disk::blank("a", 2 * GIB)])?;
    machine.settle(&every_blank_disk())?;
    for (name, fs) in [("pvc-x", "xfs"), ("pvc-e", "ext4")] {
        let create = volume(name, json!({"size": 320 * MIB, "access": "Filesystem", "claim": "default/data"}));
        let made = machine.ask("create", &create)?;
        ensure!(machine.ask("create", &create)? == made, "the second create answers something else");

        let (at, to) = (staging(name), target(name, "pod-1"));
        let stage = volume(name, json!({"staging": at, "fs": fs}));
        machine.sh(&format!("mkdir -p {at} $(dirname {to})"))?;
        let staged = machine.ask("stage", &stage)?;
        ensure!(machine.ask("stage", &stage)? == staged && staged["fs_type"] == fs, "staged: {staged}");
        let publish = volume(name, json!({"staging": at, "target": to}));
        machine.ask("publish", &publish)?;
        machine.ask("publish", &publish)?;
        machine.sh(&format!("echo kept > {to}/word && sync"))?;

        let bigger = volume(name, json!({"lv_uuid": made["lv_uuid"], "size": 512 * MIB}));
        let grown = machine.ask("grow", &bigger)?;
        ensure!(grown["size"] == 512 * MIB && machine.ask("grow", &bigger)? == grown, "grown: {grown}");
        let grow_filesystem = volume(name, json!({"path": to}));
        machine.ask("grow_filesystem", &grow_filesystem)?;
        machine.ask("grow_filesystem", &grow_filesystem)?;
        let stats = machine.ask("stats", &volume(name, json!({"path": to})))?;
        ensure!(stats["total"].as_u64() > Some(440 * MIB), "stats after growing: {stats}");

        let open = machine
            .refusal("delete", &volume(name, json!({"vg_uuid": made["vg_uuid"], "lv_uuid": made["lv_uuid"]})))?;
        ensure!(open.starts_with("FailedPrecondition"), "deleting a mounted volume: {open}");

        for _ in 0..2 {
            machine.ask("unpublish", &json!({"name": name, "target": to}))?;
        }
        for _ in 0..2 {
            machine.ask("unstage", &json!({"name": name, "staging": at}))?;
        }
        ensure!(machine.sh(&format!("grep -c {name} /proc/self/mounts || true"))?.trim() == "0", "a mount is left");

        // Not formatted again: the word is still there.
        machine.ask("stage", &stage)?;
        ensure!(machine.sh(&format!("cat {at}/word"))?.trim() == "kept", "the volume was formatted again");
        machine.ask("unstage", &json!({"name": name, "staging": at}))?;

        let delete = volume(name, json!({"vg_uuid": made["vg_uuid"], "lv_uuid": made["lv_uuid"]}));
        machine.ask("delete", &delete)?;
        machine.ask("delete", &delete)?;
    }
    ensure!(machine.sh("lvs --noheadings")?.trim().is_empty(), "an LV is left");
    Ok(())
}

/// H1: a block volume is the device, of exactly its size.
#[test]
fn a_block_volume_is_a_device_of_its_size() -> anyhow::Result<()> {
    let machine = Machine::boot("block", vec![Disk::blank("a", GIB)])?;
    machine.settle(&every_blank_disk())?;
    let name = "pvc-b";
    let made = machine.ask("create", &volume(name, json!({"size": 64 * MIB, "access": "Block"})))?;
    let (at, to) = (block_staging(name), block_target(name, "pod-1"));
    machine.sh(&format!("mkdir -p {at} $(dirname {to})"))?;
    let stage = volume(name, json!({"staging": at, "block": true}));
    let publish = volume(name, json!({"staging": at, "target": to, "block": true}));
    for (method, question) in [("stage", &stage), ("stage", &stage), ("publish", &publish), ("publish", &publish)] {
        machine.ask(method, question)?;
    }
    let size = machine.sh(&format!("[ -b {to} ] && blockdev --getsize64 {to}"))?;
    ensure!(size.trim() == (64 * MIB).to_string(), "the device at {to} has {size} bytes");
    machine.sh(&format!("dd if=/dev/urandom of={to} bs=1M count=1 seek=63 oflag=direct 2>/dev/null"))?;
    for _ in 0..2 {
        machine.ask("unpublish", &json!({"name": name, "target": to}))?;
    }
    for _ in 0..2 {
        machine.ask("unstage", &json!({"name": name, "staging": at}))?;
    }
    machine.ask("delete", &volume(name, json!({"vg_uuid": made["vg_uuid"], "lv_uuid": made["lv_uuid"]})))?;
    Ok(())
}

/// D3, E1, A8: what is refused, with which word.
#[test]
fn refusals_say_what_is_true() -> anyhow::Result<()> {
    let machine = Machine::boot("refuse", vec![Disk::blank("a", GIB)])?;
    let early = machine.refusal("create", &volume("pvc-1", json!({"size": 64 * MIB, "access": "Filesystem"})))?;
    ensure!(early.starts_with("FailedPrecondition"), "without a group: {early}");
    machine.settle(&every_blank_disk())?;

    let full = machine.refusal("create", &volume("pvc-1", json!({"size": 2 * GIB, "access": "Filesystem"})))?;
    ensure!(full.starts_with("ResourceExhausted"), "too big: {full}");
    let reserved = volume("pvc-1", json!({"size": 512 * MIB, "access": "Filesystem", "reserve": 768 * MIB}));
    let reserved = machine.refusal("create", &reserved)?;
    ensure!(reserved.starts_with("ResourceExhausted"), "into the reserve: {reserved}");

    let made = machine.ask("create", &volume("pvc-1", json!({"size": 320 * MIB, "access": "Filesystem"})))?;
    let other =
        volume("pvc-1", json!({"vg_uuid": made["vg_uuid"], "lv_uuid": "aaaaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaaaa"}));
    // Another LV's UUID: nothing of that UUID is there, and the one that is there is left alone.
    machine.ask("delete", &other)?;
    ensure!(machine.sh("lvs --noheadings | wc -l")?.trim() == "1", "an LV was removed by its name alone");

    for bad in ["/etc", "/var/lib/kubelet/../../etc/x", "/var/lib/kubelet/pods/p/volumes/other/v/mount"] {
        let said = machine.refusal("publish", &volume("pvc-1", json!({"staging": staging("pvc-1"), "target": bad})))?;
        ensure!(said.starts_with("InvalidArgument"), "publishing at {bad}: {said}");
    }
    // A path that looks right and leads elsewhere.
    let to = target("pvc-1", "pod-1");
    machine
        .sh(&format!("d=$(dirname $(dirname {to})); mkdir -p $d /tmp/elsewhere && ln -s /tmp/elsewhere $d/pvc-1"))?;
    let at = staging("pvc-1");
    machine.sh(&format!("mkdir -p {at}"))?;
    machine.ask("stage", &volume("pvc-1", json!({"staging": at, "fs": "xfs"})))?;
    machine.refusal("publish", &volume("pvc-1", json!({"staging": at, "target": to})))?;
    ensure!(machine.sh("ls -A /tmp/elsewhere")?.trim().is_empty(), "a symbolic link was followed");
    Ok(())
}

/// A1, A14, H2: what is on a volume that should be blank, or is not what was made, is never overwritten.
#[test]
fn a_used_volume_is_never_formatted() -> anyhow::Result<()> {
    let machine = Machine::boot("once", vec![Disk::blank("a", GIB)])?;
    machine.settle(&every_blank_disk())?;
    let name = "pvc-1";
    machine.ask("create", &volume(name, json!({"size": 320 * MIB, "access": "Filesystem"})))?;
    let at = staging(name);
    machine.sh(&format!("mkdir -p {at}"))?;
    let stage = volume(name, json!({"staging": at, "fs": "xfs"}));
    machine.ask("stage", &stage)?;
    machine.ask("unstage", &json!({"name": name, "staging": at}))?;

    // The filesystem's head is lost: the data may still be saved by hand, so nothing is written.
    machine.sh(
        "lv=$(lvs --noheadings -o vg_name,lv_name | busybox awk '{print $1\"/\"$2}'); lvchange -ay $lv && \
         dd if=/dev/zero of=/dev/$lv bs=1M count=1 conv=notrunc 2>/dev/null && sync && sha256sum < /dev/$lv > /tmp/sum && lvchange -an $lv",
    )?;
    machine.refusal("stage", &stage)?;
    machine.sh("lv=$(lvs --noheadings -o vg_name,lv_name | busybox awk '{print $1\"/\"$2}'); lvchange -ay $lv && \
         sha256sum < /dev/$lv | busybox cmp - /tmp/sum")?;
    Ok(())
}

/// E6, A1, G3: the power goes at any moment; what was begun is finished, and what was written is there.
#[test]
fn the_power_goes_and_everything_is_taken_up_again() -> anyhow::Result<()> {
    let machine = Machine::boot("power", vec![Disk::blank("a", GIB), Disk::blank("b", GIB)])?;
    machine.settle(&every_blank_disk())?;
    let name = "pvc-1";
    let create = volume(name, json!({"size": 320 * MIB, "access": "Filesystem"}));
    let at = staging(name);
    let stage = volume(name, json!({"staging": at, "fs": "ext4"}));

    // In the first mkfs: half of it is on the disk.
    let made = machine.ask("create", &create)?;
    machine.sh(&format!("mkdir -p {at}"))?;
    let question = stage.to_string();
    machine.sh(&format!(
        "(setsid /run/lvmd-call /run/stowage/lvmd.sock stage '{question}' > /dev/null 2>&1 &) ; \
         for i in $(seq 400); do busybox pgrep mkfs > /dev/null && exit 0; sleep 0.02; done; true"
    ))?;
    machine.guest.power_cut()?;
    machine.guest.start_again()?;
    machine.start_lvmd()?;
    let report = machine.settle(&every_blank_disk())?;
    ensure!(report["volume_groups"][0]["uuid"] == made["vg_uuid"], "another group: {}", report["volume_groups"]);
    ensure!(machine.ask("create", &create)?["lv_uuid"] == made["lv_uuid"], "the volume was made twice");
    machine.sh(&format!("mkdir -p {at}"))?;
    machine.ask("stage", &stage)?;
    machine.sh(&format!("echo kept > {at}/word && sync"))?;

    // While it is mounted: flushed data is there again.
    machine.guest.power_cut()?;
    machine.guest.start_again()?;
    machine.start_lvmd()?;
    machine.sh(&format!("mkdir -p {at}"))?;
    machine.ask("stage", &stage)?;
    ensure!(machine.sh(&format!("cat {at}/word"))?.trim() == "kept", "flushed data is gone");

    // A15: lvmd is killed and started again while the volume is mounted; the mount is what it was.
    machine.kill_lvmd()?;
    machine.start_lvmd()?;
    machine.ask("stage", &stage)?;
    ensure!(machine.sh(&format!("cat {at}/word"))?.trim() == "kept", "the mount was disturbed");
    Ok(())
}
