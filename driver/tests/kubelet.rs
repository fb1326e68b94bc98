//! kubelet's calls over its sockets, down to what lvmd is asked. There is no API server here, and none is needed.

#![allow(clippy::unwrap_used, reason = "a test")]

mod scripted;

use std::{collections::HashMap, path::Path, time::Duration};

use driver::{
    csi::{
        NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetVolumeStatsRequest,
        NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
        ProbeRequest, VolumeCapability,
        identity_client::IdentityClient,
        node_client::NodeClient,
        node_service_capability,
        volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
        volume_usage::Unit,
    },
    node::{self, registration},
};
use scripted::Scripted;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

const NODE: &str = "no-node-of-any-cluster";
const STAGED: &str = "/var/lib/kubelet/plugins/kubernetes.io/csi/csi.stowage.dev/abc/globalmount";
const TARGET: &str = "/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/pvc-1/mount";

/// A driver that runs, and the lvmd that it asks.
struct Running {
    folder: TempDir,
    lvmd: Scripted,
    channel: Channel,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Running {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (lvmd, socket) = (Scripted::new(&[]), folder.path().join("lvmd.sock"));
        let (serving, at) = (lvmd.clone(), socket.clone());
        tokio::spawn(async move { serving.serve(&at).await });
        let args = node::Args {
            // Of no cluster that the person who runs this may have a kubeconfig of.
            node_name: NODE.into(),
            lvmd: socket,
            kubelet_root: folder.path().to_owned(),
            health: "127.0.0.1:0".parse().unwrap(),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(node::run(args, async move {
            let _ = stopped.await;
        }));
        let channel = connect(&registration::csi_socket_path(folder.path())).await;
        Self { folder, lvmd, channel, stop, ended }
    }

    fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }
}

async fn connect(socket: &Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    for _ in 0..500 {
        if let Ok(channel) = endpoint.connect().await {
            return channel;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody serves {}", socket.display());
}

fn context() -> HashMap<String, String> {
    [("stowage.dev/device-class", "fast"), ("stowage.dev/cluster-id", "cluster")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn capability(access_type: AccessType, mode: Mode) -> Option<VolumeCapability> {
    Some(VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode: mode.into() }) })
}

fn mount(fs_type: &str, options: &[&str]) -> AccessType {
    AccessType::Mount(MountVolume {
        fs_type: fs_type.into(),
        mount_flags: options.iter().map(|&option| option.to_owned()).collect(),
        volume_mount_group: String::new(),
    })
}

fn stage() -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: "pvc-1".into(),
        staging_target_path: STAGED.into(),
        volume_capability: capability(mount("ext4", &["noatime"]), Mode::SingleNodeMultiWriter),
        volume_context: context(),
        ..NodeStageVolumeRequest::default()
    }
}

fn publish() -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: "pvc-1".into(),
        staging_target_path: STAGED.into(),
        target_path: TARGET.into(),
        volume_capability: capability(mount("ext4", &[]), Mode::SingleNodeMultiWriter),
        volume_context: context(),
        ..NodePublishVolumeRequest::default()
    }
}

fn code<T: std::fmt::Debug>(outcome: Result<T, Status>) -> Code {
    outcome.unwrap_err().code()
}

#[tokio::test]
async fn a_driver_without_an_api_server_is_found_ready_and_stops() {
    let running = Running::start().await;
    // kubelet is told where the driver is.
    connect(&registration::socket_path(running.folder.path())).await;
    let mut identity = IdentityClient::new(running.channel.clone());
    for _ in 0..500 {
        if identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready == Some(true) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(true));

    let info = running.node().node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), (NODE, 0));
    let segments = info.accessible_topology.unwrap().segments;
    assert_eq!(segments, [("topology.stowage.dev/node".to_owned(), NODE.to_owned())].into());

    let capabilities = running.node().node_get_capabilities(NodeGetCapabilitiesRequest {}).await.unwrap().into_inner();
    let names: Vec<_> = capabilities
        .capabilities
        .iter()
        .map(|capability| match &capability.r#type {
            Some(node_service_capability::Type::Rpc(rpc)) => rpc.r#type().as_str_name(),
            None => "",
        })
        .collect();
    assert_eq!(names, ["STAGE_UNSTAGE_VOLUME", "GET_VOLUME_STATS", "EXPAND_VOLUME", "SINGLE_NODE_MULTI_WRITER"]);

    let Running { stop, ended, channel, .. } = running;
    drop(channel);
    stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(15), ended).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_volume_goes_through_its_life_on_a_node() {
    let running = Running::start().await;
    let mut node = running.node();
    node.node_stage_volume(stage()).await.unwrap();
    let asked = running.lvmd.last("StageRequest");
    for part in [
        r#"name: "pvc-1", cluster_id: "cluster", class: "fast""#,
        STAGED,
        r#"fs_type: "ext4""#,
        r#"["noatime"]"#,
        "block: false",
    ] {
        assert!(asked.contains(part), "{asked}");
    }

    node.node_publish_volume(NodePublishVolumeRequest { readonly: true, ..publish() }).await.unwrap();
    let asked = running.lvmd.last("PublishRequest");
    for part in [STAGED, TARGET, "block: false, read_only: true"] {
        assert!(asked.contains(part), "{asked}");
    }

    let stats =
        NodeGetVolumeStatsRequest { volume_id: "pvc-1".into(), volume_path: TARGET.into(), ..Default::default() };
    let usage = node.node_get_volume_stats(stats).await.unwrap().into_inner().usage;
    let usage: Vec<_> = usage.iter().map(|usage| (usage.unit(), usage.total, usage.used, usage.available)).collect();
    assert_eq!(usage, [(Unit::Bytes, 1000, 400, 600), (Unit::Inodes, 100, 25, 75)]);

    let expand =
        NodeExpandVolumeRequest { volume_id: "pvc-1".into(), volume_path: TARGET.into(), ..Default::default() };
    assert_eq!(node.node_expand_volume(expand).await.unwrap().into_inner().capacity_bytes, 1 << 30);

    let unpublish = NodeUnpublishVolumeRequest { volume_id: "pvc-1".into(), target_path: TARGET.into() };
    node.node_unpublish_volume(unpublish).await.unwrap();
    let unstage = NodeUnstageVolumeRequest { volume_id: "pvc-1".into(), staging_target_path: STAGED.into() };
    node.node_unstage_volume(unstage).await.unwrap();
    assert!(running.lvmd.last("UnpublishRequest").contains(TARGET));
    assert!(running.lvmd.last("UnstageRequest").contains(STAGED));
}

#[tokio::test]
async fn a_block_volume_has_no_filesystem_and_no_inodes() {
    let running = Running::start().await;
    let mut node = running.node();
    let block = capability(AccessType::Block(BlockVolume {}), Mode::SingleNodeSingleWriter);
    node.node_stage_volume(NodeStageVolumeRequest { volume_capability: block.clone(), ..stage() }).await.unwrap();
    let asked = running.lvmd.last("StageRequest");
    assert!(asked.contains(r#"fs_type: """#) && asked.contains("block: true"), "{asked}");
    let target = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/1";
    let request = NodePublishVolumeRequest { volume_capability: block, target_path: target.into(), ..publish() };
    node.node_publish_volume(request).await.unwrap();
    let stats =
        NodeGetVolumeStatsRequest { volume_id: "pvc-1".into(), volume_path: target.into(), ..Default::default() };
    assert_eq!(node.node_get_volume_stats(stats).await.unwrap().into_inner().usage.len(), 1);
    // kubelet of old gives no capability here.
    let expand =
        NodeExpandVolumeRequest { volume_id: "pvc-1".into(), volume_path: target.into(), ..Default::default() };
    node.node_expand_volume(expand).await.unwrap();
    assert!(running.lvmd.last("GrowFilesystemRequest").contains("block: true"));
}

#[tokio::test]
async fn a_filesystem_that_nobody_named_is_the_classes_or_xfs() {
    let running = Running::start().await;
    let unnamed = || capability(mount("", &[]), Mode::SingleNodeWriter);
    let request = NodeStageVolumeRequest { volume_capability: unnamed(), ..stage() };
    running.node().node_stage_volume(request).await.unwrap();
    assert!(running.lvmd.last("StageRequest").contains(r#"fs_type: "xfs""#));

    let mut volume_context = context();
    volume_context.insert("stowage.dev/fs-type".into(), "ext4".into());
    let request = NodeStageVolumeRequest { volume_capability: unnamed(), volume_context, ..stage() };
    running.node().node_stage_volume(request).await.unwrap();
    assert!(running.lvmd.last("StageRequest").contains(r#"fs_type: "ext4""#));
}

#[tokio::test]
async fn what_is_missing_or_impossible_never_reaches_lvmd() {
    let running = Running::start().await;
    let mut node = running.node();
    let no_id = NodeStageVolumeRequest { volume_id: String::new(), ..stage() };
    let no_path = NodeStageVolumeRequest { staging_target_path: String::new(), ..stage() };
    let no_capability = NodeStageVolumeRequest { volume_capability: None, ..stage() };
    let no_context = NodeStageVolumeRequest { volume_context: HashMap::new(), ..stage() };
    let many = capability(mount("xfs", &[]), Mode::MultiNodeMultiWriter);
    let many_nodes = NodeStageVolumeRequest { volume_capability: many, ..stage() };
    for request in [no_id, no_path, no_capability, no_context, many_nodes] {
        assert_eq!(code(node.node_stage_volume(request).await), Code::InvalidArgument);
    }
    let no_target = NodePublishVolumeRequest { target_path: String::new(), ..publish() };
    assert_eq!(code(node.node_publish_volume(no_target).await), Code::InvalidArgument);
    let no_staging = NodePublishVolumeRequest { staging_target_path: String::new(), ..publish() };
    assert_eq!(code(node.node_publish_volume(no_staging).await), Code::InvalidArgument);
    assert_eq!(code(node.node_unstage_volume(NodeUnstageVolumeRequest::default()).await), Code::InvalidArgument);
    assert_eq!(code(node.node_unpublish_volume(NodeUnpublishVolumeRequest::default()).await), Code::InvalidArgument);
    assert_eq!(code(node.node_get_volume_stats(NodeGetVolumeStatsRequest::default()).await), Code::InvalidArgument);
    assert_eq!(code(node.node_expand_volume(NodeExpandVolumeRequest::default()).await), Code::InvalidArgument);
    for request in ["StageRequest", "PublishRequest", "UnstageRequest", "UnpublishRequest", "StatsRequest"] {
        assert_eq!(running.lvmd.count(request), 0, "{request}");
    }
}

#[tokio::test]
async fn lvmds_answer_is_kubelets() {
    let running = Running::start().await;
    running.lvmd.fail("Stage", Some(Status::failed_precondition("the LV holds an ext4 that Stowage did not make")));
    let refused = running.node().node_stage_volume(stage()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(refused.message(), "the LV holds an ext4 that Stowage did not make");
    running.lvmd.fail("Stage", None);
    running.node().node_stage_volume(stage()).await.unwrap();
}
