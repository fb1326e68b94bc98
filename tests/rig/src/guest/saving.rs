//! A machine as files, and back.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use serde_json::json;

use super::{Guest, MACHINE};
use crate::{
    error::{Error, Result},
    guest_image::{copy, make_folder},
    progress::wait_until,
    qemu::{AGENT_SOCKET, Machine},
    qmp::Qmp,
    scope::Scope,
};

/// Its memory and its devices, as QEMU writes them.
const MEMORY: &str = "memory";

impl Guest {
    /// A machine as it was saved in another rig; [`Guest::load`] brings it to life.
    pub(crate) fn saved(scope: &Arc<Scope>, name: &str, from: &Path) -> Result<Self> {
        let folder = scope.folder().join(name);
        make_folder(&folder)?;
        let mut machine = Machine::read(&from.join(name).join(MACHINE))?;
        if let Some(state) = &mut machine.state {
            *state = folder.join("state.disk");
            copy(&from.join(name).join("state.disk"), state)?;
        }
        if let Some(network) = &mut machine.network {
            network.namespace = scope.network();
        }
        let guest = Self {
            name: name.to_owned(),
            folder,
            scope: Arc::clone(scope),
            machine: Mutex::new(machine),
            running: Mutex::new(None),
            port: AGENT_SOCKET,
        };
        guest.remember(&guest.machine())?;
        Ok(guest)
    }

    /// Writes the machine, as it runs now, to a folder of its own below `to`, and ends it.
    pub(crate) fn save(&self, to: &Path) -> Result<()> {
        let to = to.join(&self.name);
        make_folder(&to)?;
        let mut qmp = self.qmp()?;
        qmp.ask("stop", json!({}))?;
        qmp.ask("migrate-set-parameters", json!({ "max-bandwidth": 1_u64 << 40 }))?;
        qmp.ask("migrate", json!({ "uri": format!("exec:cat > '{}'", to.join(MEMORY).display()) }))?;
        self.until_migrated(&mut qmp, "query-migrate", "completed")?;
        self.power_cut()?;
        copy(&self.folder.join(MACHINE), &to.join(MACHINE))?;
        copy(&self.folder.join("state.disk"), &to.join("state.disk"))
    }

    /// Starts QEMU with what was saved; the machine stands still until [`Guest::resume`].
    pub(crate) fn load(&self, from: &Path) -> Result<()> {
        let memory = from.join(&self.name).join(MEMORY);
        self.launch(&["-incoming".to_owned(), format!("exec:cat '{}'", memory.display())])
    }

    /// Lets the machine go on, with the time of now.
    pub(crate) fn resume(&self) -> Result<()> {
        let mut qmp = self.qmp()?;
        self.until_migrated(&mut qmp, "query-status", "paused")?;
        qmp.ask("cont", json!({}))?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.sh(&format!("date -s @{:.3}", now.as_secs_f64())).map(drop)
    }

    fn until_migrated(&self, qmp: &mut Qmp, question: &str, wanted: &str) -> Result<()> {
        let limit = Duration::from_secs(60);
        let look = || {
            self.parts()?.0.check()?;
            let status = qmp.ask(question, json!({}))?["status"].clone();
            match status.as_str() {
                Some("failed") => Err(Error::unexpected(format!("the migration of {}", self.name), "it failed")),
                Some(status) if status == wanted => Ok(Some(())),
                Some(_) | None => Ok(None),
            }
        };
        let what = format!("the migration of {}", self.name);
        wait_until(limit, Duration::from_millis(20), look)?.ok_or_else(|| Error::TimedOut {
            what,
            seconds: limit.as_secs(),
            tail: self.console(),
        })
    }
}
