//! The command lines of the upstream programs.

use super::{API_SERVER, ControlPlane, Timing};
use crate::{error::Result, network::HOST, run::Run};

impl ControlPlane {
    pub(super) fn spawn_etcd(&self) -> Result<()> {
        let data = format!("--data-dir={}", self.scope.folder().join("etcd").display());
        let args = [
            "--name=rig",
            &data,
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=rig=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--log-level=warn",
            // Alone, it elects itself as soon as it may.
            "--heartbeat-interval=10",
            "--election-timeout=50",
        ];
        self.spawn("etcd", args.map(str::to_owned).to_vec())
    }

    pub(super) fn spawn_api_server(&self) -> Result<()> {
        let file = |name: &str, end: &str| self.pki.file(name, end).display().to_string();
        let mut args = vec![
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            "--bind-address=0.0.0.0".to_owned(),
            "--secure-port=443".to_owned(),
            format!("--advertise-address={HOST}"),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            format!("--tls-cert-file={}", file("apiserver", "crt")),
            format!("--tls-private-key-file={}", file("apiserver", "key")),
            format!("--client-ca-file={}", file("ca", "crt")),
            format!("--kubelet-certificate-authority={}", file("ca", "crt")),
            format!("--kubelet-client-certificate={}", file("kubelet-client", "crt")),
            format!("--kubelet-client-key={}", file("kubelet-client", "key")),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", file("sa", "pub")),
            format!("--service-account-signing-key-file={}", file("sa", "key")),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--enable-aggregator-routing=true".to_owned(),
            "--profiling=false".to_owned(),
        ];
        args.extend(self.options.api_server.iter().cloned());
        self.spawn(API_SERVER, args)
    }

    pub(super) fn spawn_controller_manager(&self) -> Result<()> {
        let folder = self.scope.folder();
        let mut args = vec![
            format!("--kubeconfig={}", folder.join("controller-manager.kubeconfig").display()),
            "--leader-elect=false".to_owned(),
            "--use-service-account-credentials=true".to_owned(),
            format!("--root-ca-file={}", self.pki.file("ca", "crt").display()),
            format!("--service-account-private-key-file={}", self.pki.file("sa", "key").display()),
            "--kube-api-qps=300".to_owned(),
            "--kube-api-burst=600".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            "--profiling=false".to_owned(),
        ];
        if self.timing == Timing::Fast {
            args.extend(["--node-monitor-period=1s", "--node-monitor-grace-period=6s"].map(str::to_owned));
        }
        args.extend(self.options.controller_manager.iter().cloned());
        self.spawn("kube-controller-manager", args)
    }

    pub(super) fn spawn_scheduler(&self) -> Result<()> {
        let config = self.scope.folder().join("scheduler.kubeconfig");
        let mut args = vec![
            format!("--kubeconfig={}", config.display()),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            "--profiling=false".to_owned(),
            "--kube-api-qps=300".to_owned(),
            "--kube-api-burst=600".to_owned(),
        ];
        args.extend(self.options.scheduler.iter().cloned());
        self.spawn("kube-scheduler", args)
    }

    fn spawn(&self, name: &str, args: Vec<String>) -> Result<()> {
        Run::in_network(&self.scope.network(), self.parts.program(name))
            .args(args)
            .spawn(name, &self.scope.log(name), &self.scope.pids())
            .map(drop)
    }
}
