//! Whether a term of a DeviceClass describes a device, as far as a NodeStorage's status shows. lvmd decides what is taken;
//! this only finds the terms that can not describe anything.

use crds::{
    device_class::{DeviceTerm, DeviceType},
    node_storage::Device,
};

/// `None` where it can not be told from what is published: a device has more paths than the one that is listed, and its
/// vendor is not listed.
pub fn describes(term: &DeviceTerm, device: &Device) -> Option<bool> {
    let text = |patterns: &Option<Vec<String>>, value: Option<&str>| {
        patterns.as_ref().is_none_or(|patterns| {
            value.is_some_and(|value| patterns.iter().any(|pattern| glob(pattern.as_bytes(), value.as_bytes())))
        })
    };
    let size = u64::try_from(device.size).unwrap_or(0);
    let bound = |bound: &Option<String>| bound.as_deref().and_then(|text| crds::quantity::parse(text).ok());
    let told = text(&term.ids, Some(&device.id))
        && text(&term.serials, device.serial.as_deref())
        && text(&term.models, device.model.as_deref())
        && term.transports.as_ref().is_none_or(|all| device.transport.as_ref().is_some_and(|one| all.contains(one)))
        && term.rotational.is_none_or(|rotational| rotational == device.rotational)
        && bound(&term.min_size).is_none_or(|least| size >= least)
        && bound(&term.max_size).is_none_or(|most| size <= most)
        && is_of_type(term.types.as_deref().unwrap_or(&[DeviceType::Disk, DeviceType::Mpath]), &device.type_);
    if !told {
        return Some(false);
    }
    let certain = term.vendors.is_none() && text(&term.paths, Some(&device.path));
    certain.then_some(true)
}

/// lsblk's words: `raid1`, `raid10`, … are all arrays.
fn is_of_type(types: &[DeviceType], found: &str) -> bool {
    types.iter().any(|wanted| match wanted {
        DeviceType::Disk => found == "disk",
        DeviceType::Mpath => found == "mpath",
        DeviceType::Part => found == "part",
        DeviceType::Crypt => found == "crypt",
        DeviceType::Raid => found.starts_with("raid") || found == "linear",
        DeviceType::Loop => found == "loop",
    })
}

/// `*` stands for any characters, none included.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], _) => text.is_empty(),
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|skip| glob(rest, &text[skip..])),
        ([first, rest @ ..], [byte, more @ ..]) => first == byte && glob(rest, more),
        ([_, ..], []) => false,
    }
}

/// What a person wrote, in one line.
pub fn in_words(index: usize, term: &DeviceTerm) -> String {
    let json = serde_json::to_string(term).unwrap_or_default();
    format!("include[{index}] {json}")
}

#[cfg(test)]
mod tests {
    use crds::node_storage::DeviceState;

    use super::*;

    fn disk() -> Device {
        Device {
            id: "virtio-a".into(),
            path: "/dev/disk/by-id/virtio-a".into(),
            size: 10 << 30,
            model: Some("Fast 2000".into()),
            serial: None,
            transport: Some("virtio".into()),
            type_: "disk".into(),
            rotational: true,
            state: DeviceState::Available,
            class: None,
            reasons: vec![],
        }
    }

    fn texts(all: &[&str]) -> Option<Vec<String>> {
        Some(all.iter().map(|text| (*text).to_owned()).collect())
    }

    #[test]
    fn a_term_describes_what_has_all_its_fields() {
        let term = DeviceTerm::default;
        for (given, expected) in [
            (DeviceTerm { models: texts(&["Slow*", "Fast*"]), ..term() }, Some(true)),
            (DeviceTerm { models: texts(&["Slow*"]), ..term() }, Some(false)),
            (DeviceTerm { models: texts(&["Fast*"]), rotational: Some(false), ..term() }, Some(false)),
            (DeviceTerm { serials: texts(&["*"]), ..term() }, Some(false)),
            (DeviceTerm { min_size: Some("10Gi".into()), max_size: Some("10Gi".into()), ..term() }, Some(true)),
            (DeviceTerm { min_size: Some("11Gi".into()), ..term() }, Some(false)),
            (DeviceTerm { types: Some(vec![DeviceType::Loop]), ..term() }, Some(false)),
            (DeviceTerm { paths: texts(&["/dev/disk/by-id/virtio-*"]), ..term() }, Some(true)),
            (DeviceTerm { paths: texts(&["/dev/disk/by-path/x"]), ..term() }, None),
            (DeviceTerm { vendors: texts(&["x"]), ..term() }, None),
            (DeviceTerm { vendors: texts(&["x"]), rotational: Some(false), ..term() }, Some(false)),
        ] {
            assert_eq!(describes(&given, &disk()), expected, "{given:?}");
        }
    }
}
