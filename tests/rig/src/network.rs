//! The network of one rig: a namespace with a bridge, on which the API server has its addresses.
//!
//! The address of the `kubernetes` service is simply one of the bridge's, so pods reach the API server without
//! kube-proxy, address translation or a rule in a firewall. All rigs use the same addresses, each in its namespace.

use std::net::TcpListener;

use crate::{
    error::{Context, Error, Result},
    run::{Process, Run},
    scope::Scope,
};

/// The host's address on the bridge, and the one of the service `kubernetes`.
pub(crate) const HOST: &str = "172.30.0.1";
pub(crate) const SERVICE: &str = "10.96.0.1";
const BRIDGE: &str = "br0";

/// Where the node of a number is.
pub(crate) struct Place {
    pub address: String,
    pub pods: String,
    pub mac: String,
    pub tap: String,
}

impl Place {
    pub fn of(number: u8) -> Self {
        Self {
            address: format!("172.30.0.{}", 10 + u16::from(number)),
            pods: format!("10.244.{number}.0/24"),
            mac: format!("52:54:00:00:00:{number:02x}"),
            tap: format!("tap{number}"),
        }
    }
}

pub(crate) fn create(scope: &Scope) -> Result<()> {
    let namespace = scope.network();
    remove_leftover(&namespace)?;
    Run::new("ip").args(["netns", "add", &namespace]).check()?;
    // A fixed address for the bridge: it would take that of its first port, and guests would lose it with that port.
    let script = format!(
        "link set lo up\n\
         link add {BRIDGE} address 52:54:00:00:00:fe type bridge forward_delay 0\n\
         addr add {HOST}/24 dev {BRIDGE}\n\
         addr add {SERVICE}/32 dev {BRIDGE}\n\
         link set {BRIDGE} up\n"
    );
    Run::new("ip").args(["-n", &namespace, "-batch", "-"]).input(script).check()?;
    Run::in_network(&namespace, "sysctl").args(["-qw", "net.ipv4.ip_forward=1"]).check()?;
    Ok(())
}

/// A namespace by this name that nobody lives in was left by a rig of another checkout which ended with its machine's
/// session. One with processes belongs to a rig that runs.
fn remove_leftover(namespace: &str) -> Result<()> {
    let living = Run::new("ip").args(["netns", "pids", namespace]).output()?;
    if !living.status.success() {
        return Ok(());
    }
    let pids = living.stdout.split_whitespace().collect::<Vec<_>>().join(", ");
    if !pids.is_empty() {
        let what = format!("the network namespace {namespace}");
        return Err(Error::unexpected(what, format!("a rig of another checkout uses it (processes {pids})")));
    }
    Run::new("ip").args(["netns", "del", namespace]).check().map(drop)
}

/// Makes the network card's other end, unless it is there, and the way to the node's pods.
pub(crate) fn add_node(scope: &Scope, number: u8) -> Result<()> {
    let namespace = scope.network();
    let Place { address, pods, tap, .. } = Place::of(number);
    let ip = |args: &[&str]| Run::new("ip").args(["-n", &namespace]).args(args.iter().copied());
    if !ip(&["link", "show", &tap]).output()?.status.success() {
        ip(&["tuntap", "add", &tap, "mode", "tap"]).check()?;
    }
    ip(&["link", "set", &tap, "master", BRIDGE, "up"]).check()?;
    ip(&["route", "replace", &pods, "via", &address]).check()?;
    Ok(())
}

/// Two socats lead from a port of this machine's loopback to the API server in the namespace. The answer is the port.
pub(crate) fn forward(scope: &Scope) -> Result<u16> {
    let socket = scope.folder().join("api.socket");
    let listen = format!("UNIX-LISTEN:{},fork,unlink-early", socket.display());
    spawn(
        scope,
        "forward-inner",
        Run::in_network(&scope.network(), "socat").arg(listen).arg(format!("TCP4:{HOST}:443")),
    )?;
    let port = {
        let free = TcpListener::bind(("127.0.0.1", 0)).context(|| "looking for a free port".to_owned())?;
        free.local_addr().context(|| "looking for a free port".to_owned())?.port()
    };
    let listen = format!("TCP4-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr");
    spawn(scope, "forward-outer", Run::new("socat").arg(listen).arg(format!("UNIX-CONNECT:{}", socket.display())))?;
    Ok(port)
}

fn spawn(scope: &Scope, name: &str, run: Run) -> Result<Process> {
    run.spawn(name, &scope.log(name), &scope.pids())
}
