//! The kernel's word that block devices came, went or changed, one message per burst.

use std::{
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SocketFlags, SocketType, bind, netlink, recv, socket_with,
        sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force},
    },
};
use tokio::sync::{broadcast, mpsc};

use crate::turn::Turns;

/// Events have ended when none has come for this long: by then udev has made its links (0.3 s in a slow machine) and
/// a disk shelf has shown all its disks.
const QUIET: Duration = Duration::from_millis(1500);

/// A device that never stops does not keep the others waiting for longer.
const LONGEST: Duration = Duration::from_secs(10);

/// The kernel's word on what lvmd's own commands wrote arrives within this time after they ended.
const ECHO: Duration = Duration::from_secs(2);

/// The group of the kernel's own messages; udev's (2) do not reach other network namespaces.
const KERNEL: u32 = 1;

/// The longest message (`UEVENT_BUFFER_SIZE` in include/linux/kobject.h, and the header).
const LARGEST: usize = 8192;

/// What one message is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uevent {
    action: String,
    /// The kernel's name of the device.
    name: String,
}

impl Uevent {
    /// `add@/devices/…\0ACTION=add\0DEVPATH=…\0SUBSYSTEM=block\0DEVNAME=sda\0…`: `None` for anything but a block device.
    fn parse(raw: &[u8]) -> Option<Self> {
        let fields = raw.split(|b| *b == 0).filter_map(|field| std::str::from_utf8(field).ok()?.split_once('='));
        let (mut action, mut name, mut block) = (None, None, false);
        for (key, value) in fields {
            match key {
                "ACTION" => action = Some(value.to_owned()),
                "DEVNAME" => name = Some(value.to_owned()),
                "SUBSYSTEM" => block = value == "block",
                _ => {}
            }
        }
        block.then_some(Self { action: action?, name: name? })
    }

    /// Whether a look could find something else after it. LVs and loop devices are made and removed by pods coming and
    /// going.
    fn counts(&self, echoes: Echoes) -> bool {
        let passing = ["loop", "dm-", "zram", "ram"].iter().any(|kind| self.name.starts_with(kind));
        let echo = echoes == Echoes::Expected && self.action == "change";
        !passing && !echo
    }
}

/// Whether lvmd itself is writing to devices, or has just done so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Echoes {
    Expected,
    None,
}

/// Events of block devices; `None` stands for some that were lost.
pub type Events = mpsc::Receiver<Option<Uevent>>;

/// Opens the kernel's stream of events. They are read in a thread of their own: it waits in the kernel nearly always,
/// and lives as long as the process.
pub fn open() -> io::Result<Events> {
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(netlink::KOBJECT_UEVENT))?;
    // A shelf with a hundred disks fills the default of 200 KiB.
    if set_socket_recv_buffer_size_force(&socket, 8 << 20).is_err() {
        set_socket_recv_buffer_size(&socket, 1 << 20)?;
    }
    bind(&socket, &netlink::SocketAddrNetlink::new(0, KERNEL))?;
    let (told, events) = mpsc::channel(64);
    std::thread::Builder::new().name("uevents".to_owned()).spawn(move || read(&socket, &told))?;
    Ok(events)
}

fn read(socket: &OwnedFd, told: &mpsc::Sender<Option<Uevent>>) {
    let mut message = vec![0; LARGEST];
    loop {
        let event = match recv(socket, message.as_mut_slice(), RecvFlags::empty()) {
            Ok((read, _)) => match Uevent::parse(&message[..read.min(LARGEST)]) {
                Some(event) => Some(event),
                None => continue,
            },
            Err(Errno::INTR) => continue,
            Err(Errno::NOBUFS) => None,
            Err(error) => {
                tracing::error!(%error, "the kernel's events can not be read any more");
                return;
            }
        };
        if told.blocking_send(event).is_err() {
            return;
        }
    }
}

/// Calls `heard` at each event that counts, and tells `listeners` of each burst, as long as there are events to come.
pub async fn watch(mut events: Events, turns: Turns, heard: impl Fn(), listeners: Arc<broadcast::Sender<()>>) {
    let mut first = None::<Instant>;
    loop {
        let event = match first {
            None => events.recv().await,
            Some(since) => {
                let left = LONGEST.saturating_sub(since.elapsed()).min(QUIET);
                match tokio::time::timeout(left, events.recv()).await {
                    Ok(event) => event,
                    Err(_) => {
                        first = None;
                        tracing::debug!("block devices have changed");
                        // Nobody listens: nobody is told.
                        let _ = listeners.send(());
                        continue;
                    }
                }
            }
        };
        let Some(event) = event else { return };
        let echoes = if turns.changed_within(ECHO) { Echoes::Expected } else { Echoes::None };
        if event.is_none_or(|event| event.counts(echoes)) {
            heard();
            first.get_or_insert_with(Instant::now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(action: &str, name: &str) -> Uevent {
        let raw = format!(
            "{action}@/devices/x/block/{name}\0ACTION={action}\0DEVPATH=/devices/x\0SUBSYSTEM=block\0MAJOR=8\0DEVNAME={name}\0DEVTYPE=disk\0SEQNUM=1\0"
        );
        Uevent::parse(raw.as_bytes()).unwrap()
    }

    #[test]
    fn only_block_devices_are_heard() {
        assert_eq!(event("add", "sda"), Uevent { action: "add".to_owned(), name: "sda".to_owned() });
        assert_eq!(Uevent::parse(b"add@/x\0ACTION=add\0SUBSYSTEM=net\0DEVNAME=x\0"), None);
        assert_eq!(Uevent::parse(b"libudev\0\xfe\xed\xca\xfe"), None);
        assert_eq!(Uevent::parse(b""), None);
    }

    #[test]
    fn the_echo_of_an_own_write_is_absorbed_but_a_new_disk_is_not() {
        assert!(event("change", "sda").counts(Echoes::None));
        assert!(!event("change", "sda").counts(Echoes::Expected));
        assert!(event("add", "sdb").counts(Echoes::Expected));
        assert!(event("remove", "sdb").counts(Echoes::Expected));
        assert!(!event("add", "dm-3").counts(Echoes::None));
        assert!(!event("change", "loop3").counts(Echoes::None));
    }
}
