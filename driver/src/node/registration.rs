//! Makes the driver known to kubelet, which looks for sockets in its folder `plugins_registry` and calls them.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crds::names;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, transport::Server};

use super::socket;

/// The messages and the service of kubelet's plugin registration, as `proto/pluginregistration.proto` defines them.
#[allow(clippy::all, reason = "generated")]
pub mod proto {
    tonic::include_proto!("pluginregistration");
}

use proto::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    registration_server::{self, RegistrationServer},
};

/// kubelet wants a version of CSI that the driver speaks; it looks at the first number of it.
const CSI_VERSION: &str = "1.0.0";

/// Below kubelet's folder.
///
/// The name has an `@` in it because kubelet dials with the socket's path as the HTTP/2 `:authority`, percent-encoded
/// (grpc-go, `encodeAuthority`), and the `http` crate takes a percent sign only in the part before an `@`: without one
/// every call of kubelet ends in PROTOCOL_ERROR.
pub fn socket_path(kubelet_root: &Path) -> PathBuf {
    kubelet_root.join("plugins_registry").join(format!("{}@reg.sock", names::DRIVER))
}

/// Where the driver itself is served, below kubelet's folder.
pub fn csi_socket_path(kubelet_root: &Path) -> PathBuf {
    kubelet_root.join("plugins").join(names::DRIVER).join("csi.sock")
}

struct Registration {
    endpoint: PathBuf,
}

#[tonic::async_trait]
impl registration_server::Registration for Registration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: names::DRIVER.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec![CSI_VERSION.to_owned()],
        }))
    }

    /// kubelet tries again by itself after a failure.
    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            tracing::info!("kubelet has registered the driver");
        } else {
            tracing::error!(error, "kubelet has not registered the driver");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Serves until `stop`. The socket's file outlives this: kubelet takes a missing one for a driver that left, takes the
/// driver out of the node's CSINode, and no claim could be given a volume here until the next pod has started.
pub async fn serve(kubelet_root: &Path, pace: Duration, stop: &CancellationToken) {
    let router = || {
        let registration = Registration { endpoint: csi_socket_path(kubelet_root) };
        Server::builder().add_service(RegistrationServer::new(registration))
    };
    socket::serve(&socket_path(kubelet_root), pace, router, || {}, stop).await;
}

#[cfg(test)]
mod tests {
    use tonic::transport::Endpoint;

    use super::{proto::registration_client::RegistrationClient, *};

    /// As grpc-go's `encodeAuthority` writes it: of what is in such paths only the slash is escaped.
    #[test]
    fn the_authority_that_kubelet_sends_is_one_that_is_taken() {
        for root in ["/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet"] {
            let path = socket_path(Path::new(root)).display().to_string();
            let sent = path.replace('/', "%2F");
            assert!(sent.parse::<tonic::codegen::http::uri::Authority>().is_ok(), "{sent}");
        }
    }

    async fn info(root: &Path) -> PluginInfo {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket_path(root).display())).unwrap();
        for _ in 0..1000 {
            if let Ok(channel) = endpoint.connect().await {
                return RegistrationClient::new(channel).get_info(InfoRequest {}).await.unwrap().into_inner();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no registration socket");
    }

    #[tokio::test]
    async fn kubelet_learns_where_the_driver_is_also_after_the_socket_was_removed() {
        let root = tempfile::tempdir().unwrap();
        let stop = CancellationToken::new();
        let (folder, stopped) = (root.path().to_owned(), stop.clone());
        let serving = tokio::spawn(async move { serve(&folder, Duration::from_millis(20), &stopped).await });
        let first = info(root.path()).await;
        assert_eq!(
            (first.r#type.as_str(), first.name.as_str(), first.supported_versions.as_slice()),
            ("CSIPlugin", "csi.stowage.dev", &["1.0.0".to_owned()][..])
        );
        assert_eq!(first.endpoint, root.path().join("plugins/csi.stowage.dev/csi.sock").display().to_string());

        std::fs::remove_file(socket_path(root.path())).unwrap();
        assert_eq!(info(root.path()).await, first);

        stop.cancel();
        tokio::time::timeout(Duration::from_secs(5), serving).await.unwrap().unwrap();
        assert!(socket_path(root.path()).exists(), "a driver that restarts stays registered");
    }
}
