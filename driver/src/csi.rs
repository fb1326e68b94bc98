//! The messages and services of the Container Storage Interface, as `proto/csi.proto` defines them.

#![allow(clippy::all, clippy::wildcard_enum_match_arm, reason = "generated")]

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Timestamp {
    /// Since 1970-01-01T00:00:00Z.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

tonic::include_proto!("csi.v1");
