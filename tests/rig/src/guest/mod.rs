//! A virtual machine: boot, commands, disks that come and go, and power that fails.

mod disks;
mod saving;

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::json;

use crate::{
    agent::{Agent, Said, first_line},
    disk::Disk,
    error::{Error, Result, Tail, last_lines},
    guest_image::{GuestImage, make_folder, write},
    progress::wait_until,
    qemu::{AGENT_SOCKET, CONSOLE, Machine, Plugged, QMP_SOCKET, SHELL_SOCKET, accelerator, disk_file},
    qmp::Qmp,
    run::{Process, Run},
    scope::Scope,
};

/// Emulated and with both processors busy, a boot was seen to take 25 s.
const BOOT: Duration = Duration::from_secs(180);
pub(crate) const MACHINE: &str = "machine.json";
/// For a script that names no limit of its own.
const SCRIPT: Duration = Duration::from_secs(120);

/// What a machine without Kubernetes is made of.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    pub memory_mib: u32,
    pub disks: Vec<Disk>,
}

impl Default for GuestOptions {
    fn default() -> Self {
        Self { memory_mib: 512, disks: Vec::new() }
    }
}

/// A virtual machine. Dropping the last handle of the rig it is part of ends it.
pub struct Guest {
    name: String,
    folder: PathBuf,
    scope: Arc<Scope>,
    machine: Mutex<Machine>,
    running: Mutex<Option<Running>>,
    /// Two programs never use one port: the second is for `rig sh`.
    port: &'static str,
}

struct Running {
    qemu: Process,
    agent: Arc<Agent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Up,
    Down,
}

impl Guest {
    /// Boots a machine that is a rig of its own, and waits for it.
    pub fn boot(name: &str, options: GuestOptions) -> Result<Self> {
        let image = GuestImage::ensure()?;
        let scope = Arc::new(Scope::create(name)?);
        let guest = Self::make(&scope, Machine::new(name, options.memory_mib, &image), &options.disks)?;
        guest.start()?;
        Ok(guest)
    }

    pub(crate) fn make(scope: &Arc<Scope>, mut machine: Machine, disks: &[Disk]) -> Result<Self> {
        let folder = scope.folder().join(&machine.name);
        make_folder(&folder)?;
        for disk in disks {
            let slot =
                if disk.needs_slot() { Some(machine.free_slot().ok_or_else(|| disks::no_slot(disk))?) } else { None };
            disk.make_file(&folder.join(disk_file(&disk.id)))?;
            machine.disks.push(Plugged { disk: disk.clone(), slot });
        }
        let guest = Self {
            name: machine.name.clone(),
            folder,
            scope: Arc::clone(scope),
            machine: Mutex::new(machine),
            running: Mutex::new(None),
            port: AGENT_SOCKET,
        };
        guest.remember(&guest.machine())?;
        Ok(guest)
    }

    /// A machine that another program started.
    pub(crate) fn attach(scope: &Arc<Scope>, name: &str) -> Result<Self> {
        let folder = scope.folder().join(name);
        let machine = Machine::read(&folder.join(MACHINE))?;
        let qemu = Process::from_record(&scope.pids().join(format!("qemu-{name}.pid"))).filter(Process::is_alive);
        let running = match qemu {
            Some(qemu) => Some(Running { qemu, agent: Arc::new(Agent::connect(name, &folder.join(SHELL_SOCKET))?) }),
            None => None,
        };
        Ok(Self {
            name: name.to_owned(),
            folder,
            scope: Arc::clone(scope),
            machine: Mutex::new(machine),
            running: Mutex::new(running),
            port: SHELL_SOCKET,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts QEMU; [`Guest::wait`] waits for the machine.
    pub(crate) fn power_on(&self) -> Result<()> {
        self.launch(&[])
    }

    fn launch(&self, more: &[String]) -> Result<()> {
        let machine = self.machine().clone();
        let arguments = machine.arguments(&self.folder, accelerator(&machine.kernel));
        for socket in [AGENT_SOCKET, SHELL_SOCKET, QMP_SOCKET] {
            let _ = fs::remove_file(self.folder.join(socket));
        }
        let qemu = match &machine.network {
            Some(network) => Run::in_network(&network.namespace, "qemu-system-x86_64"),
            None => Run::new("qemu-system-x86_64"),
        };
        let log = self.scope.log(&format!("qemu-{}", self.name));
        let qemu = qemu.args(arguments).args(more).spawn(&format!("qemu-{}", self.name), &log, &self.scope.pids())?;
        let socket = self.folder.join(self.port);
        let connect = || {
            qemu.check()?;
            Ok(if socket.exists() { Agent::connect(&self.name, &socket).ok() } else { None })
        };
        let agent = wait_until(Duration::from_secs(10), Duration::from_millis(5), connect)?
            .ok_or_else(|| Error::TimedOut { what: "the start of QEMU".to_owned(), seconds: 10, tail: qemu.tail() })?;
        *self.running() = Some(Running { qemu, agent: Arc::new(agent) });
        Ok(())
    }

    /// Waits until the agent answers.
    pub(crate) fn wait(&self) -> Result<()> {
        let (qemu, agent) = self.parts()?;
        let check = || qemu.check();
        agent.wait_ready(BOOT, check).map_err(|err| Error::While {
            what: format!("booting {}{}", self.name, self.console()),
            source: Box::new(err),
        })
    }

    fn start(&self) -> Result<()> {
        self.power_on()?;
        self.wait()
    }

    /// Runs a script; its standard output, or an error when it ends with anything but 0.
    pub fn sh(&self, script: &str) -> Result<String> {
        self.sh_within(script, SCRIPT)
    }

    pub fn sh_within(&self, script: &str, limit: Duration) -> Result<String> {
        let said = self.try_sh_within(script, limit)?;
        if said.code == 0 {
            return Ok(said.out);
        }
        let tail = Tail::of("its output", &(said.out + &said.err));
        Err(Error::InGuest { guest: self.name.clone(), script: first_line(script).to_owned(), code: said.code, tail })
    }

    /// Runs a script, however it ends.
    pub fn try_sh(&self, script: &str) -> Result<Said> {
        self.try_sh_within(script, SCRIPT)
    }

    pub fn try_sh_within(&self, script: &str, limit: Duration) -> Result<Said> {
        let (_, agent) = self.parts()?;
        let mut said = agent.shell(script, limit);
        if let Err(Error::TimedOut { tail, .. } | Error::Ended { tail, .. }) = &mut said {
            tail.0.extend(self.console().0);
        }
        said
    }

    /// Makes a file that may be executed, and the folders above it.
    pub fn push(&self, path: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
        let (_, agent) = self.parts()?;
        agent.push(path, bytes.as_ref(), SCRIPT)
    }

    /// The disk's file on this machine.
    pub fn disk_file(&self, id: &str) -> PathBuf {
        self.folder.join(disk_file(id))
    }

    /// Ends the machine at once; what it had not flushed to its disks is lost.
    pub fn power_cut(&self) -> Result<()> {
        match self.running().take() {
            Some(running) => running.qemu.kill(),
            None => Ok(()),
        }
    }

    /// Starts a machine that was cut off, with the disks it had.
    pub fn start_again(&self) -> Result<()> {
        self.power_cut()?;
        self.start()
    }

    /// Pulls or plugs the network cable.
    pub fn link(&self, link: Link) -> Result<()> {
        self.qmp()?.ask("set_link", json!({ "name": "nic", "up": link == Link::Up })).map(drop)
    }

    pub fn is_running(&self) -> bool {
        self.running().as_ref().is_some_and(|running| running.qemu.is_alive())
    }

    /// The last lines of the serial console.
    pub fn console_tail(&self) -> String {
        let bytes = fs::read(self.folder.join(CONSOLE)).unwrap_or_default();
        last_lines(&String::from_utf8_lossy(&bytes), 40)
    }

    /// The last lines of `/var/log/<name>.log` in the guest.
    pub fn log_tail(&self, name: &str) -> String {
        let script = format!("tail -n 40 /var/log/{name}.log");
        self.try_sh_within(&script, Duration::from_secs(10)).map_or_else(|err| err.chain(), |said| said.out + &said.err)
    }

    /// The number that its address is made of: the last part of its network card's.
    pub(crate) fn number(&self) -> Option<u8> {
        let mac = self.machine().network.as_ref()?.mac.clone();
        u8::from_str_radix(mac.rsplit(':').next()?, 16).ok()
    }

    fn console(&self) -> Tail {
        Tail::files([(format!("{}'s console", self.name), self.folder.join(CONSOLE))])
    }

    fn parts(&self) -> Result<(Process, Arc<Agent>)> {
        match &*self.running() {
            Some(running) => Ok((running.qemu.clone(), Arc::clone(&running.agent))),
            None => Err(Error::Ended { process: self.name.clone(), tail: self.console() }),
        }
    }

    pub(crate) fn qmp(&self) -> Result<Qmp> {
        self.parts()?.0.check()?;
        Qmp::connect(&self.folder.join(QMP_SOCKET))
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, machine: &Machine) -> Result<()> {
        let text = serde_json::to_string_pretty(machine).map_err(|err| Error::unexpected("a machine", err))?;
        write(&self.folder.join(MACHINE), &text)
    }
}
