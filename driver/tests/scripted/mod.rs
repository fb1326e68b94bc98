//! An lvmd that has no machine: its disks and volumes are entries in a table. It keeps what it was asked, so that a
//! test sees what the driver makes of kubelet's calls and of objects. What the real one does is tested with real disks.

#![allow(clippy::unwrap_used, reason = "a test ends where its script is wrong")]
#![allow(dead_code, reason = "each program that includes this uses a part of it")]

use std::{
    collections::BTreeMap,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
};

use crds::node_storage::{
    Device, DeviceReason, DeviceState, GroupState, NodeStorageSpec, PlanStatus, PlanStep, VolumeGroupStatus,
    device_reason,
};
use futures::Stream;
use lvmd::{
    proto::{lvmd_server::Lvmd, *},
    report::{Report, SeenVolume},
};
use tokio::{net::UnixListener, sync::broadcast};
use tokio_stream::{StreamExt, wrappers::BroadcastStream, wrappers::UnixListenerStream};
use tonic::{Request, Response, Status, transport::Server};

const DISK: u64 = 1 << 30;
const EXTENT: u64 = 4 << 20;

/// Cloned freely; all clones are one.
#[derive(Clone)]
pub struct Scripted {
    pub table: Arc<Mutex<Table>>,
    changed: broadcast::Sender<()>,
}

/// What is there, what was asked, and what is to fail.
#[derive(Default)]
pub struct Table {
    /// One blank disk each.
    pub disks: Vec<String>,
    /// Class to the disk that its group is made of.
    pub groups: BTreeMap<String, String>,
    pub volumes: BTreeMap<String, SeenVolume>,
    /// Each request, as `{:?}`.
    pub asked: Vec<String>,
    /// Name of a call to what it answers instead.
    pub failing: BTreeMap<&'static str, Status>,
}

impl Scripted {
    pub fn new(disks: &[&str]) -> Self {
        let table = Table { disks: disks.iter().map(|&disk| disk.to_owned()).collect(), ..Table::default() };
        Self { table: Arc::new(Mutex::new(table)), changed: broadcast::channel(8).0 }
    }

    /// Serves until the task is dropped.
    pub async fn serve(self, socket: &Path) {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let service = lvmd_server::LvmdServer::new(self);
        Server::builder().add_service(service).serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
    }

    pub fn plug(&self, disk: &str) {
        self.table.lock().unwrap().disks.push(disk.to_owned());
        let _ = self.changed.send(());
    }

    /// An LV that is there, with no object.
    pub fn seed(&self, name: &str, class: &str) {
        let seen = SeenVolume {
            name: name.to_owned(),
            class: class.to_owned(),
            vg_uuid: uuid(class),
            lv_uuid: uuid(name),
            size: 64 << 20,
            claim: None,
            used: true,
        };
        self.table.lock().unwrap().volumes.insert(name.to_owned(), seen);
    }

    pub fn fail(&self, call: &'static str, status: Option<Status>) {
        let failing = &mut self.table.lock().unwrap().failing;
        match status {
            Some(status) => failing.insert(call, status),
            None => failing.remove(call),
        };
    }

    /// How often this was asked, by the beginning of the request.
    pub fn count(&self, request: &str) -> usize {
        self.table.lock().unwrap().asked.iter().filter(|asked| asked.starts_with(request)).count()
    }

    pub fn last(&self, request: &str) -> String {
        let table = self.table.lock().unwrap();
        table.asked.iter().rev().find(|asked| asked.starts_with(request)).cloned().unwrap_or_default()
    }

    fn hear<T: std::fmt::Debug>(&self, call: &'static str, request: Request<T>) -> Result<T, Status> {
        let request = request.into_inner();
        let mut table = self.table.lock().unwrap();
        table.asked.push(format!("{request:?}"));
        table.failing.get(call).cloned().map_or(Ok(request), Err)
    }
}

/// The UUID that an LV or a group of this name has.
pub fn uuid(of: &str) -> String {
    let hash = crds::names::fnv1a_128(of.as_bytes());
    format!(
        "{}-{}-{}-{}-{}-{}-{}",
        &hash[..6],
        &hash[6..10],
        &hash[10..14],
        &hash[14..18],
        &hash[18..22],
        &hash[22..26],
        &hash[26..]
    )
}

impl Table {
    pub fn report(&self, spec: &NodeStorageSpec) -> Report {
        let class_of = |disk: &str| self.groups.iter().find(|(_, its)| *its == disk).map(|(class, _)| class.clone());
        let device = |disk: &String| {
            let class = class_of(disk);
            let reason =
                DeviceReason { code: device_reason::NOT_SELECTED.into(), message: "no class asks for it".into() };
            Device {
                id: disk.clone(),
                path: format!("/dev/disk/by-id/{disk}"),
                size: DISK as i64,
                model: None,
                serial: None,
                transport: Some("virtio".into()),
                type_: "disk".into(),
                rotational: false,
                state: if class.is_some() { DeviceState::InUse } else { DeviceState::Available },
                reasons: if class.is_some() { Vec::new() } else { vec![reason] },
                class,
            }
        };
        let group = |class: &String| VolumeGroupStatus {
            class: class.clone(),
            name: format!("stowage-{class}"),
            uuid: uuid(class),
            size: DISK as i64,
            extent_size: EXTENT as i64,
            unmanaged: 0,
            reserve: 64 << 20,
            max_volume_size: DISK as i64,
            devices: 1,
            state: GroupState::Ready,
            last_error: None,
        };
        let steps: Vec<_> = self
            .wanted(spec)
            .into_iter()
            .map(|(class, disk)| PlanStep {
                op: "CreateGroup".into(),
                target: disk.clone(),
                guarded: false,
                why: format!("create volume group stowage-{class} on {disk}"),
            })
            .collect();
        let hash = crds::names::fnv1a_128(format!("{steps:?}").as_bytes());
        Report {
            devices: self.disks.iter().map(device).collect(),
            volume_groups: self.groups.keys().map(group).collect(),
            volumes: self.volumes.values().cloned().collect(),
            plan: (!steps.is_empty()).then_some(PlanStatus { hash, steps }),
            ..Report::default()
        }
    }

    /// Each class without a group gets the next disk.
    fn wanted(&self, spec: &NodeStorageSpec) -> Vec<(String, String)> {
        let free = self.disks.iter().filter(|disk| !self.groups.values().any(|taken| taken == *disk));
        let classes = spec.classes.iter().filter(|class| !self.groups.contains_key(&class.name));
        classes.map(|class| class.name.clone()).zip(free.cloned()).collect()
    }

    fn volume(&self, name: &str) -> Volume {
        let seen = &self.volumes[name];
        Volume {
            vg_name: format!("stowage-{}", seen.class),
            vg_uuid: seen.vg_uuid.clone(),
            lv_uuid: seen.lv_uuid.clone(),
            size: seen.size,
            used: seen.used,
            ..Volume::default()
        }
    }

    fn fits(&self, name: &str, class: &str, size: u64, reserve: u64) -> Result<(), Status> {
        if !self.groups.contains_key(class) {
            return Err(Status::failed_precondition(format!("class {class} has no group here")));
        }
        let others = |seen: &&SeenVolume| seen.class == class && seen.name != name;
        let taken: u64 = self.volumes.values().filter(others).map(|seen| seen.size).sum();
        let free = DISK.saturating_sub(taken + reserve);
        if size > free {
            Err(Status::resource_exhausted(format!("{free} bytes are free, {size} are asked for")))
        } else {
            Ok(())
        }
    }
}

#[tonic::async_trait]
impl Lvmd for Scripted {
    async fn info(&self, request: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        self.hear("Info", request)?;
        Ok(Response::new(InfoResponse {
            version: "scripted".into(),
            lvm_version: "none".into(),
            kernel: "none".into(),
            boot_id: "none".into(),
            ..InfoResponse::default()
        }))
    }

    async fn plan(&self, request: Request<PlanRequest>) -> Result<Response<PlanResponse>, Status> {
        let request = self.hear("Plan", request)?;
        let spec = serde_json::from_slice(&request.wanted).unwrap();
        let report = self.table.lock().unwrap().report(&spec);
        Ok(Response::new(PlanResponse { report: serde_json::to_vec(&report).unwrap() }))
    }

    async fn apply(&self, request: Request<ApplyRequest>) -> Result<Response<ApplyResponse>, Status> {
        let request = self.hear("Apply", request)?;
        let spec: NodeStorageSpec = serde_json::from_slice(&request.wanted).unwrap();
        let mut table = self.table.lock().unwrap();
        let plan = table.report(&spec).plan.filter(|plan| plan.hash == request.hash);
        let plan = plan.ok_or_else(|| Status::failed_precondition("the plan is another one by now"))?;
        let wanted = table.wanted(&spec);
        table.groups.extend(wanted);
        Ok(Response::new(ApplyResponse { done: plan.steps.into_iter().map(|step| step.why).collect() }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchEvent, Status>> + Send>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.hear("Watch", request)?;
        let events = BroadcastStream::new(self.changed.subscribe()).map(|_| Ok(WatchEvent {}));
        Ok(Response::new(Box::pin(events)))
    }

    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Result<Response<Volume>, Status> {
        let request = self.hear("CreateVolume", request)?;
        let id = request.volume.unwrap();
        let mut table = self.table.lock().unwrap();
        if !table.volumes.contains_key(&id.name) {
            table.fits(&id.name, &id.class, request.size, request.reserve)?;
            let seen = SeenVolume {
                name: id.name.clone(),
                class: id.class.clone(),
                vg_uuid: uuid(&id.class),
                lv_uuid: uuid(&id.name),
                size: request.size.next_multiple_of(EXTENT),
                claim: (!request.claim.is_empty()).then_some(request.claim),
                used: false,
            };
            table.volumes.insert(id.name.clone(), seen);
        }
        Ok(Response::new(table.volume(&id.name)))
    }

    async fn grow_volume(&self, request: Request<GrowVolumeRequest>) -> Result<Response<Volume>, Status> {
        let request = self.hear("GrowVolume", request)?;
        let id = request.volume.unwrap();
        let mut table = self.table.lock().unwrap();
        table.fits(&id.name, &id.class, request.size, request.reserve)?;
        let seen = table.volumes.get_mut(&id.name).ok_or_else(|| Status::not_found("no such LV"))?;
        seen.size = request.size.next_multiple_of(EXTENT);
        Ok(Response::new(table.volume(&id.name)))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let request = self.hear("DeleteVolume", request)?;
        self.table.lock().unwrap().volumes.remove(&request.volume.unwrap().name);
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn stage(&self, request: Request<StageRequest>) -> Result<Response<StageResponse>, Status> {
        let request = self.hear("Stage", request)?;
        let name = request.volume.unwrap().name;
        if let Some(seen) = self.table.lock().unwrap().volumes.get_mut(&name) {
            seen.used = true;
        }
        let fs_uuid = if request.block { String::new() } else { "6c0f4c5e-0000-4000-8000-000000000001".to_owned() };
        Ok(Response::new(StageResponse { fs_type: request.fs_type, fs_uuid }))
    }

    async fn unstage(&self, request: Request<UnstageRequest>) -> Result<Response<UnstageResponse>, Status> {
        self.hear("Unstage", request).map(|_| Response::new(UnstageResponse {}))
    }

    async fn publish(&self, request: Request<PublishRequest>) -> Result<Response<PublishResponse>, Status> {
        self.hear("Publish", request).map(|_| Response::new(PublishResponse {}))
    }

    async fn unpublish(&self, request: Request<UnpublishRequest>) -> Result<Response<UnpublishResponse>, Status> {
        self.hear("Unpublish", request).map(|_| Response::new(UnpublishResponse {}))
    }

    async fn grow_filesystem(
        &self,
        request: Request<GrowFilesystemRequest>,
    ) -> Result<Response<GrowFilesystemResponse>, Status> {
        self.hear("GrowFilesystem", request).map(|_| Response::new(GrowFilesystemResponse { size: DISK }))
    }

    async fn stats(&self, request: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        let request = self.hear("Stats", request)?;
        let block = request.path.contains("/volumeDevices/");
        let inodes = if block { 0 } else { 100 };
        Ok(Response::new(StatsResponse {
            total_bytes: 1000,
            used_bytes: 400,
            available_bytes: 600,
            total_inodes: inodes,
            used_inodes: inodes / 4,
            available_inodes: inodes - inodes / 4,
            block,
        }))
    }
}
