//! The gRPC service: checks what it is told, gives each change its turn, and says in a code what a caller can do.

pub mod ask;
pub mod code;

use std::{pin::Pin, sync::Arc, time::Duration};

use crds::storage_cluster::ExecutionPolicy;
use futures::{Stream, StreamExt};
use tokio::sync::{broadcast, watch};
use tokio_stream::wrappers::BroadcastStream;
use tonic::{Request, Response, Status};

use crate::{
    carry_out::{Done, carry_out},
    info,
    mount::{path::Target, stage::Writing, stats::Stats},
    node::Node,
    plan::{groups::plan, say, volumes::Access, wanted::Wanted},
    proto::{self, lvmd_server::Lvmd},
    report::Report,
    run::System,
    seen::Seen,
    turn::Subject,
};

/// After so long a caller hears that a change goes on. Longer than a mkfs of a large volume on a slow disk; shorter
/// than `driver node` waits, so that the answer arrives.
const LIMIT: Duration = Duration::from_secs(600);
const LOOK_LIMIT: Duration = Duration::from_secs(150);

/// What has run for longer is worth a condition.
const OVERDUE: Duration = Duration::from_secs(120);

pub struct Server {
    pub node: Arc<Node<System>>,
    pub lvm_version: tokio::sync::OnceCell<String>,
    pub listeners: Arc<broadcast::Sender<()>>,
    /// Becomes true when lvmd is to end: streams that would go on for ever end then.
    pub stopping: watch::Receiver<bool>,
}

impl Server {
    async fn look(&self, wanted: &Wanted) -> Result<Seen, Status> {
        let (node, deny) = (self.node.clone(), wanted.deny.clone());
        let look = async move { node.look(&deny).await };
        let seen = self.node.turns.take(Subject::Look, "looking at the node".to_owned(), LOOK_LIMIT, look).await;
        seen.map_err(code::turn)?.map_err(|err| code::look(&err))
    }

    /// Runs a change of one volume when its turn has come.
    async fn change<T, E>(
        &self,
        volume: &str,
        what: &str,
        change: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, Status>
    where
        T: Send + 'static,
        E: Send + 'static,
        Status: From<E>,
    {
        let what = format!("{what} volume {volume}");
        Ok(self
            .node
            .turns
            .take(Subject::Volume(volume.to_owned()), what, LIMIT, change)
            .await
            .map_err(code::turn)??)
    }

    fn target(&self, path: &str) -> Result<Target, Status> {
        Target::parse(&self.node.looker.kubelet_root, path).map_err(|err| Status::invalid_argument(err.to_string()))
    }
}

#[tonic::async_trait]
impl Lvmd for Server {
    async fn info(&self, _: Request<proto::InfoRequest>) -> Result<Response<proto::InfoResponse>, Status> {
        let run = &self.node.run;
        let mut missing = info::missing(&self.node.looker.kubelet_root);
        // Asked once: a version does not change while lvmd runs, and to have none is the sign that LVM can not run.
        let version = if run.lock().try_hold() {
            // An LVM that could not be started may be started the next time.
            let asked = self.lvm_version.get_or_try_init(|| async { info::lvm_version(run).await.ok_or(()) }).await;
            asked.cloned().unwrap_or_default()
        } else {
            missing.push(format!(
                "{} is held by another lvmd, or by an LVM command of one that was ended: it is waited for. If it lasts, look for a hanging lvm process on the node",
                run.lock().path().display()
            ));
            String::new()
        };
        let overdue = self.node.turns.overdue(OVERDUE);
        Ok(Response::new(proto::InfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            lvm_version: version,
            kernel: info::kernel(),
            boot_id: info::boot_id(),
            missing,
            lvm_commands: run.lvm_commands(),
            overdue: overdue.map(|(what, time)| format!("{what} has run for {} s", time.as_secs())).unwrap_or_default(),
        }))
    }

    async fn plan(&self, request: Request<proto::PlanRequest>) -> Result<Response<proto::PlanResponse>, Status> {
        let request = request.into_inner();
        let wanted = ask::wanted(&request.wanted, request.known)?;
        let seen = self.look(&wanted).await?;
        let report: Report = say::report(&wanted, &seen, &plan(&wanted, &seen));
        let report = serde_json::to_vec(&report).map_err(|err| Status::internal(err.to_string()))?;
        Ok(Response::new(proto::PlanResponse { report }))
    }

    async fn apply(&self, request: Request<proto::ApplyRequest>) -> Result<Response<proto::ApplyResponse>, Status> {
        let request = request.into_inner();
        let wanted = ask::wanted(&request.wanted, request.known)?;
        if wanted.policy != ExecutionPolicy::Enforce {
            return Err(Status::failed_precondition(format!(
                "the execution policy is {:?}: no step is carried out",
                wanted.policy
            )));
        }
        let node = self.node.clone();
        let apply = async move {
            let seen = node.look(&wanted.deny).await.map_err(|err| code::look(&err))?;
            let plan = plan(&wanted, &seen);
            if plan.hash().as_deref() != Some(&request.hash) {
                return Err(Status::failed_precondition(
                    "the node has changed and the plan is another one by now: look again",
                ));
            }
            Ok(carry_out(plan.steps, &wanted.cluster, &node).await)
        };
        let what = "carrying out a plan".to_owned();
        let Done { done, failed } =
            self.node.turns.take(Subject::Node, what, LIMIT, apply).await.map_err(code::turn)??;
        match failed.as_slice() {
            [] => Ok(Response::new(proto::ApplyResponse { done })),
            failed => {
                let failed = failed.iter().map(|err| runtime::chain(err)).collect::<Vec<_>>().join("; ");
                Err(Status::aborted(failed))
            }
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<proto::WatchEvent, Status>> + Send>>;

    async fn watch(&self, _: Request<proto::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        // Events that a slow listener missed are one event: it looks at everything anyway.
        let events = BroadcastStream::new(self.listeners.subscribe()).map(|_| Ok(proto::WatchEvent {}));
        let mut stopping = self.stopping.clone();
        let stop = async move {
            // An error means that whoever could say so is gone.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        };
        Ok(Response::new(Box::pin(events.take_until(Box::pin(stop)))))
    }

    async fn create_volume(
        &self,
        request: Request<proto::CreateVolumeRequest>,
    ) -> Result<Response<proto::Volume>, Status> {
        let new = ask::new_volume(request.into_inner())?;
        let (node, name) = (self.node.clone(), new.key.name.to_string());
        let made = self.change(&name, "making", async move { node.create_volume(&new).await }).await?;
        Ok(Response::new(made.into()))
    }

    async fn grow_volume(&self, request: Request<proto::GrowVolumeRequest>) -> Result<Response<proto::Volume>, Status> {
        let request = request.into_inner();
        let key = ask::key(request.volume)?;
        let uuid = ask::uuid(&request.lv_uuid)?;
        let (size, reserve) = (ask::size(request.size)?, crate::name::Bytes(request.reserve));
        let (node, name) = (self.node.clone(), key.name.to_string());
        let grow = async move { node.grow_volume(&key, uuid.as_ref(), size, reserve).await };
        Ok(Response::new(self.change(&name, "growing", grow).await?.into()))
    }

    async fn delete_volume(
        &self,
        request: Request<proto::DeleteVolumeRequest>,
    ) -> Result<Response<proto::DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        let key = ask::key(request.volume)?;
        let (vg, lv) = (ask::uuid(&request.vg_uuid)?, ask::uuid(&request.lv_uuid)?);
        let (node, name) = (self.node.clone(), key.name.to_string());
        let delete = async move { node.delete_volume(&key, vg.as_ref(), lv.as_ref()).await };
        self.change(&name, "removing", delete).await?;
        Ok(Response::new(proto::DeleteVolumeResponse {}))
    }

    async fn stage(&self, request: Request<proto::StageRequest>) -> Result<Response<proto::StageResponse>, Status> {
        let request = request.into_inner();
        let target = self.target(&request.staging_path)?;
        let stage = ask::stage(request, target)?;
        let (node, name) = (self.node.clone(), stage.key.name.to_string());
        let staged = self.change(&name, "staging", async move { node.stage(&stage).await }).await?;
        let (fs_type, fs_uuid) =
            staged.filesystem.map(|(kind, uuid)| (kind.as_str().to_owned(), uuid.to_string())).unwrap_or_default();
        Ok(Response::new(proto::StageResponse { fs_type, fs_uuid }))
    }

    async fn unstage(
        &self,
        request: Request<proto::UnstageRequest>,
    ) -> Result<Response<proto::UnstageResponse>, Status> {
        let request = request.into_inner();
        let (name, target) = (ask::name(request.volume)?, self.target(&request.staging_path)?);
        let (node, volume) = (self.node.clone(), name.to_string());
        self.change(&volume, "unstaging", async move { node.unstage(&name, &target).await }).await?;
        Ok(Response::new(proto::UnstageResponse {}))
    }

    async fn publish(
        &self,
        request: Request<proto::PublishRequest>,
    ) -> Result<Response<proto::PublishResponse>, Status> {
        let request = request.into_inner();
        let name = ask::name(request.volume)?;
        let (staging, target) = (self.target(&request.staging_path)?, self.target(&request.target_path)?);
        let writing = if request.read_only { Writing::Refused } else { Writing::Allowed };
        let (node, volume) = (self.node.clone(), name.to_string());
        let publish = async move {
            if request.block {
                node.publish_block(&name, &staging, &target, writing).await
            } else {
                node.publish_filesystem(&name, &staging, &target, writing).await
            }
        };
        self.change(&volume, "publishing", publish).await?;
        Ok(Response::new(proto::PublishResponse {}))
    }

    async fn unpublish(
        &self,
        request: Request<proto::UnpublishRequest>,
    ) -> Result<Response<proto::UnpublishResponse>, Status> {
        let request = request.into_inner();
        let (name, target) = (ask::name(request.volume)?, self.target(&request.target_path)?);
        let node = self.node.clone();
        self.change(name.as_str(), "unpublishing", async move { node.unpublish(&target).await }).await?;
        Ok(Response::new(proto::UnpublishResponse {}))
    }

    async fn grow_filesystem(
        &self,
        request: Request<proto::GrowFilesystemRequest>,
    ) -> Result<Response<proto::GrowFilesystemResponse>, Status> {
        let request = request.into_inner();
        let (name, target) = (ask::name(request.volume)?, self.target(&request.path)?);
        let access = if request.block { Access::Block } else { Access::Filesystem(Default::default()) };
        let (node, volume) = (self.node.clone(), name.to_string());
        let grow = async move { node.grow_filesystem(&name, &target, access).await };
        let size = self.change(&volume, "growing the filesystem of", grow).await?;
        Ok(Response::new(proto::GrowFilesystemResponse { size: size.0 }))
    }

    async fn stats(&self, request: Request<proto::StatsRequest>) -> Result<Response<proto::StatsResponse>, Status> {
        let target = self.target(&request.into_inner().path)?;
        let stats = self.node.asked.stats(target).await.map_err(|err| code::stats(&err))?;
        Ok(Response::new(match stats {
            Stats::Block { size } => proto::StatsResponse { total_bytes: size, block: true, ..Default::default() },
            Stats::Filesystem { total, available, used, inodes, free_inodes } => proto::StatsResponse {
                total_bytes: total,
                used_bytes: used,
                available_bytes: available,
                total_inodes: inodes,
                used_inodes: inodes.saturating_sub(free_inodes),
                available_inodes: free_inodes,
                block: false,
            },
        }))
    }
}
