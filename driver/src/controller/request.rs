//! What a CreateVolume asks for, checked as far as the request alone tells. Pure.

use std::collections::HashMap;

use crds::{
    device_class::FilesystemType,
    logical_volume::{Access, Claim},
    names,
    quantity::for_people,
};
use tonic::Code;

use crate::csi::{
    CapacityRange, CreateVolumeRequest, Topology, TopologyRequirement, VolumeCapability,
    volume_capability::{AccessType, access_mode::Mode},
};

/// What a request without a size gets, as other drivers do.
const DEFAULT_SIZE: u64 = 1 << 30;

#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// Of the LogicalVolume.
    pub name: String,
    pub class: String,
    pub size: Size,
    pub access: Access,
    /// That the PersistentVolume will name. Absent: the class's, see `context::FS_TYPE`.
    pub filesystem: Option<FilesystemType>,
    pub claim: Option<Claim>,
    pub topology: Nodes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub required: u64,
    pub limit: Option<u64>,
}

/// Where the volume may be, as values of the topology segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    Any,
    /// The most wanted first.
    Of(Vec<String>),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WishError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error(
        "access mode {0} is not possible: a volume is on the disks of one node, use ReadWriteOnce or ReadWriteOncePod"
    )]
    ManyNodes(&'static str),
    #[error("a volume is either a filesystem or a block device, not both")]
    BothKinds,
    #[error("{0} bytes are no size")]
    Negative(i64),
    #[error("at most {} are allowed, but at least {} are asked for", for_people(*limit), for_people(*required))]
    Limit { required: u64, limit: u64 },
    #[error("the StorageClass has no parameter {}: it names the DeviceClass", names::parameter::DEVICE_CLASS)]
    NoClass,
    #[error(
        "filesystem {name:?} is not known here: the StorageClass may name xfs or ext4 in {}",
        names::parameter::FS_TYPE
    )]
    Filesystem { name: String },
    #[error(
        "volumes are not made from snapshots or other volumes by this version: the claim has a data source, and an empty \
         volume is not what it asks for"
    )]
    Source,
    #[error("the StorageClass allows topologies without {}, which names the nodes", names::TOPOLOGY_NODE)]
    Topology,
}

impl WishError {
    /// `InvalidArgument` only for what stands in the claim for good: a StorageClass can be made anew under its name, and
    /// a later version may know more.
    pub const fn code(&self) -> Code {
        match self {
            Self::Missing(_) | Self::ManyNodes(_) | Self::BothKinds | Self::Negative(_) => Code::InvalidArgument,
            Self::Limit { .. } => Code::OutOfRange,
            Self::NoClass | Self::Filesystem { .. } | Self::Source | Self::Topology => Code::FailedPrecondition,
        }
    }
}

pub fn read(request: &CreateVolumeRequest) -> Result<Wish, WishError> {
    if request.name.is_empty() {
        return Err(WishError::Missing("name"));
    }
    let (access, fs_type) = capabilities(&request.volume_capabilities)?;
    let size = size(request.capacity_range.as_ref())?;
    if request.volume_content_source.is_some() {
        return Err(WishError::Source);
    }
    let class = request.parameters.get(names::parameter::DEVICE_CLASS).filter(|class| !class.is_empty());
    Ok(Wish {
        name: object_name(&request.name),
        class: class.ok_or(WishError::NoClass)?.clone(),
        size,
        access,
        filesystem: filesystem(&fs_type)?,
        claim: claim(&request.parameters),
        topology: nodes(request.accessibility_requirements.as_ref())?,
    })
}

/// The LogicalVolume for a CSI name: of the same name, as csi-provisioner's always are. CSI itself allows any text.
fn object_name(name: &str) -> String {
    if is_object_name(name) { name.to_owned() } else { format!("csi-{}", names::fnv1a_128(name.as_bytes())) }
}

/// RFC 1123 subdomain, as the API server wants names of objects. Also keeps a volume id from becoming another path of
/// the API server's.
pub fn is_object_name(name: &str) -> bool {
    let part = |part: &str| {
        let ends = |byte: Option<u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        ends(part.bytes().next()) && ends(part.bytes().last()) && part.bytes().all(inside)
    };
    name.len() <= 253 && name.split('.').all(part)
}

/// The one way in which all of them say the volume is used, and the filesystem's name.
pub fn capabilities(all: &[VolumeCapability]) -> Result<(Access, String), WishError> {
    let mut found: Option<(Access, String)> = None;
    for capability in all {
        let this = match &capability.access_type {
            None => return Err(WishError::Missing("access_type of a volume capability")),
            Some(AccessType::Block(_)) => (Access::Block, String::new()),
            Some(AccessType::Mount(mount)) => (Access::Filesystem, mount.fs_type.clone()),
        };
        let mode = capability.access_mode.as_ref().map_or(Mode::Unknown, |mode| mode.mode());
        match mode {
            Mode::Unknown => return Err(WishError::Missing("access_mode of a volume capability")),
            Mode::SingleNodeWriter
            | Mode::SingleNodeReaderOnly
            | Mode::SingleNodeSingleWriter
            | Mode::SingleNodeMultiWriter => {}
            Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter => {
                return Err(WishError::ManyNodes(mode.as_str_name()));
            }
        }
        match &found {
            Some((access, _)) if *access != this.0 => return Err(WishError::BothKinds),
            Some(_) => {}
            None => found = Some(this),
        }
    }
    found.ok_or(WishError::Missing("volume_capabilities"))
}

pub fn size(range: Option<&CapacityRange>) -> Result<Size, WishError> {
    let bytes = |signed: i64| u64::try_from(signed).map_err(|_| WishError::Negative(signed));
    let (required, limit) = range.map_or((0, 0), |range| (range.required_bytes, range.limit_bytes));
    let (required, limit) = (bytes(required)?, Some(bytes(limit)?).filter(|limit| *limit > 0));
    let required = match (required, limit) {
        (0, Some(limit)) => DEFAULT_SIZE.min(limit),
        (0, None) => DEFAULT_SIZE,
        (required, _) => required,
    };
    match limit {
        Some(limit) if limit < required => Err(WishError::Limit { required, limit }),
        Some(_) | None => Ok(Size { required, limit }),
    }
}

fn filesystem(fs_type: &str) -> Result<Option<FilesystemType>, WishError> {
    match fs_type {
        "" => Ok(None),
        name => FilesystemType::parse(name).map(Some).ok_or_else(|| WishError::Filesystem { name: name.to_owned() }),
    }
}

/// Absent where the provisioner does not say it (without `--extra-create-metadata`).
fn claim(parameters: &HashMap<String, String>) -> Option<Claim> {
    let parameter = |key| parameters.get(key).filter(|value| !value.is_empty()).cloned();
    Some(Claim {
        namespace: parameter(names::parameter::CLAIM_NAMESPACE)?,
        name: parameter(names::parameter::CLAIM_NAME)?,
    })
}

fn nodes(requirement: Option<&TopologyRequirement>) -> Result<Nodes, WishError> {
    let Some(requirement) = requirement else { return Ok(Nodes::Any) };
    let all = || requirement.preferred.iter().chain(&requirement.requisite);
    if all().next().is_none() {
        return Ok(Nodes::Any);
    }
    let mut nodes: Vec<String> = Vec::new();
    for node in all().filter_map(node) {
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    if nodes.is_empty() { Err(WishError::Topology) } else { Ok(Nodes::Of(nodes)) }
}

/// The node that a topology names, as the value of our segment.
pub fn node(topology: &Topology) -> Option<String> {
    topology.segments.get(names::TOPOLOGY_NODE).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::{
        VolumeContentSource,
        volume_capability::{AccessMode, BlockVolume, MountVolume},
    };

    fn capability(access_type: AccessType, mode: Mode) -> VolumeCapability {
        VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode: mode.into() }) }
    }

    fn mount(fs_type: &str) -> AccessType {
        AccessType::Mount(MountVolume { fs_type: fs_type.into(), ..MountVolume::default() })
    }

    fn topology(node: &str) -> Topology {
        Topology { segments: [(names::TOPOLOGY_NODE.to_owned(), node.to_owned())].into() }
    }

    fn request() -> CreateVolumeRequest {
        let parameter = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        CreateVolumeRequest {
            name: "pvc-1".into(),
            volume_capabilities: vec![capability(mount("ext4"), Mode::SingleNodeWriter)],
            parameters: [
                parameter(names::parameter::DEVICE_CLASS, "fast"),
                parameter(names::parameter::CLAIM_NAMESPACE, "d"),
                parameter(names::parameter::CLAIM_NAME, "c"),
            ]
            .into(),
            accessibility_requirements: Some(TopologyRequirement {
                requisite: vec![topology("n1"), topology("n2")],
                preferred: vec![topology("n2"), topology("n1")],
            }),
            ..CreateVolumeRequest::default()
        }
    }

    #[test]
    fn a_whole_request_is_read() {
        let wish = read(&request()).unwrap();
        assert_eq!(
            wish,
            Wish {
                name: "pvc-1".into(),
                class: "fast".into(),
                size: Size { required: 1 << 30, limit: None },
                access: Access::Filesystem,
                filesystem: Some(FilesystemType::Ext4),
                claim: Some(Claim { namespace: "d".into(), name: "c".into() }),
                topology: Nodes::Of(vec!["n2".into(), "n1".into()]),
            }
        );
    }

    #[test]
    fn what_can_heal_is_no_invalid_argument() {
        let with = |change: fn(&mut CreateVolumeRequest)| {
            let mut request = request();
            change(&mut request);
            read(&request).unwrap_err().code()
        };
        for (change, code) in [
            ((|r| r.name.clear()) as fn(&mut CreateVolumeRequest), Code::InvalidArgument),
            (|r| r.volume_capabilities.clear(), Code::InvalidArgument),
            (|r| r.volume_capabilities[0].access_type = None, Code::InvalidArgument),
            (|r| r.volume_capabilities[0].access_mode = None, Code::InvalidArgument),
            (|r| r.volume_capabilities[0] = capability(mount(""), Mode::MultiNodeMultiWriter), Code::InvalidArgument),
            (
                |r| {
                    let block = AccessType::Block(BlockVolume {});
                    r.volume_capabilities.push(capability(block, Mode::SingleNodeWriter));
                },
                Code::InvalidArgument,
            ),
            (|r| r.capacity_range = Some(CapacityRange { required_bytes: -1, limit_bytes: 0 }), Code::InvalidArgument),
            (|r| r.capacity_range = Some(CapacityRange { required_bytes: 2, limit_bytes: 1 }), Code::OutOfRange),
            (|r| r.parameters.clear(), Code::FailedPrecondition),
            (|r| r.volume_capabilities[0] = capability(mount("zfs"), Mode::SingleNodeWriter), Code::FailedPrecondition),
            (|r| r.volume_content_source = Some(VolumeContentSource::default()), Code::FailedPrecondition),
            (|r| r.accessibility_requirements.as_mut().unwrap().preferred = vec![Topology::default()], Code::Ok),
            (
                |r| {
                    r.accessibility_requirements =
                        Some(TopologyRequirement { requisite: vec![Topology::default()], preferred: vec![] });
                },
                Code::FailedPrecondition,
            ),
        ] {
            if code == Code::Ok {
                let mut request = request();
                change(&mut request);
                assert!(read(&request).is_ok());
            } else {
                assert_eq!(with(change), code);
            }
        }
    }

    #[test]
    fn a_name_that_no_object_can_have_becomes_one_that_stays_the_same() {
        assert_eq!(object_name("pvc-1"), "pvc-1");
        for name in ["Some Name/42", "..", &"N".repeat(128)] {
            assert!(is_object_name(&object_name(name)), "{name}");
            assert_eq!(object_name(name), object_name(name));
        }
        assert_ne!(object_name("A"), object_name("B"));
    }

    #[test]
    fn sizes_are_read_with_their_limit() {
        let range = |required_bytes, limit_bytes| size(Some(&CapacityRange { required_bytes, limit_bytes }));
        assert_eq!(size(None), Ok(Size { required: 1 << 30, limit: None }));
        assert_eq!(range(0, 0), Ok(Size { required: 1 << 30, limit: None }));
        assert_eq!(range(0, 512), Ok(Size { required: 512, limit: Some(512) }));
        assert_eq!(range(5, 0), Ok(Size { required: 5, limit: None }));
        assert_eq!(range(5, 5), Ok(Size { required: 5, limit: Some(5) }));
        assert_eq!(range(6, 5), Err(WishError::Limit { required: 6, limit: 5 }));
    }

    #[test]
    fn names_are_what_the_api_server_takes() {
        for name in ["pvc-1", "a", "a.b", "0", &"a".repeat(253)] {
            assert!(is_object_name(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "A", "a_b", "-a", "a-", "a..b", "a%2fb", "a?b", &"a".repeat(254)] {
            assert!(!is_object_name(name), "{name}");
        }
    }

    #[test]
    fn a_request_without_topology_may_be_anywhere() {
        assert_eq!(nodes(None), Ok(Nodes::Any));
        assert_eq!(nodes(Some(&TopologyRequirement::default())), Ok(Nodes::Any));
    }
}
