//! The CSI service Node: kubelet's calls, checked here and carried out by lvmd. None of them needs the API server.

use std::{collections::HashMap, future::Future};

use crds::{device_class::FilesystemType, names};
use lvmd::proto::{
    GrowFilesystemRequest, PublishRequest, StageRequest, StatsRequest, UnpublishRequest, UnstageRequest, VolumeId,
};
use tonic::{Request, Response, Status};

use super::{
    capability::{self, Kind},
    error::NodeError,
    staged::Staged,
};
use crate::{
    csi::{
        NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
        NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
        NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
        NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
        NodeUnstageVolumeResponse, Topology, VolumeUsage, node_server,
        node_service_capability::{self, Rpc, rpc},
        volume_usage::Unit,
    },
    hands::{Hands, HandsError},
    in_flight::InFlight,
};

/// kubelet's folder of block volumes, in every path of one.
const BLOCK_FOLDER: &str = "/volumeDevices/";

pub struct Service {
    pub node_name: String,
    pub hands: Hands,
    /// Told of each filesystem that was staged.
    pub staged: Staged,
    in_flight: InFlight,
}

impl Service {
    pub fn new(node_name: String, hands: Hands, staged: Staged) -> Self {
        Self { node_name, hands, staged, in_flight: InFlight::default() }
    }

    /// Lets `work` at the volume, in a task of its own that holds it: tonic drops the handler of a call that kubelet
    /// gave up on, and the next call must not begin while lvmd is still at work for the first.
    async fn at_work<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl Future<Output = Result<T, HandsError>> + Send + 'static,
    ) -> Result<T, NodeError> {
        let held = self.in_flight.hold(volume).ok_or_else(|| NodeError::Busy(volume.to_owned()))?;
        let task = tokio::spawn(async move {
            let _held = held;
            work.await
        });
        Ok(task.await??)
    }

    async fn stage(&self, request: NodeStageVolumeRequest) -> Result<(), NodeError> {
        present("volume_id", &request.volume_id)?;
        present("staging_target_path", &request.staging_target_path)?;
        let used = capability::read(request.volume_capability.as_ref())?;
        let volume = of_context(&request.volume_id, &request.volume_context)?;
        let (block, fs_type, mount_options) = match used.kind {
            Kind::Block => (true, String::new(), Vec::new()),
            Kind::Filesystem { fs_type, mount_options } => {
                (false, filesystem(fs_type, &request.volume_context), mount_options)
            }
        };
        let (hands, staging_path) = (self.hands.clone(), request.staging_target_path);
        let read_only = used.read_only;
        let made = self
            .at_work(&request.volume_id, async move {
                hands
                    .stage(StageRequest {
                        volume: Some(volume),
                        staging_path,
                        fs_type,
                        mount_options,
                        block,
                        read_only,
                    })
                    .await
            })
            .await?;
        if !block {
            self.staged.tell(&request.volume_id, &made.fs_type, made.fs_uuid);
        }
        Ok(())
    }

    async fn unstage(&self, request: NodeUnstageVolumeRequest) -> Result<(), NodeError> {
        present("volume_id", &request.volume_id)?;
        present("staging_target_path", &request.staging_target_path)?;
        let (hands, volume) = (self.hands.clone(), of_name(&request.volume_id));
        self.at_work(&request.volume_id, async move {
            hands.unstage(UnstageRequest { volume, staging_path: request.staging_target_path }).await
        })
        .await
    }

    async fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), NodeError> {
        present("volume_id", &request.volume_id)?;
        present("staging_target_path", &request.staging_target_path)?;
        present("target_path", &request.target_path)?;
        let used = capability::read(request.volume_capability.as_ref())?;
        let volume = of_context(&request.volume_id, &request.volume_context)?;
        let hands = self.hands.clone();
        self.at_work(&request.volume_id, async move {
            hands
                .publish(PublishRequest {
                    volume: Some(volume),
                    staging_path: request.staging_target_path,
                    target_path: request.target_path,
                    block: used.kind == Kind::Block,
                    read_only: used.read_only || request.readonly,
                })
                .await
        })
        .await
    }

    async fn unpublish(&self, request: NodeUnpublishVolumeRequest) -> Result<(), NodeError> {
        present("volume_id", &request.volume_id)?;
        present("target_path", &request.target_path)?;
        let (hands, volume) = (self.hands.clone(), of_name(&request.volume_id));
        self.at_work(&request.volume_id, async move {
            hands.unpublish(UnpublishRequest { volume, target_path: request.target_path }).await
        })
        .await
    }

    /// Holds nothing: kubelet asks each minute, also while a mount takes its time.
    async fn usage(&self, request: NodeGetVolumeStatsRequest) -> Result<Vec<VolumeUsage>, NodeError> {
        present("volume_id", &request.volume_id)?;
        present("volume_path", &request.volume_path)?;
        let volume = of_name(&request.volume_id);
        let asked = self.hands.stats(StatsRequest { volume, path: request.volume_path }).await;
        let stats = asked.map_err(|error| NodeError::from(error).at_path())?;
        let entry = |unit: Unit, total: u64, used: u64, available: u64| VolumeUsage {
            unit: unit.into(),
            total: signed(total),
            used: signed(used),
            available: signed(available),
        };
        let bytes = entry(Unit::Bytes, stats.total_bytes, stats.used_bytes, stats.available_bytes);
        if stats.block {
            return Ok(vec![bytes]);
        }
        let inodes = entry(Unit::Inodes, stats.total_inodes, stats.used_inodes, stats.available_inodes);
        Ok(vec![bytes, inodes])
    }

    async fn expand(&self, request: NodeExpandVolumeRequest) -> Result<u64, NodeError> {
        present("volume_id", &request.volume_id)?;
        present("volume_path", &request.volume_path)?;
        let block = match &request.volume_capability {
            Some(capability) => capability::read(Some(capability))?.kind == Kind::Block,
            // The specification lets the caller leave it out; kubelet's paths tell the two apart.
            None => request.volume_path.contains(BLOCK_FOLDER),
        };
        let (hands, volume) = (self.hands.clone(), of_name(&request.volume_id));
        self.at_work(&request.volume_id, async move {
            hands.grow_filesystem(GrowFilesystemRequest { volume, path: request.volume_path, block }).await
        })
        .await
        .map_err(NodeError::at_path)
    }
}

#[tonic::async_trait]
impl node_server::Node for Service {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        self.stage(request.into_inner()).await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        self.unstage(request.into_inner()).await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        self.publish(request.into_inner()).await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        self.unpublish(request.into_inner()).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let usage = self.usage(request.into_inner()).await?;
        Ok(Response::new(NodeGetVolumeStatsResponse { usage }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let capacity_bytes = signed(self.expand(request.into_inner()).await?);
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capabilities = [
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            // With it kubelet tells ReadWriteOncePod from ReadWriteOnce.
            rpc::Type::SingleNodeMultiWriter,
        ]
        .map(|type_| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: type_.into() })),
        });
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let segments = [(names::TOPOLOGY_NODE.to_owned(), names::topology_value(&self.node_name))].into();
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.node_name.clone(),
            // No limit but the space.
            max_volumes_per_node: 0,
            accessible_topology: Some(Topology { segments }),
        }))
    }
}

fn present(name: &'static str, value: &str) -> Result<(), NodeError> {
    if value.is_empty() { Err(NodeError::Missing(name)) } else { Ok(()) }
}

/// For the calls to which kubelet gives no context: lvmd knows a volume that is mounted by its name.
fn of_name(name: &str) -> Option<VolumeId> {
    Some(VolumeId { name: name.to_owned(), ..VolumeId::default() })
}

fn of_context(name: &str, context: &HashMap<String, String>) -> Result<VolumeId, NodeError> {
    let of = |key: &'static str| context.get(key).cloned().ok_or(NodeError::NoContext(key));
    Ok(VolumeId {
        name: name.to_owned(),
        cluster_id: of(names::context::CLUSTER_ID)?,
        class: of(names::context::DEVICE_CLASS)?,
    })
}

fn filesystem(asked: String, context: &HashMap<String, String>) -> String {
    if !asked.is_empty() {
        return asked;
    }
    context.get(names::context::FS_TYPE).cloned().unwrap_or_else(|| FilesystemType::default().as_str().to_owned())
}

/// CSI has no unsigned numbers. No disk has 8 EiB.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
