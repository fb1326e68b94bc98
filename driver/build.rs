//! Makes the CSI and kubelet registration types from their definitions. Needs no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let definitions = protox::compile(["proto/csi.proto", "proto/pluginregistration.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // A call that is not served answers UNIMPLEMENTED, as the CSI specification has it.
        .generate_default_stubs(true)
        // So that one small message needs no further crate.
        .extern_path(".google.protobuf.Timestamp", "crate::csi::Timestamp")
        .compile_fds(definitions)?;
    Ok(())
}
