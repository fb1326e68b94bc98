//! The folder of one rig, and the promise that nothing it started outlives it.
//!
//! Every process is recorded in the folder. A small shell, the reaper, holds the end of a pipe from the program that
//! owns the rig: when that program ends, however it ends, the reaper ends everything that is recorded.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ChildStdin,
    sync::{Mutex, PoisonError},
};

use rustix::process::getpid;

use crate::{
    cache,
    error::{Context, Error, Result},
    guest::MACHINE,
    guest_image::make_folders,
    run::{Process, Run, start_time},
};

const REAPER: &str = include_str!("reaper.sh");

/// The name is part of a network namespace's, and a folder.
pub struct Scope {
    name: String,
    folder: PathBuf,
    reaper: Mutex<Option<(Process, ChildStdin)>>,
}

impl Scope {
    /// A new rig, owned by this program. What is left of an earlier one by this name, whose owner is gone, is removed.
    pub fn create(name: &str) -> Result<Self> {
        check_name(name)?;
        let scope = Self { name: name.to_owned(), folder: folder_of(name), reaper: Mutex::new(None) };
        // The longest socket is `<folder>/<guest>/agent`, and a socket's path has at most 107 bytes.
        if scope.folder.as_os_str().len() > 80 {
            return Err(Error::unexpected(scope.folder.display().to_string(), "too long a path for sockets below it"));
        }
        if let Some(owner) = scope.owner() {
            return Err(Error::InUse { name: name.to_owned(), owner });
        }
        if scope.folder.join("kept").exists() {
            return Err(Error::unexpected(format!("rig {name}"), "it is running; `rig down` ends it"));
        }
        if scope.folder.exists() {
            scope.end()?;
            fs::remove_dir_all(&scope.folder).context(|| format!("removing {}", scope.folder.display()))?;
        }
        make_folders(&scope.folder, &["pids", "logs"])?;
        let (me, started) = (getpid(), start_time(getpid()).unwrap_or_default());
        let owner = scope.folder.join("owner");
        fs::write(&owner, format!("{} {started}", me.as_raw_nonzero())).context(|| "writing the owner".to_owned())?;
        let (reaper, pipe) = Run::new("/bin/sh")
            .args(["-c", REAPER, "rig-reaper"])
            .arg(&scope.folder)
            .arg(scope.network())
            .spawn_held("reaper", &scope.log("reaper"), &scope.folder)?;
        let held = pipe.map(|pipe| (reaper, pipe));
        *scope.reaper.lock().unwrap_or_else(PoisonError::into_inner) = held;
        Ok(scope)
    }

    /// A rig that another program made and left running.
    pub fn attach(name: &str) -> Result<Self> {
        check_name(name)?;
        let scope = Self { name: name.to_owned(), folder: folder_of(name), reaper: Mutex::new(None) };
        if scope.folder.join("owner").exists() || scope.folder.join("kept").exists() {
            return Ok(scope);
        }
        Err(Error::unexpected(format!("rig {name}"), "it is not running; `rig up` starts one"))
    }

    /// Ends what is there by this name, whoever made it.
    pub fn end_of(name: &str) -> Result<()> {
        check_name(name)?;
        let scope = Self { name: name.to_owned(), folder: folder_of(name), reaper: Mutex::new(None) };
        if scope.folder.exists() { scope.end() } else { Ok(()) }
    }

    /// The rig goes on when this program ends, until `rig down`.
    pub fn keep(&self) -> Result<()> {
        let path = self.folder.join("kept");
        fs::write(&path, "").context(|| format!("writing {}", path.display()))?;
        self.let_reaper_go();
        let _ = fs::remove_file(self.folder.join("owner"));
        Ok(())
    }

    /// Ends every process that is recorded, removes the network and the disks. Logs stay.
    pub fn end(&self) -> Result<()> {
        self.let_reaper_go();
        // The last ones first: what a node's end would make the others do is not wanted.
        let processes = Process::recorded(&self.pids());
        processes.iter().try_for_each(Process::kill)?;
        if Path::new("/run/netns").join(self.network()).exists() {
            Run::new("ip").args(["netns", "del", &self.network()]).check()?;
        }
        for guest in self.guests() {
            for file in fs::read_dir(self.folder.join(guest)).into_iter().flatten().flatten() {
                if file.path().extension().is_some_and(|end| end == "disk") {
                    let _ = fs::remove_file(file.path());
                }
            }
        }
        let _ = fs::remove_dir_all(self.folder.join("etcd"));
        for mark in ["owner", "kept"] {
            let _ = fs::remove_file(self.folder.join(mark));
        }
        Ok(())
    }

    /// The network namespace that is this rig's, as `ip netns` names it.
    pub fn network(&self) -> String {
        format!("rig-{}", self.name)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn pids(&self) -> PathBuf {
        self.folder.join("pids")
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder.join("logs").join(format!("{name}.log"))
    }

    /// The guests that were made in this rig.
    pub(crate) fn guests(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter(|entry| entry.path().join(MACHINE).exists())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// The program that made this rig and is still there.
    fn owner(&self) -> Option<i32> {
        let text = fs::read_to_string(self.folder.join("owner")).ok()?;
        let (id, started) = text.split_once(' ')?;
        let pid = rustix::process::Pid::from_raw(id.parse().ok()?)?;
        (start_time(pid) == started.parse().ok()).then(|| pid.as_raw_nonzero().get())
    }

    fn let_reaper_go(&self) {
        if let Some((reaper, mut pipe)) = self.reaper.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = pipe.write_all(b"keep\n");
            drop(pipe);
            let _ = reaper.stop(std::time::Duration::from_secs(2));
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let owned = self.reaper.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if owned && let Err(err) = self.end() {
            crate::say(format!("ending rig {}: {}", self.name, err.chain()));
        }
    }
}

fn folder_of(name: &str) -> PathBuf {
    cache::folder().join("run").join(name)
}

fn check_name(name: &str) -> Result<()> {
    let good = !name.is_empty()
        && name.len() <= 20
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if good { Ok(()) } else { Err(Error::unexpected(format!("the name {name:?}"), "up to 20 of a-z, 0-9 and -")) }
}
