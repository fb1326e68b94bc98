//! What is told as an Event when a node's status changes. Pure: the difference of two statuses.

use crds::node_storage::{Device, DeviceState, NodeStorageStatus};

/// One Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    pub warning: bool,
    pub reason: &'static str,
    pub note: String,
}

/// Enough for a person to see what happened; a shelf of disks that is pulled is one message here and all in the status.
const MOST: usize = 16;

/// An Event's note has room for 1,024 bytes.
const LONGEST_NOTE: usize = 1000;

/// News of devices. None at the very first look: every device would be news then.
pub fn of_devices(old: &NodeStorageStatus, new: &NodeStorageStatus) -> Vec<News> {
    if old.agent.is_none() {
        return Vec::new();
    }
    let before = |id: &str| old.devices.iter().find(|device| device.id == id);
    let after = |id: &str| new.devices.iter().any(|device| device.id == id);
    let changed = new.devices.iter().filter_map(|device| match before(&device.id) {
        None => Some(News { warning: false, reason: "DeviceAppeared", note: sentence(device) }),
        Some(old) if standing(old) != standing(device) => {
            Some(News { warning: left(old, device), reason: "DeviceChanged", note: sentence(device) })
        }
        Some(_) => None,
    });
    let gone = old.devices.iter().filter(|device| !after(&device.id)).map(|device| News {
        warning: device.state == DeviceState::InUse,
        reason: "DeviceGone",
        note: format!("device {} ({}) is gone", device.id, device.path),
    });
    let mut news: Vec<_> = changed.chain(gone).collect();
    if news.len() > MOST {
        let rest = news.len() - MOST;
        news.truncate(MOST);
        news.push(News {
            warning: false,
            reason: "DeviceChanged",
            note: format!("{rest} more devices changed: see status.devices"),
        });
    }
    news
}

/// News of a step that was carried out, or was not.
pub fn of_step(step: &str, error: Option<&str>) -> News {
    match error {
        None => News { warning: false, reason: "StepDone", note: cut(step.to_owned()) },
        Some(error) => News { warning: true, reason: "StepFailed", note: cut(format!("{step}: {error}")) },
    }
}

/// State and codes: what a message says of sizes or holders may change without being news.
fn standing(device: &Device) -> (DeviceState, Option<&str>, Vec<&str>) {
    let codes = device.reasons.iter().map(|reason| reason.code.as_str()).collect();
    (device.state, device.class.as_deref(), codes)
}

fn left(old: &Device, new: &Device) -> bool {
    old.state == DeviceState::InUse && new.state != DeviceState::InUse
}

fn sentence(device: &Device) -> String {
    let class = device.class.as_deref().map(|class| format!(" by class {class}")).unwrap_or_default();
    let reasons: Vec<_> = device.reasons.iter().map(|reason| format!("{}: {}", reason.code, reason.message)).collect();
    let state = match device.state {
        DeviceState::InUse => "is in use",
        DeviceState::Wanted => "is to be taken",
        DeviceState::Available => "is available",
        DeviceState::Refused => "is not used",
    };
    let why = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
    cut(format!("device {} ({}) {state}{class}{why}", device.id, device.path))
}

fn cut(mut note: String) -> String {
    if note.len() > LONGEST_NOTE {
        let end = (0..=LONGEST_NOTE).rev().find(|end| note.is_char_boundary(*end)).unwrap_or(0);
        note.truncate(end);
        note.push('…');
    }
    note
}
