//! What the controller counts.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tonic::Code;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Call {
    pub call: &'static str,
    pub code: &'static str,
}

/// Cloned freely; all clones count together.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub calls: Family<Call, Counter>,
    pub capacity_writes: Counter,
    pub released: Counter,
    pub adopted: Counter,
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "stowage_controller_calls",
            "CSI calls that were answered, by their code",
            self.calls.clone(),
        );
        registry.register(
            "stowage_controller_capacity_writes",
            "Changes of CSIStorageCapacity objects",
            self.capacity_writes.clone(),
        );
        registry.register(
            "stowage_controller_released_volumes",
            "Volumes given up because their node is lost",
            self.released.clone(),
        );
        registry.register(
            "stowage_controller_adopted_volumes",
            "LogicalVolumes made anew for LVs whose object had vanished",
            self.adopted.clone(),
        );
    }

    pub fn answered(&self, call: &'static str, code: Code) {
        self.calls.get_or_create(&Call { call, code: name(code) }).inc();
    }
}

/// As the gRPC specification writes it.
const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
