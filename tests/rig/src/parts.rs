//! The upstream programs, built from the modules that `tests/go.mod` pins.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    cache::{self, Inputs},
    error::{Context, Error, Result, Tail},
    progress::say,
    run::Run,
};

/// Programs of their own; the rest is one, see `CONTROL_PLANE`.
const PROGRAMS: [&str; 8] = [
    "k8s.io/kubernetes/cmd/kubelet",
    "github.com/containerd/containerd/v2/cmd/containerd",
    "github.com/containerd/containerd/v2/cmd/ctr",
    "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    "github.com/containernetworking/plugins/plugins/main/ptp",
    "github.com/containernetworking/plugins/plugins/ipam/host-local",
    "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
    "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
];

/// One program with a name for each of these.
const CONTROL_PLANE: (&str, [&str; 5]) =
    ("controlplane", ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"]);

/// A node has none of these; without the tags containerd needs their headers.
const TAGS: &str = "no_btrfs,no_devmapper,no_zfs";

/// The folder of the built programs.
#[derive(Clone, Debug)]
pub struct Parts {
    folder: PathBuf,
}

impl Parts {
    /// Builds what is not built yet: minutes the first time, nothing after it.
    pub fn ensure() -> Result<Self> {
        let folder = cache::entry("parts", &inputs()?, |folder| {
            say("building Kubernetes, etcd and containerd: 15 to 20 minutes on two cores when nothing is cached");
            let own = format!("./upstream/{}", CONTROL_PLANE.0);
            build(folder, PROGRAMS.into_iter().chain([own.as_str()]))?;
            for name in CONTROL_PLANE.1 {
                symlink(CONTROL_PLANE.0, folder.join(name)).context(|| format!("making the link {name}"))?;
            }
            Ok(())
        })?;
        Ok(Self { folder })
    }

    /// Builds one more of the tools that `tests/go.mod` lists, by its package; the answer is the program.
    pub fn tool(package: &str) -> Result<PathBuf> {
        let name = package.rsplit('/').next().unwrap_or(package);
        let kind = format!("tool-{name}");
        let folder = cache::entry(&kind, &inputs()?.text(package), |folder| build(folder, [package]))?;
        Ok(folder.join(name))
    }

    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

fn module() -> PathBuf {
    cache::project().join("tests")
}

fn inputs() -> Result<Inputs> {
    let module = module();
    let inputs = Inputs::default().file(&module.join("go.mod"))?.file(&module.join("go.sum"))?;
    Ok(inputs.tree(&module.join("upstream"))?.text(&PROGRAMS.join(" ")).text(&linker_flags()?).text(TAGS))
}

/// Without a version set by the linker, clients are told that the server is v0.0.0.
fn linker_flags() -> Result<String> {
    let path = module().join("go.mod");
    let text = fs::read_to_string(&path).context(|| format!("reading {}", path.display()))?;
    let version = text.lines().find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v")?.split(' ').next());
    let version = version.ok_or_else(|| Error::unexpected("go.mod", "it requires no k8s.io/kubernetes"))?;
    let mut numbers = version.split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let mut flags = "-s -w".to_owned();
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        for (name, value) in [("gitVersion", &*format!("v{version}")), ("gitMajor", major), ("gitMinor", minor)] {
            flags += &format!(" -X {package}.{name}={value}");
        }
    }
    Ok(flags)
}

fn build<'a>(into: &Path, packages: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let packages: Vec<&str> = packages.into_iter().collect();
    let log = into.join("build.log");
    let go = Run::tied("go")
        .folder(module())
        .env("CGO_ENABLED", "0")
        .args(["build", "-v", "-tags", TAGS, "-ldflags"])
        .arg(linker_flags()?)
        .arg("-o")
        .arg(format!("{}/", into.display()))
        .args(&packages)
        .error_file(&log);
    let go = std::thread::spawn(move || go.output());
    let mut said = Instant::now();
    while !go.is_finished() {
        sleep(Duration::from_millis(200));
        if said.elapsed() > Duration::from_secs(30) {
            let lines = fs::read_to_string(&log).unwrap_or_default().lines().count();
            say(format!("  {lines} packages compiled"));
            said = Instant::now();
        }
    }
    let ended = go.join().map_err(|_| Error::unexpected("go build", "its thread panicked"))??;
    if ended.status.success() {
        return Ok(());
    }
    let tail = Tail::files([("its log".to_owned(), log)]);
    Err(Error::Failed { command: format!("go build {}", packages.join(" ")), status: ended.status, tail })
}
