//! A machine and its faults, for real: `cargo test --package rig --test machine`, as root.

use rig::{
    disk::{Bus, Content, Disk, GIB, MIB, Rotation},
    guest::{Guest, GuestOptions},
};

#[test]
fn disks_come_and_go_and_power_fails() {
    let source = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(source.path(), b"precious").unwrap();
    let kept = Disk::blank("kept", 64 * MIB).with(Content::File(source.path().to_owned()));
    let disks = vec![Disk::blank("first", GIB), kept.clone()];
    let guest = Guest::boot("machine-test", GuestOptions { disks, ..GuestOptions::default() }).unwrap();
    let run = |script: &str| guest.sh(script).unwrap_or_else(|err| panic!("{}", err.chain()));

    let read = format!("head -c 8 {}", kept.path_in_guest());
    assert_eq!(run(&read), "precious");

    let size = |disk: &Disk| run(&format!("blockdev --getsize64 {}", disk.path_in_guest())).trim().to_owned();
    let scsi = Bus::Scsi { wwn: Some(0x5000_c500_1234_5678), rotation: Rotation::Turning };
    for disk in [
        Disk::blank("later", GIB),
        Disk::blank("large-sectors", GIB).sector(4096),
        Disk::blank("scsi", GIB).on(scsi),
        Disk::blank("nvme", GIB).on(Bus::Nvme),
    ] {
        guest.plug_disk(&disk).unwrap();
        assert_eq!(size(&disk), GIB.to_string());
        // QEMU can't resize an emulated NVMe drive.
        if disk.bus != Bus::Nvme {
            guest.resize_disk(&disk.id, 2 * GIB).unwrap();
            assert_eq!(size(&disk), (2 * GIB).to_string());
        }
        guest.pull_disk(&disk.id).unwrap();
        assert!(guest.sh(&format!("test -e {}", disk.path_in_guest())).is_err());
    }

    // What was synced is there after a power cut, and what was not is not.
    let write = "mkfs.ext4 -q /dev/disk/by-id/virtio-first && mount /dev/disk/by-id/virtio-first /mnt &&
        echo synced > /mnt/a && sync && echo lost > /mnt/b";
    run(write);
    guest.power_cut().unwrap();
    assert!(!guest.is_running());
    assert!(guest.try_sh("true").is_err());
    guest.start_again().unwrap();
    let found = run("mount /dev/disk/by-id/virtio-first /mnt && cat /mnt/a && ls /mnt");
    assert!(found.starts_with("synced\n") && !found.contains("\nb"), "{found}");
    assert_eq!(run(&read), "precious");

    // Calls do not wait for each other, and one that takes too long is ended and named.
    let late = guest.try_sh_within("sleep 1000; true", std::time::Duration::from_secs(1)).unwrap_err();
    assert!(late.to_string().contains("sleep 1000"), "{late}");
    assert_eq!(run("pgrep -x sleep || echo ended"), "ended\n");
    let failed = guest.sh("echo why >&2; exit 3").unwrap_err().to_string();
    assert!(failed.contains("ended with 3") && failed.contains("why"), "{failed}");

    let large = vec![7; 5 << 20];
    guest.push("/tmp/folder/large", &large).unwrap();
    assert_eq!(run("wc -c < /tmp/folder/large"), "5242880\n");
}
