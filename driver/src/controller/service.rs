//! The CSI service Controller: each call is answered by its module, logged once and counted.

use std::sync::Arc;

use kube::ResourceExt;
use tonic::{Request, Response, Status};

use super::{
    Context, create, delete, expand,
    ledger::Figures,
    request::{self, is_object_name},
};
use crate::csi::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerServiceCapability, CreateVolumeRequest, CreateVolumeResponse,
    DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, controller_server,
    controller_service_capability::{self, rpc},
    validate_volume_capabilities_response::Confirmed,
};

pub struct Service {
    pub context: Arc<Context>,
}

impl Service {
    fn answered<T>(&self, call: &'static str, volume: &str, answer: Result<T, Status>) -> Result<Response<T>, Status> {
        let code = answer.as_ref().err().map_or(tonic::Code::Ok, Status::code);
        self.context.metrics.answered(call, code);
        if let Err(status) = &answer {
            tracing::warn!(volume, ?code, "{call}: {}", status.message());
        }
        answer.map(Response::new)
    }
}

#[tonic::async_trait]
impl controller_server::Controller for Service {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let made = create::create(&self.context, &request).await;
        let answer = made.map(|volume| CreateVolumeResponse { volume: Some(volume) }).map_err(Status::from);
        self.answered("CreateVolume", &request.name, answer)
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let volume = request.into_inner().volume_id;
        let gone = delete::delete(&self.context, &volume).await;
        self.answered("DeleteVolume", &volume, gone.map(|()| DeleteVolumeResponse {}).map_err(Status::from))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let grown = expand::expand(&self.context, &request).await;
        self.answered("ControllerExpandVolume", &request.volume_id, grown.map_err(Status::from))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let volume = request.volume_id.clone();
        let answer = validate(&self.context, request).await;
        self.answered("ValidateVolumeCapabilities", &volume, answer)
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        Ok(Response::new(capacity(&self.context, &request.into_inner())))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability = |type_: rpc::Type| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(controller_service_capability::Rpc {
                r#type: type_.into(),
            })),
        };
        let capabilities = [
            rpc::Type::CreateDeleteVolume,
            rpc::Type::GetCapacity,
            rpc::Type::ExpandVolume,
            rpc::Type::SingleNodeMultiWriter,
        ];
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: capabilities.map(capability).into() }))
    }
}

async fn validate(
    context: &Context,
    request: ValidateVolumeCapabilitiesRequest,
) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
    let name = &request.volume_id;
    if name.is_empty() {
        return Err(Status::invalid_argument("volume_id is missing"));
    }
    if request.volume_capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities is missing"));
    }
    let not_found = || Status::not_found(format!("there is no volume {name}"));
    if !is_object_name(name) {
        return Err(not_found());
    }
    let failed = |error: super::api::ApiError| Status::new(error.code(), runtime::chain(&error));
    let volume = context.volumes.read(name).await.map_err(failed)?.ok_or_else(not_found)?;
    let refused = match request::capabilities(&request.volume_capabilities) {
        Ok((access, _)) if access == volume.spec.access => None,
        Ok(_) => Some(format!("volume {} is made for access {}", volume.name_any(), volume.spec.access.as_str())),
        Err(error) => Some(error.to_string()),
    };
    Ok(match refused {
        Some(message) => ValidateVolumeCapabilitiesResponse { confirmed: None, message },
        None => ValidateVolumeCapabilitiesResponse {
            confirmed: Some(Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            }),
            message: String::new(),
        },
    })
}

/// Of one node where the request names one, else of all together.
fn capacity(context: &Context, request: &GetCapacityRequest) -> GetCapacityResponse {
    let class = request.parameters.get(crds::names::parameter::DEVICE_CLASS);
    let node = request.accessible_topology.as_ref().and_then(request::node);
    let ledger = context.books.ledger();
    let asked = ledger.figures().filter(|(place, _)| {
        class.is_none_or(|class| *class == place.class)
            && node.as_ref().is_none_or(|node| *node == crds::names::topology_value(&place.node))
    });
    let Figures { free, largest } = asked.fold(Figures { free: 0, largest: 0 }, |sum, (_, figures)| Figures {
        free: sum.free.saturating_add(figures.free),
        largest: sum.largest.max(figures.largest),
    });
    GetCapacityResponse {
        available_capacity: i64::try_from(free).unwrap_or(i64::MAX),
        maximum_volume_size: Some(i64::try_from(largest).unwrap_or(i64::MAX)),
        minimum_volume_size: None,
    }
}
