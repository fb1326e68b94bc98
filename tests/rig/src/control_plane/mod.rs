//! A real control plane: etcd, API server, controller-manager and scheduler, in a network of their own.

mod programs;

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
    saved,
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
        let cluster = Self::prepared(name, options)?;
        make_certificates(&cluster.scope, &cluster.pki)?;
        cluster.run()?;
        Ok(cluster)
    }

    /// As [`ControlPlane::start`], with nodes that are Ready: within seconds, from a running cluster of just this kind
    /// that was saved before. Disks are plugged in at the end. The nodes are in the order given.
    pub fn start_with_nodes(
        name: &str,
        options: &Options,
        nodes: &[(&str, NodeOptions)],
    ) -> Result<(Self, Vec<Arc<Node>>)> {
        match saved::restore(name, options, nodes) {
            Ok(restored) => return Ok(restored),
            Err(err) => say(format!("starting {name} from nothing, as a saved one can't be used: {}", err.chain())),
        }
        let cluster = Self::start(name, options.clone())?;
        let nodes = cluster.add_nodes(nodes)?;
        Ok((cluster, nodes))
    }

    /// The folder and the network; nothing runs yet, and there are no certificates.
    pub(crate) fn prepared(name: &str, options: Options) -> Result<Self> {
        let parts = Parts::ensure()?;
        let scope = Arc::new(Scope::create(name)?);
        network::create(&scope)?;
        let timing = options.timing;
        write(&scope.folder().join("timing"), if timing == Timing::Fast { "fast" } else { "default" })?;
        let pki = Pki::at(&scope.folder().join("pki"));
        Ok(Self { scope, parts, pki, timing, options, nodes: Mutex::default(), numbers: Mutex::default() })
    }

    /// Starts the programs, and waits until each does its work.
    pub(crate) fn run(&self) -> Result<()> {
        self.spawn_etcd()?;
        self.spawn_api_server()?;
        self.wait_for_api_server()?;
        say("API server ready");
        // Started after it, so that none of them backs off for seconds from one that is not there yet.
        self.spawn_controller_manager()?;
        self.spawn_scheduler()?;
        let port = network::forward(&self.scope)?;
        let outside = self.pki.kubeconfig(&format!("https://127.0.0.1:{port}"), "admin")?;
        write(&self.kubeconfig_path(), &outside)?;
        let account = ["get", "serviceaccount", "default", "--namespace=default"];
        self.until("the controller-manager", || {
            self.process("kube-controller-manager")?.check()?;
            Ok(self.try_kubectl(account)?.status.success().then_some(()))
        })?;
        self.process("kube-scheduler")?.check()?;
        say("control plane ready");
        Ok(())
    }

    pub(crate) fn take_in(&self, node: Node) -> Arc<Node> {
        let node = Arc::new(node);
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&node));
        node
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
            let node = Node::attach(&cluster, &name)?;
            cluster.take_in(node);
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
        Ok(self.take_in(Node::join(self, name, options)?))
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
}

fn make_certificates(scope: &Scope, pki: &Pki) -> Result<()> {
    pki.create_authority().context(|| "making certificates".to_owned())?;
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
    say("certificates made");
    Ok(())
}
