//! What is told as an Event when a node's status changes. Pure: the difference of two statuses.

use crds::node_storage::{Device, DeviceState, NodeStorageStatus};

/// One Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    pub level: Level,
    pub reason: &'static str,
    /// What it is about. Events of one reason and subject within some minutes become one with a count.
    pub subject: String,
    pub note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Normal,
    Warning,
}

/// Enough for a person to see what happened; a shelf of disks that is pulled is one message here and all in the status.
const MOST: usize = 16;

/// An Event's note has room for 1,024 bytes, its action for 128.
const LONGEST_NOTE: usize = 1000;
const LONGEST_SUBJECT: usize = 120;

/// News of devices. None at the very first look: every device would be news then.
pub fn of_devices(old: &NodeStorageStatus, new: &NodeStorageStatus) -> Vec<News> {
    if old.agent.is_none() {
        return Vec::new();
    }
    let before = |id: &str| old.devices.iter().find(|device| device.id == id);
    let after = |id: &str| new.devices.iter().any(|device| device.id == id);
    let changed = new.devices.iter().filter_map(|device| match before(&device.id) {
        None => Some(of_device(device, "DeviceAppeared", Level::Normal, sentence(device))),
        Some(old) if standing(old) != standing(device) => {
            let left = old.state == DeviceState::InUse && device.state != DeviceState::InUse;
            let level = if left { Level::Warning } else { Level::Normal };
            Some(of_device(device, "DeviceChanged", level, sentence(device)))
        }
        Some(_) => None,
    });
    let gone = old.devices.iter().filter(|device| !after(&device.id)).map(|device| {
        let level = if device.state == DeviceState::InUse { Level::Warning } else { Level::Normal };
        of_device(device, "DeviceGone", level, format!("device {} ({}) is gone", device.id, device.path))
    });
    let mut news: Vec<_> = changed.chain(gone).collect();
    if news.len() > MOST {
        let rest = news.len() - MOST;
        news.truncate(MOST);
        news.push(News {
            level: Level::Normal,
            reason: "DevicesChanged",
            subject: "DevicesChanged".to_owned(),
            note: format!("{rest} more devices changed: see status.devices"),
        });
    }
    news
}

/// News of a step that was carried out, or was not.
pub fn of_step(step: &str, error: Option<&str>) -> News {
    let subject = cut(step.to_owned(), LONGEST_SUBJECT);
    match error {
        None => News { level: Level::Normal, reason: "StepDone", subject, note: cut(step.to_owned(), LONGEST_NOTE) },
        Some(error) => {
            let note = cut(format!("{step}: {error}"), LONGEST_NOTE);
            News { level: Level::Warning, reason: "StepFailed", subject, note }
        }
    }
}

fn of_device(device: &Device, reason: &'static str, level: Level, note: String) -> News {
    News { level, reason, subject: cut(device.id.clone(), LONGEST_SUBJECT), note: cut(note, LONGEST_NOTE) }
}

/// State and codes: what a message says of sizes or holders may change without being news.
fn standing(device: &Device) -> (DeviceState, Option<&str>, Vec<&str>) {
    let codes = device.reasons.iter().map(|reason| reason.code.as_str()).collect();
    (device.state, device.class.as_deref(), codes)
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
    format!("device {} ({}) {state}{class}{why}", device.id, device.path)
}

/// At most so many bytes and an ellipsis.
fn cut(mut text: String, longest: usize) -> String {
    if text.len() > longest {
        let end = (0..=longest).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use crds::node_storage::{Agent, DeviceReason, device_reason};

    use super::*;

    fn device(id: &str, state: DeviceState) -> Device {
        Device {
            id: id.into(),
            path: format!("/dev/disk/by-id/{id}"),
            size: 1 << 30,
            model: None,
            serial: None,
            transport: None,
            type_: "disk".into(),
            rotational: false,
            state,
            class: (state == DeviceState::InUse).then(|| "fast".into()),
            reasons: Vec::new(),
        }
    }

    fn status(devices: Vec<Device>) -> NodeStorageStatus {
        NodeStorageStatus { agent: Some(Agent::default()), devices, ..NodeStorageStatus::default() }
    }

    fn told(old: Vec<Device>, new: Vec<Device>) -> Vec<(Level, &'static str, String)> {
        of_devices(&status(old), &status(new)).into_iter().map(|news| (news.level, news.reason, news.subject)).collect()
    }

    #[test]
    fn what_changed_is_told_and_nothing_else() {
        let (a, b) = (device("a", DeviceState::Available), device("b", DeviceState::InUse));
        assert_eq!(told(vec![a.clone(), b.clone()], vec![a.clone(), b.clone()]), []);
        let used = device("a", DeviceState::InUse);
        assert_eq!(told(vec![a.clone()], vec![used.clone()]), [(Level::Normal, "DeviceChanged", "a".into())]);
        assert_eq!(told(vec![used], vec![a.clone()]), [(Level::Warning, "DeviceChanged", "a".into())]);
        assert_eq!(
            told(vec![b], vec![a.clone()]),
            [(Level::Normal, "DeviceAppeared", "a".into()), (Level::Warning, "DeviceGone", "b".into())]
        );

        let refused = |message: &str| {
            let reason = DeviceReason { code: device_reason::IN_USE.into(), message: message.into() };
            Device { reasons: vec![reason], ..device("a", DeviceState::Refused) }
        };
        assert_eq!(told(vec![refused("mounted at /a")], vec![refused("mounted at /b")]), []);
        let news = of_devices(&status(vec![a]), &status(vec![refused("mounted at /a")]));
        assert_eq!(news[0].note, "device a (/dev/disk/by-id/a) is not used: InUse: mounted at /a");
    }

    #[test]
    fn the_first_look_and_a_crowd_are_no_flood() {
        let crowd: Vec<_> = (0..100).map(|n| device(&format!("d{n}"), DeviceState::Available)).collect();
        assert_eq!(of_devices(&NodeStorageStatus::default(), &status(crowd.clone())), []);
        let news = of_devices(&status(Vec::new()), &status(crowd));
        assert_eq!((news.len(), news[MOST].note.as_str()), (17, "84 more devices changed: see status.devices"));
    }

    #[test]
    fn a_note_is_no_longer_than_an_event_takes() {
        let news = of_step(&"ä".repeat(2000), Some("no"));
        assert!(news.note.len() <= 1024 && news.subject.len() <= 128, "{} {}", news.note.len(), news.subject.len());
    }
}
