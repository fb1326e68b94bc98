//! What an error means for the caller, in a code, and for a person, with all its causes.
//!
//! UNAVAILABLE: call again, nothing is wrong with what was asked. ABORTED: another change is at work. DEADLINE_EXCEEDED:
//! it goes on. FAILED_PRECONDITION: something has to change first. INTERNAL: it was tried and failed.

use tonic::{Code, Status};

use crate::{
    mount::{attach::AttachError, filesystem::FilesystemError, stage::StageError, stats::StatsError},
    node::GroupError,
    plan::volumes::{StagingError, VolumeError},
    run::RunError,
    seen::LookError,
    turn::TurnError,
    volume::ChangeError,
};

fn status(code: Code, err: &(dyn std::error::Error + 'static)) -> Status {
    Status::new(code, runtime::chain(err))
}

pub fn turn(err: TurnError) -> Status {
    let code = match &err {
        TurnError::Busy { .. } => Code::Aborted,
        TurnError::Slow { .. } => Code::DeadlineExceeded,
        TurnError::Panicked { .. } => Code::Internal,
    };
    status(code, &err)
}

pub fn look(err: &LookError) -> Status {
    status(Code::Unavailable, err)
}

pub fn stats(err: &StatsError) -> Status {
    let code = match err {
        StatsError::NotFound(_) => Code::NotFound,
        StatsError::Hangs(_) => Code::DeadlineExceeded,
        StatsError::Read { .. } => Code::Internal,
    };
    status(code, err)
}

const fn volume(err: &VolumeError) -> Code {
    match err {
        VolumeError::Full { .. } => Code::ResourceExhausted,
        VolumeError::NotFound { .. } => Code::NotFound,
        VolumeError::OtherClass { .. } | VolumeError::NameTaken { .. } | VolumeError::Adopted { .. } => {
            Code::AlreadyExists
        }
        VolumeError::NoGroup { .. }
        | VolumeError::Group { .. }
        | VolumeError::Doubled { .. }
        | VolumeError::OtherLv { .. }
        | VolumeError::OtherTags { .. }
        | VolumeError::Used { .. } => Code::FailedPrecondition,
        VolumeError::Name(_) => Code::InvalidArgument,
    }
}

const fn run(err: &RunError) -> Code {
    match err {
        RunError::Locked { .. } => Code::Unavailable,
        RunError::Start { .. } | RunError::Failed { .. } => Code::Internal,
    }
}

const fn group(err: &GroupError) -> Code {
    match err {
        GroupError::Look(_) | GroupError::Report(_) => Code::Unavailable,
        GroupError::Several { .. } | GroupError::Doubled(_) => Code::FailedPrecondition,
    }
}

impl From<ChangeError> for Status {
    fn from(err: ChangeError) -> Self {
        let code = match &err {
            ChangeError::Volume(err) => volume(err),
            ChangeError::Group(err) => group(err),
            ChangeError::Run(err) => run(err),
            ChangeError::GroupMissing { .. } | ChangeError::InUse { .. } => Code::FailedPrecondition,
            ChangeError::Report(_) | ChangeError::Vanished { .. } | ChangeError::Holder(_) | ChangeError::Table(_) => {
                Code::Unavailable
            }
            ChangeError::NotDone => Code::Internal,
        };
        status(code, &err)
    }
}

impl From<StageError> for Status {
    fn from(err: StageError) -> Self {
        let code = match &err {
            StageError::Volume(err) => volume(err),
            StageError::Group(err) => group(err),
            StageError::Run(err) | StageError::Filesystem(FilesystemError::Run(err)) => run(err),
            StageError::Option(_)
            | StageError::Purpose { .. }
            | StageError::Attach(AttachError::Option { .. })
            | StageError::Staging(StagingError::OtherAccess { .. } | StagingError::OtherFilesystem { .. }) => {
                Code::InvalidArgument
            }
            StageError::Staging(StagingError::Odd { .. })
            | StageError::NotStaged { .. }
            | StageError::OtherMount { .. }
            | StageError::OtherContent { .. }
            | StageError::Filesystem(
                FilesystemError::Broken { .. } | FilesystemError::TooSmall { .. } | FilesystemError::NotBlank { .. },
            ) => Code::FailedPrecondition,
            StageError::Report(_) | StageError::Table(_) => Code::Unavailable,
            StageError::Filesystem(
                FilesystemError::Read { .. } | FilesystemError::Wipe { .. } | FilesystemError::Signatures { .. },
            )
            | StageError::Attach(
                AttachError::Open { .. }
                | AttachError::Make { .. }
                | AttachError::Mount { .. }
                | AttachError::Unmount { .. }
                | AttachError::Remove { .. },
            )
            | StageError::Device(_)
            | StageError::NotActive { .. }
            | StageError::NotTagged { .. }
            | StageError::Task(_) => Code::Internal,
        };
        status(code, &err)
    }
}
