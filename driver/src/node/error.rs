//! Why a call of kubelet's fails, and which code tells it so.

use tonic::{Code, Status};

use super::capability::BadCapability;
use crate::hands::HandsError;

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error(
        "the PersistentVolume's volumeAttributes have no {0}: CreateVolume writes it, a PersistentVolume made by hand \
         needs it too"
    )]
    NoContext(&'static str),
    #[error(transparent)]
    Capability(#[from] BadCapability),
    #[error("another call is at work on volume {0}")]
    Busy(String),
    #[error(transparent)]
    Hands(#[from] HandsError),
    #[error("no volume of this driver can be there")]
    NoVolumeThere(#[source] HandsError),
    #[error("the call ended with a panic, see the log")]
    Panicked(#[from] tokio::task::JoinError),
}

impl NodeError {
    /// For calls that ask about a path: one that lvmd takes for no path of a volume has none, and the specification's
    /// word for that is `NotFound`.
    pub fn at_path(self) -> Self {
        match self {
            Self::Hands(error) if error.code() == Code::InvalidArgument => Self::NoVolumeThere(error),
            other @ (Self::Missing(_)
            | Self::NoContext(_)
            | Self::Capability(_)
            | Self::Busy(_)
            | Self::Hands(_)
            | Self::NoVolumeThere(_)
            | Self::Panicked(_)) => other,
        }
    }
}

/// kubelet takes `Aborted`, `Canceled`, `DeadlineExceeded`, `ResourceExhausted` and `Unavailable` of a stage for "it
/// may have been done": it goes on calling, and unstages when the pod goes. Every other code says that nothing is
/// staged. `OutOfRange`, `InvalidArgument` and `NotFound` of an expansion are never asked again.
impl From<NodeError> for Status {
    fn from(error: NodeError) -> Self {
        let code = match &error {
            NodeError::Missing(_) | NodeError::NoContext(_) | NodeError::Capability(_) => Code::InvalidArgument,
            NodeError::Busy(_) => Code::Aborted,
            NodeError::Hands(hands) => from_hands(hands.code()),
            NodeError::NoVolumeThere(_) => Code::NotFound,
            NodeError::Panicked(_) => Code::Internal,
        };
        Self::new(code, runtime::chain(&error))
    }
}

/// What a code of lvmd's means to kubelet.
fn from_hands(code: Code) -> Code {
    match code {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Aborted
        | Code::DeadlineExceeded
        | Code::Unavailable
        | Code::Internal => code,
        // The change goes on although the call does not.
        Code::Cancelled => Code::Aborted,
        // lvmd and this program are of one image: a call that one of them does not know is a fault, and no request's.
        Code::Ok
        | Code::Unknown
        | Code::PermissionDenied
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hands::Call;

    #[test]
    fn each_error_says_what_is_true_for_kubelet() {
        let said =
            |code| NodeError::Hands(HandsError::Said { call: Call::Stage, code, message: "the group is full".into() });
        for (error, code) in [
            (NodeError::Missing("volume_id"), Code::InvalidArgument),
            (NodeError::NoContext("stowage.dev/cluster-id"), Code::InvalidArgument),
            (NodeError::Capability(BadCapability::NoMode), Code::InvalidArgument),
            (NodeError::Busy("pvc-1".into()), Code::Aborted),
            (said(Code::NotFound), Code::NotFound),
            (said(Code::FailedPrecondition), Code::FailedPrecondition),
            (said(Code::Cancelled), Code::Aborted),
            (said(Code::InvalidArgument), Code::InvalidArgument),
            (said(Code::InvalidArgument).at_path(), Code::NotFound),
            (said(Code::Internal).at_path(), Code::Internal),
            (NodeError::Busy("pvc-1".into()).at_path(), Code::Aborted),
            (said(Code::Unknown), Code::Internal),
            (said(Code::Unimplemented), Code::Internal),
            (
                NodeError::Hands(HandsError::Slow { call: Call::Stage, limit: Duration::from_secs(1) }),
                Code::DeadlineExceeded,
            ),
            (NodeError::Hands(HandsError::Absent { call: Call::Stage, why: "refused".into() }), Code::Unavailable),
        ] {
            let text = error.to_string();
            let status = Status::from(error);
            assert_eq!(status.code(), code, "{text}");
            assert!(status.message().starts_with(&text), "{status:?}");
        }
    }
}
