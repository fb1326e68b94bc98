//! A real control plane: etcd, API server, controller-manager and scheduler, in a network of their own.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::Value;

use crate::{
    error::{Context, Error, Result},
    guest_image::write,
    image::StowageImage,
    network::{self, HOST, SERVICE},
    node::{Node, NodeOptions, NodeParts},
    parts::Parts,
    pki::Pki,
    progress::{say, wait_until},
    run::{Output, Process, Run},
    scope::Scope,
};

const READY: Duration = Duration::from_secs(120);
const API_SERVER: &str = "kube-apiserver";

/// How a control plane is to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub timing: Timing,
    /// Further arguments, by program.
    pub api_server: Vec<String>,
    pub controller_manager: Vec<String>,
    pub scheduler: Vec<String>,
}

/// How soon a node that is gone is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// As upstream: a lost node is NotReady after some 45 s.
    #[default]
    Default,
    /// Leases of 4 s and a grace of 6 s.
    Fast,
}

/// Started by this program, and ended with it unless it is kept.
pub struct ControlPlane {
    pub(crate) scope: Arc<Scope>,
    pub(crate) parts: Parts,
    pub(crate) pki: Pki,
    pub(crate) timing: Timing,
    options: Options,
    nodes: Mutex<Vec<Arc<Node>>>,
    /// One node gets its number at a time.
    pub(crate) numbers: Mutex<()>,
}

impl ControlPlane {
    /// Several may run at once, under different names.
    pub fn start(name: &str, options: Options) -> Result<Self> {
        let parts = Parts::ensure()?;
        let scope = Arc::new(Scope::create(name)?);
        network::create(&scope)?;
        let pki = make_certificates(&scope)?;
        let timing = options.timing;
        let nodes = Mutex::default();
        let cluster = Self { scope, parts, pki, timing, options, nodes, numbers: Mutex::default() };
        say("network and certificates");
        write(&cluster.scope.folder().join("timing"), if timing == Timing::Fast { "fast" } else { "default" })?;

        cluster.spawn_etcd()?;
        cluster.spawn_api_server()?;
        cluster.wait_for_api_server()?;
        say("API server ready");
        // Started after it, so that none of them backs off for seconds from one that is not there yet.
        cluster.spawn_controller_manager()?;
        cluster.spawn_scheduler()?;
        let port = network::forward(&cluster.scope)?;
        let outside = cluster.pki.kubeconfig(&format!("https://127.0.0.1:{port}"), "admin")?;
        write(&cluster.kubeconfig_path(), &outside)?;
        let account = ["get", "serviceaccount", "default", "--namespace=default"];
        cluster.until("the controller-manager", || Ok(cluster.try_kubectl(account)?.status.success().then_some(())))?;
        cluster.until("the scheduler", || {
            let args = ["get", "--raw", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"];
            cluster.process("kube-scheduler")?.check()?;
            Ok(cluster.try_kubectl(args)?.status.success().then_some(()))
        })?;
        say("control plane ready");
        Ok(cluster)
    }

    /// One that another program started and kept.
    pub fn attach(name: &str) -> Result<Self> {
        let scope = Arc::new(Scope::attach(name)?);
        let pki = Pki::at(&scope.folder().join("pki"));
        let fast = fs::read_to_string(scope.folder().join("timing")).is_ok_and(|text| text == "fast");
        let timing = if fast { Timing::Fast } else { Timing::Default };
        let parts = Parts::ensure()?;
        let cluster = Self {
            scope,
            parts,
            pki,
            timing,
            options: Options::default(),
            nodes: Mutex::default(),
            numbers: Mutex::default(),
        };
        for name in cluster.scope.guests() {
            let node = Arc::new(Node::attach(&cluster, &name)?);
            cluster.nodes.lock().unwrap_or_else(PoisonError::into_inner).push(node);
        }
        Ok(cluster)
    }

    /// It goes on when this program ends, until [`ControlPlane::end`] or `rig down`.
    pub fn keep(&self) -> Result<()> {
        self.scope.keep()
    }

    /// Ends everything. Logs stay in [`ControlPlane::folder`].
    pub fn end(&self) -> Result<()> {
        self.scope.end()
    }

    /// Boots a machine and makes it a node. Several may be added side by side, from threads.
    pub fn add_node(&self, name: &str, options: &NodeOptions) -> Result<Arc<Node>> {
        let node = Arc::new(Node::join(self, name, options)?);
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&node));
        Ok(node)
    }

    /// Boots several machines at once and returns when all are Ready, in the order given.
    pub fn add_nodes(&self, nodes: &[(&str, NodeOptions)]) -> Result<Vec<Arc<Node>>> {
        // Once, not by each thread.
        nodes.iter().try_for_each(|(_, options)| NodeParts::ensure(&self.parts, options.stowage.as_ref()).map(drop))?;
        std::thread::scope(|threads| {
            let adding: Vec<_> =
                nodes.iter().map(|(name, options)| threads.spawn(move || self.add_node(name, options))).collect();
            let ended = adding.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(Error::unexpected("adding a node", "its thread panicked")))
            });
            ended.collect()
        })
    }

    pub fn node(&self, name: &str) -> Result<Arc<Node>> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let found = nodes.iter().find(|node| node.name() == name).cloned();
        found.ok_or_else(|| Error::unexpected(format!("node {name}"), "there is none of this name"))
    }

    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends Stowage's image to every node that runs.
    pub fn load_stowage(&self, image: &StowageImage) -> Result<()> {
        self.nodes().iter().filter(|node| node.is_running()).try_for_each(|node| node.load_stowage(image))
    }

    /// Runs kubectl as cluster-admin inside the network; its standard output.
    pub fn kubectl<A: AsRef<str>>(&self, args: impl IntoIterator<Item = A>) -> Result<String> {
        self.kubectl_program(args).check()
    }

    /// Runs kubectl, however it ends.
    pub fn try_kubectl<A: AsRef<str>>(&self, args: impl IntoIterator<Item = A>) -> Result<Output> {
        self.kubectl_program(args).output()
    }

    /// Runs kubectl with something on its standard input, as `apply -f -` reads it.
    pub fn kubectl_with<A: AsRef<str>>(&self, input: &str, args: impl IntoIterator<Item = A>) -> Result<String> {
        self.kubectl_program(args).input(input).check()
    }

    /// `kubectl apply -f -`, done by the server.
    pub fn apply(&self, objects: &str) -> Result<String> {
        self.kubectl_with(objects, ["apply", "--server-side", "-f", "-"])
    }

    /// `kubectl get … --output=json`.
    pub fn get<A: AsRef<str>>(&self, args: impl IntoIterator<Item = A>) -> Result<Value> {
        let args: Vec<String> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        let words = ["get".to_owned(), "--output=json".to_owned()].into_iter().chain(args);
        serde_json::from_str(&self.kubectl(words)?).map_err(|err| Error::unexpected("kubectl's answer", err))
    }

    fn kubectl_program<A: AsRef<str>>(&self, args: impl IntoIterator<Item = A>) -> Run {
        Run::in_network(&self.scope.network(), self.parts.program("kubectl"))
            .arg(format!("--kubeconfig={}", self.inner_kubeconfig_path().display()))
            .arg(format!("--cache-dir={}", self.scope.folder().join("kubectl-cache").display()))
            .args(args.into_iter().map(|arg| arg.as_ref().to_owned()))
    }

    /// cluster-admin's, for programs outside the network: through a port of 127.0.0.1.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.scope.folder().join("kubeconfig")
    }

    /// cluster-admin's, for programs that run inside it.
    pub fn inner_kubeconfig_path(&self) -> PathBuf {
        self.scope.folder().join("admin.kubeconfig")
    }

    /// The kubeconfig of a ServiceAccount, for a program inside the network. The token is good for a day.
    pub fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let namespace_arg = format!("--namespace={namespace}");
        let token = self.kubectl(["create", "token", name, &namespace_arg, "--duration=24h"])?;
        let text = self.pki.kubeconfig_with_token(&format!("https://{HOST}"), token.trim())?;
        let path = self.scope.folder().join(format!("{namespace}-{name}.kubeconfig"));
        write(&path, &text)?;
        Ok(path)
    }

    /// Starts a program inside the network; its output is in `logs/<name>.log` of [`ControlPlane::folder`].
    pub fn spawn_in_net(&self, name: &str, argv: &[&str], env: &[(&str, &str)]) -> Result<Process> {
        let (program, args) = argv.split_first().ok_or_else(|| Error::unexpected("a program", "no name"))?;
        let run = Run::in_network(&self.scope.network(), *program).args(args.iter().copied());
        let run = env.iter().fold(run, |run, (name, value)| run.env(*name, *value));
        run.spawn(name, &self.scope.log(name), &self.scope.pids())
    }

    /// One of the upstream programs, for instance `csi-provisioner`, to be started with [`ControlPlane::spawn_in_net`].
    pub fn program(&self, name: &str) -> PathBuf {
        self.parts.program(name)
    }

    /// The folder of everything of this rig: logs, kubeconfigs, disks.
    pub fn folder(&self) -> &Path {
        self.scope.folder()
    }

    /// A process of the rig, by its name: `etcd`, `kube-apiserver`, `qemu-<node>` or what was spawned in the network.
    pub fn process(&self, name: &str) -> Result<Process> {
        let record = self.scope.pids().join(format!("{name}.pid"));
        Process::from_record(&record).ok_or_else(|| Error::unexpected(name, "it is not running"))
    }

    pub fn processes(&self) -> Vec<Process> {
        Process::recorded(&self.scope.pids())
    }

    /// Ends the API server at once: asked to end it would take its time.
    pub fn kill_api_server(&self) -> Result<()> {
        self.process(API_SERVER)?.kill()
    }

    /// Starts the API server that was ended, and waits for it.
    pub fn start_api_server(&self) -> Result<()> {
        self.spawn_api_server()?;
        self.wait_for_api_server()
    }

    fn wait_for_api_server(&self) -> Result<()> {
        let ready = || {
            self.process("etcd")?.check()?;
            self.process(API_SERVER)?.check()?;
            Ok(self.try_kubectl(["get", "--raw", "/readyz"])?.status.success().then_some(()))
        };
        self.until("the API server", ready)
    }

    fn until(&self, what: &str, look: impl FnMut() -> Result<Option<()>>) -> Result<()> {
        match wait_until(READY, Duration::from_millis(100), look)? {
            Some(()) => Ok(()),
            None => {
                let names = [API_SERVER, "kube-controller-manager", "kube-scheduler", "etcd"];
                let tail = crate::error::Tail::files(names.map(|name| (name.to_owned(), self.scope.log(name))));
                Err(Error::TimedOut { what: what.to_owned(), seconds: READY.as_secs(), tail })
            }
        }
    }

    fn spawn_etcd(&self) -> Result<()> {
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

    fn spawn_api_server(&self) -> Result<()> {
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

    fn spawn_controller_manager(&self) -> Result<()> {
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

    fn spawn_scheduler(&self) -> Result<()> {
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

fn make_certificates(scope: &Scope) -> Result<Pki> {
    let pki = Pki::create(&scope.folder().join("pki")).context(|| "making certificates".to_owned())?;
    let names = format!(
        "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:{HOST},IP:{SERVICE}"
    );
    pki.certificate("apiserver", "/CN=kube-apiserver", &names)?;
    pki.certificate("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client", "")?;
    for (name, subject) in [
        ("admin", "/O=system:masters/CN=admin"),
        ("controller-manager", "/CN=system:kube-controller-manager"),
        ("scheduler", "/CN=system:kube-scheduler"),
    ] {
        pki.certificate(name, subject, "")?;
        let config = pki.kubeconfig(&format!("https://{HOST}"), name)?;
        write(&scope.folder().join(format!("{name}.kubeconfig")), &config)?;
    }
    Ok(pki)
}
