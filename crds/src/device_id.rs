//! What a device's identity (`NodeStorage.status.devices[].id`) says about itself.

/// Identities that no other device in the world has: assigned by a registry (IEEE, NVMe's
/// EUI-64 and NGUID), not chosen by a maker or a hypervisor. Written as udev writes them below
/// /dev/disk/by-id: `wwn-0x…`, `nvme-eui.…`, `nvme-nguid.…`, `nvme-uuid.…`.
const GLOBAL: [&str; 7] = ["wwn-0x", "nvme-eui.", "nvme-nguid.", "nvme-uuid.", "eui.", "nguid.", "naa."];

/// Whether two nodes that list `id` see one and the same device. A serial number alone does not say so:
/// hypervisors and cheap makers give the same one twice.
pub fn is_global(id: &str) -> bool {
    GLOBAL.iter().any(|prefix| {
        id.strip_prefix(prefix).is_some_and(|rest| {
            // An identity of zeros is a maker's way of having none.
            rest.bytes().any(|byte| byte.is_ascii_hexdigit() && byte != b'0')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registered_identity_is_global_and_a_serial_is_not() {
        for id in ["wwn-0x5000c500a1b2c3d4", "nvme-eui.0025388b710116a1", "eui.0025388b710116a1", "nguid.0a"] {
            assert!(is_global(id), "{id}");
        }
        for id in [
            "",
            "wwn-0x",
            "wwn-0x0000000000000000",
            "eui.00000000",
            "virtio-disk1",
            "ata-WDC_WD40EFRX_WD-1",
            "nvme-QEMU_NVMe_Ctrl_serial1",
            "pci-0000:00:05.0",
        ] {
            assert!(!is_global(id), "{id}");
        }
    }
}
