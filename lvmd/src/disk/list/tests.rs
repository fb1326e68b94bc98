use super::*;

/// A device in a few words: the kernel's name, what it is a part or made of.
fn raw(kernel: &str, kind: &str, number: &str) -> (Row, Surroundings) {
    let row = Row {
        kname: kernel.to_owned(),
        number: number.to_owned(),
        kind: kind.to_owned(),
        size: Some("1073741824".to_owned()),
        serial: Some(format!("S-{kernel}")),
        ..Row::default()
    };
    (row, Surroundings::default())
}

fn part(kernel: &str, of: &str, number: &str, kind: Option<&str>) -> (Row, Surroundings) {
    let (mut row, mut around) = raw(kernel, "part", number);
    row.parttype = kind.map(str::to_owned);
    around.partition_of = Some((of.to_owned(), kernel.trim_start_matches(of).to_owned()));
    (row, around)
}

fn made_of(kernel: &str, kind: &str, number: &str, slaves: &[&str]) -> (Row, Surroundings) {
    let (row, mut around) = raw(kernel, kind, number);
    around.slaves = slaves.iter().map(|slave| (*slave).to_owned()).collect();
    (row, around)
}

fn of<'a>(disks: &'a [Disk], kernel: &str) -> &'a Disk {
    disks.iter().find(|disk| disk.kernel == kernel).unwrap()
}

/// DESIGN 5.5: root on LUKS on a partition.
#[test]
fn everything_under_what_the_node_runs_from_is_untouchable() {
    let all = [
        raw("sda", "disk", "8:0"),
        part("sda1", "sda", "8:1", None),
        part("sda2", "sda", "8:2", None),
        made_of("dm-0", "crypt", "252:0", &["sda2"]),
        raw("sdb", "disk", "8:16"),
    ];
    let disks = describe(&all, &[((252, 0), "/ is mounted from it".to_owned())].into(), Path::new("/var/lib/kubelet"));
    for kernel in ["sda", "sda2", "dm-0"] {
        assert!(of(&disks, kernel).system.is_some(), "{kernel}");
    }
    assert_eq!(of(&disks, "sdb").system, None);
    assert_eq!((of(&disks, "sda").partitions, of(&disks, "sda2").id.as_str()), (2, "scsi-S-sda-part2"));
}

#[test]
fn a_disk_that_firmware_boots_from_is_untouchable_with_all_its_partitions() {
    let efi = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b";
    let all = [
        raw("nvme0n1", "disk", "259:0"),
        part("nvme0n1p1", "nvme0n1", "259:1", Some(efi)),
        part("nvme0n1p2", "nvme0n1", "259:2", None),
    ];
    let disks = describe(&all, &SystemDevices::new(), Path::new("/var/lib/kubelet"));
    assert!(disks.iter().all(|disk| disk.system.is_some()), "{disks:?}");
}

/// The whole of a multipath device is denied when its paths are.
#[test]
fn a_deny_list_reaches_through_what_a_device_is_made_of() {
    let mut path = raw("sdc", "disk", "8:32");
    path.0.tran = Some("iscsi".to_owned());
    path.1.holders = vec!["dm-1".to_owned()];
    let all = [
        path,
        made_of("dm-1", "mpath", "252:1", &["sdc"]),
        raw("nbd0", "disk", "43:0"),
        raw("ublkb3", "disk", "259:9"),
    ];
    let disks = describe(&all, &SystemDevices::new(), Path::new("/var/lib/kubelet"));
    let deny = ["iscsi", "nbd", "ublk"].map(str::to_owned);
    assert_eq!(of(&disks, "dm-1").denied(&deny), Some("iscsi"));
    assert_eq!(of(&disks, "nbd0").denied(&deny), Some("nbd"));
    assert_eq!(of(&disks, "ublkb3").denied(&deny), Some("ublk"));
    assert_eq!(of(&disks, "sdc").above, ["dm-1"]);
}

/// B3: an LV is not a device to be taken, and a PV is not "in use" because of it.
#[test]
fn lvs_are_not_listed_and_hold_nothing() {
    let mut pv = raw("vdb", "disk", "254:16");
    pv.1.holders = vec!["dm-0".to_owned()];
    let mut lv = made_of("dm-0", "lvm", "252:0", &["vdb"]);
    lv.1.dm_uuid = Some("LVM-x".to_owned());
    let disks = describe(&[pv, lv], &SystemDevices::new(), Path::new("/var/lib/kubelet"));
    assert_eq!(disks.len(), 1);
    assert_eq!(disks[0].above, Vec::<String>::new());
}

#[test]
fn the_best_stable_path_is_shown() {
    let mut links = [
        "/dev/disk/by-path/pci-0000:00:05.0",
        "/dev/disk/by-id/lvm-pv-uuid-abc",
        "/dev/disk/by-id/scsi-SERIAL",
        "/dev/disk/by-id/wwn-0x5000c500a1b2c3d4",
    ]
    .map(PathBuf::from);
    links.sort_by_key(|link| rank(link));
    assert_eq!(links[0], Path::new("/dev/disk/by-id/wwn-0x5000c500a1b2c3d4"));
    assert_eq!(links[3], Path::new("/dev/disk/by-id/lvm-pv-uuid-abc"));
}

/// Recorded in a virtual machine (util-linux 2.38) and written down as older releases print the same (2.23: all
/// strings).
#[test]
fn the_rows_of_different_releases_are_read() {
    let new = parse(include_str!("../../../tests/fixtures/lsblk/guest.json")).unwrap();
    let old = parse(
        r#"{"blockdevices": [{"kname": "sda", "maj:min": "8:0", "type": "disk", "size": "1073741824", "ro": "0", "rota": "1",
            "model": "QEMU HARDDISK   ", "vendor": "QEMU    ", "serial": null, "wwn": null, "tran": "sata"}]}"#,
    )
    .unwrap();
    assert_eq!((old[0].model.as_deref(), old[0].vendor.as_deref()), (Some("QEMU HARDDISK"), Some("QEMU")));
    assert!(is_yes(old[0].rota.as_deref()) && !is_yes(old[0].ro.as_deref()));
    // Loop devices to which nothing is bound are none.
    assert!(new.iter().all(|row| !row.kname.starts_with("loop")), "{new:?}");
    assert!(new.iter().any(|row| row.kind == "disk"));
}

/// A device that is left out would be missed by whoever looks for foreign groups and for copies.
#[test]
fn a_row_without_a_name_fails_the_list() {
    assert!(parse(r#"{"blockdevices": [{"kname": null, "maj:min": "8:0", "type": "disk"}]}"#).is_err());
    assert!(parse("").is_err());
}

/// B3: pods write to these; a class that lists every type, on a node whose deny list was emptied, gets none of them.
#[test]
fn what_lies_on_a_volume_or_belongs_to_a_pod_is_told() {
    let on = |kernel: &str, number: &str, backing: &str, on_device: bool| {
        let (row, mut around) = raw(kernel, "loop", number);
        (around.backing, around.on_device) = (Some(backing.to_owned()), on_device);
        (row, around)
    };
    let all = [
        raw("sda", "disk", "8:0"),
        made_of("dm-0", "lvm", "252:0", &["sda"]),
        made_of("dm-1", "crypt", "252:1", &["dm-0"]),
        made_of("md0", "raid1", "9:0", &["dm-1"]),
        part("md0p1", "md0", "259:0", None),
        made_of("dm-2", "crypt", "252:2", &["sda"]),
        on("loop0", "7:0", "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/u", false),
        on("loop1", "7:1", "/srv/device", true),
        part("loop1p1", "loop1", "259:1", None),
        on("loop2", "7:2", "/srv/disk.img", false),
    ];
    let disks = describe(&all, &SystemDevices::new(), Path::new("/var/lib/kubelet"));
    let told = disks.iter().filter(|disk| disk.inner.is_some()).map(|disk| disk.kernel.as_str()).collect::<Vec<_>>();
    assert_eq!(told, ["dm-1", "md0", "md0p1", "loop0", "loop1", "loop1p1"]);
}
