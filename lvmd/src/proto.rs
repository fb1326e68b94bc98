//! What the build makes of `proto/lvmd.proto`: the messages, the client that `driver node` uses, the server.

#![allow(clippy::all, reason = "generated")]

tonic::include_proto!("stowage.lvmd.v1");
