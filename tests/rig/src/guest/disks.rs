//! Disks that come and go while the machine runs.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::json;

use super::Guest;
use crate::{
    disk::{Bus, Disk},
    error::{Context, Error, Result},
    qemu::{Plugged, slot_name},
};

impl Guest {
    /// Plugs a new disk in while the machine runs, and waits until the guest sees it.
    pub fn plug_disk(&self, disk: &Disk) -> Result<()> {
        disk.make_file(&self.disk_file(&disk.id))?;
        self.plug_disk_again(disk)
    }

    /// Plugs in a disk that was pulled out, with what was on it.
    pub fn plug_disk_again(&self, disk: &Disk) -> Result<()> {
        let slot = {
            let machine = self.machine();
            if disk.needs_slot() { Some(machine.free_slot().ok_or_else(|| no_slot(disk))?) } else { None }
        };
        match disk.bus {
            Bus::Virtio => {}
            Bus::Scsi { .. } => drop(self.sh("modprobe -a virtio_scsi sd_mod")?),
            Bus::Nvme => drop(self.sh("modprobe nvme")?),
        }
        let mut qmp = self.qmp()?;
        qmp.ask("blockdev-add", disk.backend(&self.disk_file(&disk.id)))?;
        qmp.ask("device_add", disk.device(&slot.map(slot_name).unwrap_or_default()))?;
        let mut machine = self.machine();
        machine.disks.push(Plugged { disk: disk.clone(), slot });
        self.remember(&machine)?;
        drop(machine);
        let path = disk.path_in_guest();
        self.sh(&format!(
            "for try in $(seq 600); do [ -b {path} ] && exit; sleep 0.05; done; ls -l /dev/disk/by-id; exit 1"
        ))
        .context(|| format!("waiting for {path} on {}", self.name))?;
        Ok(())
    }

    /// Pulls a disk out while the machine runs. Its file stays.
    pub fn pull_disk(&self, id: &str) -> Result<Disk> {
        let disk = self.plugged(id)?.disk;
        let mut qmp = self.qmp()?;
        qmp.ask("device_del", json!({ "id": disk.device_id() }))?;
        // QEMU lets go of the file once the guest has let go of the device.
        let began = Instant::now();
        while let Err(err) = qmp.ask("blockdev-del", json!({ "node-name": disk.node_name() })) {
            if began.elapsed() > Duration::from_secs(20) {
                return Err(err);
            }
            sleep(Duration::from_millis(20));
        }
        let mut machine = self.machine();
        machine.disks.retain(|plugged| plugged.disk.id != id);
        self.remember(&machine)?;
        Ok(disk)
    }

    /// Makes a disk larger while the machine runs. In bytes. QEMU refuses it for NVMe.
    pub fn resize_disk(&self, id: &str, size: u64) -> Result<()> {
        let node = self.plugged(id)?.disk.node_name();
        self.qmp()?.ask("block_resize", json!({ "node-name": node, "size": size }))?;
        let mut machine = self.machine();
        for plugged in machine.disks.iter_mut().filter(|plugged| plugged.disk.id == id) {
            plugged.disk.size = size;
        }
        self.remember(&machine)
    }

    fn plugged(&self, id: &str) -> Result<Plugged> {
        let machine = self.machine();
        let found = machine.disks.iter().find(|plugged| plugged.disk.id == id).cloned();
        found.ok_or_else(|| Error::unexpected(format!("disk {id}"), format!("{} has none of this name", self.name)))
    }
}

pub(super) fn no_slot(disk: &Disk) -> Error {
    Error::unexpected(format!("disk {}", disk.id), "all slots of the machine are taken")
}
