//! lvmd's client: how `driver node` reaches the one program that touches the node.
//!
//! Every call may be repeated. lvmd carries a change that was begun to its end, so giving up on an answer here
//! interrupts nothing; a later call hears how it ended.

use std::{error::Error, fmt, future::Future, path::Path, time::Duration};

use crds::node_storage::NodeStorageSpec;
use lvmd::{
    proto::{
        self, ApplyRequest, CreateVolumeRequest, DeleteVolumeRequest, GrowFilesystemRequest, GrowVolumeRequest,
        InfoRequest, InfoResponse, KnownGroup, PlanRequest, PublishRequest, StageRequest, StageResponse, StatsRequest,
        StatsResponse, UnpublishRequest, UnstageRequest, WatchEvent, WatchRequest, lvmd_client::LvmdClient,
    },
    report::Report,
};
use tonic::{
    Code, Response, Status, Streaming,
    transport::{Channel, Endpoint},
};

/// For questions that lvmd answers from memory or the kernel.
const QUICK: Duration = Duration::from_secs(30);
/// For a look: every disk of a large node is opened and read, and a dying one takes its time.
const LOOK: Duration = Duration::from_secs(180);
/// For a change: mkfs and fsck of a large volume on a slow disk take minutes.
const CHANGE: Duration = Duration::from_secs(900);

/// A report on a node with hundreds of devices and a thousand volumes is larger than tonic's own limit of 4 MiB.
const LARGEST_ANSWER: usize = 32 << 20;

/// The calls, as they are named in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Info,
    Plan,
    Apply,
    Watch,
    CreateVolume,
    GrowVolume,
    DeleteVolume,
    Stage,
    Unstage,
    Publish,
    Unpublish,
    GrowFilesystem,
    Stats,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HandsError {
    /// lvmd's own words.
    #[error("{message}")]
    Said { call: Call, code: Code, message: String },
    #[error("lvmd, the other container of this pod, can not be reached for {call}: {why}")]
    Absent { call: Call, why: String },
    #[error("lvmd has not answered {call} within {limit:?}; it goes on with it")]
    Slow { call: Call, limit: Duration },
    #[error("writing what is wanted as JSON")]
    Wanted(#[source] serde_json::Error),
    #[error("reading lvmd's report")]
    Report(#[source] serde_json::Error),
}

impl HandsError {
    fn new(call: Call, status: Status) -> Self {
        // Only the transport's own failures have a source: an answer came over the wire without one. The first cause
        // says all; what is above it is tonic's and hyper's words for "no connection".
        let causes = std::iter::successors(status.source(), |cause| (*cause).source());
        if let Some(first) = causes.last() {
            return Self::Absent { call, why: first.to_string() };
        }
        Self::Said { call, code: status.code(), message: status.message().to_owned() }
    }

    pub fn code(&self) -> Code {
        match self {
            Self::Said { code, .. } => *code,
            Self::Absent { .. } => Code::Unavailable,
            Self::Slow { .. } => Code::DeadlineExceeded,
            Self::Wanted(_) | Self::Report(_) => Code::Internal,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{socket:?} is not a path that a socket can have")]
pub struct BadSocket {
    socket: String,
    source: tonic::transport::Error,
}

/// Cloned freely; all clones share one connection, which is made when it is needed and anew when it breaks.
#[derive(Clone, Debug)]
pub struct Hands {
    client: LvmdClient<Channel>,
}

impl Hands {
    pub fn new(socket: &Path) -> Result<Self, BadSocket> {
        let socket = socket.display().to_string();
        let endpoint =
            Endpoint::from_shared(format!("unix://{socket}")).map_err(|source| BadSocket { socket, source })?;
        Ok(Self { client: LvmdClient::new(endpoint.connect_lazy()).max_decoding_message_size(LARGEST_ANSWER) })
    }

    pub async fn info(&self) -> Result<InfoResponse, HandsError> {
        let mut lvmd = self.client.clone();
        ask(Call::Info, QUICK, lvmd.info(InfoRequest {})).await
    }

    /// Looks at the node and says what would be done. Writes nothing. `known`: the groups that were there before.
    pub async fn plan(&self, wanted: &NodeStorageSpec, known: &[KnownGroup]) -> Result<Report, HandsError> {
        let mut lvmd = self.client.clone();
        let request = PlanRequest { wanted: json(wanted)?, known: known.to_vec() };
        let answer = ask(Call::Plan, LOOK, lvmd.plan(request)).await?;
        serde_json::from_slice(&answer.report).map_err(HandsError::Report)
    }

    /// Carries out the plan of this hash. The steps that were done, a sentence each.
    pub async fn apply(
        &self,
        wanted: &NodeStorageSpec,
        known: &[KnownGroup],
        hash: &str,
    ) -> Result<Vec<String>, HandsError> {
        let mut lvmd = self.client.clone();
        let request = ApplyRequest { wanted: json(wanted)?, hash: hash.to_owned(), known: known.to_vec() };
        Ok(ask(Call::Apply, CHANGE, lvmd.apply(request)).await?.done)
    }

    /// One message per burst of changes at the node's block devices.
    pub async fn watch(&self) -> Result<Streaming<WatchEvent>, HandsError> {
        let mut lvmd = self.client.clone();
        ask(Call::Watch, QUICK, lvmd.watch(WatchRequest {})).await
    }

    pub async fn create_volume(&self, request: CreateVolumeRequest) -> Result<proto::Volume, HandsError> {
        let mut lvmd = self.client.clone();
        ask(Call::CreateVolume, CHANGE, lvmd.create_volume(request)).await
    }

    pub async fn grow_volume(&self, request: GrowVolumeRequest) -> Result<proto::Volume, HandsError> {
        let mut lvmd = self.client.clone();
        ask(Call::GrowVolume, CHANGE, lvmd.grow_volume(request)).await
    }

    pub async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<(), HandsError> {
        let mut lvmd = self.client.clone();
        ask(Call::DeleteVolume, CHANGE, lvmd.delete_volume(request)).await.map(drop)
    }

    pub async fn stage(&self, request: StageRequest) -> Result<StageResponse, HandsError> {
        let mut lvmd = self.client.clone();
        ask(Call::Stage, CHANGE, lvmd.stage(request)).await
    }

    pub async fn unstage(&self, request: UnstageRequest) -> Result<(), HandsError> {
        let mut lvmd = self.client.clone();
        ask(Call::Unstage, CHANGE, lvmd.unstage(request)).await.map(drop)
    }

    pub async fn publish(&self, request: PublishRequest) -> Result<(), HandsError> {
        let mut lvmd = self.client.clone();
        ask(Call::Publish, CHANGE, lvmd.publish(request)).await.map(drop)
    }

    pub async fn unpublish(&self, request: UnpublishRequest) -> Result<(), HandsError> {
        let mut lvmd = self.client.clone();
        ask(Call::Unpublish, CHANGE, lvmd.unpublish(request)).await.map(drop)
    }

    /// The size afterwards, in bytes.
    pub async fn grow_filesystem(&self, request: GrowFilesystemRequest) -> Result<u64, HandsError> {
        let mut lvmd = self.client.clone();
        Ok(ask(Call::GrowFilesystem, CHANGE, lvmd.grow_filesystem(request)).await?.size)
    }

    pub async fn stats(&self, request: StatsRequest) -> Result<StatsResponse, HandsError> {
        let mut lvmd = self.client.clone();
        ask(Call::Stats, QUICK, lvmd.stats(request)).await
    }
}

async fn ask<T>(
    call: Call,
    limit: Duration,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, HandsError> {
    match tokio::time::timeout(limit, answer).await {
        Err(_) => Err(HandsError::Slow { call, limit }),
        Ok(Err(status)) => Err(HandsError::new(call, status)),
        Ok(Ok(answer)) => Ok(answer.into_inner()),
    }
}

fn json(wanted: &NodeStorageSpec) -> Result<Vec<u8>, HandsError> {
    serde_json::to_vec(wanted).map_err(HandsError::Wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_absent_lvmd_is_told_from_one_that_refuses() {
        let folder = tempfile::tempdir().unwrap();
        let hands = Hands::new(&folder.path().join("lvmd.sock")).unwrap();
        let error = hands.info().await.unwrap_err();
        assert!(matches!(error, HandsError::Absent { call: Call::Info, .. }), "{error:?}");
        assert_eq!(error.code(), Code::Unavailable);

        let said = HandsError::new(Call::Stage, Status::unavailable("the group is locked"));
        assert!(matches!(said, HandsError::Said { code: Code::Unavailable, .. }), "{said:?}");
        assert_eq!(said.to_string(), "the group is locked");
    }
}
