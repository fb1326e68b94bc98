//! Makes the types of lvmd's own protocol, for both of its ends. Needs no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/lvmd.proto");
    let lvmd = protox::compile(["proto/lvmd.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(lvmd)?;
    Ok(())
}
