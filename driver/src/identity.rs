//! The CSI service Identity, the same from both halves.

use tonic::{Request, Response, Status};

use crate::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse, identity_server,
    plugin_capability::{self, service, volume_expansion},
};

pub struct Identity {
    /// What `Probe` answers. A half that is served but waits for something says no.
    pub health: runtime::health::Health,
}

#[tonic::async_trait]
impl identity_server::Identity for Identity {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: crds::names::DRIVER.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: Default::default(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: capabilities() }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(self.health.is_ready()) }))
    }
}

fn capabilities() -> Vec<PluginCapability> {
    use plugin_capability::{Service, Type, VolumeExpansion};
    let service = |type_: service::Type| Type::Service(Service { r#type: type_.into() });
    let expansion = |type_: volume_expansion::Type| Type::VolumeExpansion(VolumeExpansion { r#type: type_.into() });
    [
        service(service::Type::ControllerService),
        service(service::Type::VolumeAccessibilityConstraints),
        // It says "also while in use"; an offline volume is grown at its next stage.
        expansion(volume_expansion::Type::Online),
    ]
    .map(|type_| PluginCapability { r#type: Some(type_) })
    .into()
}
