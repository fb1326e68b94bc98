//! The one place that starts other programs, and the lock that lets one lvmd at a time start LVM on a node.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    fs::File,
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

const LVM: &str = "/usr/sbin/lvm";

/// A program by its absolute path, and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argv {
    pub program: &'static str,
    pub args: Vec<OsString>,
}

impl Argv {
    pub fn new(program: &'static str) -> Self {
        Self { program, args: Vec::new() }
    }

    /// An LVM command that may look at these devices and at no other: a foreign disk can neither stall nor confuse it,
    /// and an LV's content is never scanned.
    pub fn lvm<'a>(command: &str, devices: impl IntoIterator<Item = &'a Path>) -> Self {
        let devices = devices.into_iter().map(Path::as_os_str).collect::<Vec<_>>().join(OsStr::new(","));
        Self::new(LVM).arg(command).arg("--devices").arg(devices)
    }

    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub fn is_lvm(&self) -> bool {
        self.program == LVM
    }
}

impl fmt::Display for Argv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", arg.to_string_lossy()))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("could not start `{argv}`")]
    Start { argv: Argv, source: io::Error },
    #[error("`{argv}` ended with {status}: {stderr}")]
    Failed { argv: Argv, status: ExitStatus, stderr: String },
    #[error("another lvmd, or an LVM command of one that was ended, still holds {lock}: it is waited for")]
    Locked { lock: String },
}

impl RunError {
    /// The number a program ended with, where it ran at all.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Failed { status, .. } => status.code(),
            Self::Start { .. } | Self::Locked { .. } => None,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Output {
    pub stdout: String,
    pub stderr: String,
}

/// Starts a program and waits for its end, however long it takes: a limit is the business of whoever waits for the
/// answer. A trait, so that tests can answer instead, or add an argument.
pub trait Run: Send + Sync + 'static {
    fn run(&self, argv: Argv) -> impl Future<Output = Result<Output, RunError>> + Send;
}

/// The node's own programs: absolute paths, an empty environment, no stdin, no shell.
pub struct System {
    /// The folder of `lvm.conf`.
    lvm: PathBuf,
    lock: HostLock,
    lvm_commands: AtomicU64,
}

impl System {
    pub fn new(lvm: PathBuf, lock: HostLock) -> Self {
        Self { lvm, lock, lvm_commands: AtomicU64::new(0) }
    }

    /// How many LVM processes were started so far.
    pub fn lvm_commands(&self) -> u64 {
        self.lvm_commands.load(Ordering::Relaxed)
    }

    pub fn lock(&self) -> &HostLock {
        &self.lock
    }
}

impl Run for System {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    async fn run(&self, argv: Argv) -> Result<Output, RunError> {
        // LVM closes what it inherits above descriptor 2, so its stdin carries the lock: as long as one LVM process
        // lives, whatever became of its lvmd, no other lvmd starts a second one. The file is empty: as good as no stdin.
        let stdin = if argv.is_lvm() { Stdio::from(self.lock.share()?) } else { Stdio::null() };
        let mut command = tokio::process::Command::new(argv.program);
        command
            .args(&argv.args)
            .env_clear()
            .env("LC_ALL", "C")
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LVM_SYSTEM_DIR", &self.lvm)
            .env("LVM_SUPPRESS_FD_WARNINGS", "1")
            .stdin(stdin);
        tracing::debug!(%argv, "starting");
        if argv.is_lvm() {
            self.lvm_commands.fetch_add(1, Ordering::Relaxed);
        }
        // In a task of its own: killed, or with its pipes closed because the caller went away, a program might leave
        // a volume group half-written.
        let ended = match tokio::spawn(async move { command.output().await }).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(source)) => return Err(RunError::Start { argv, source }),
            Err(panic) => return Err(RunError::Start { argv, source: io::Error::other(panic) }),
        };
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim_end().to_owned();
        let output = Output { stdout: text(ended.stdout), stderr: text(ended.stderr) };
        if ended.status.success() {
            Ok(output)
        } else {
            Err(RunError::Failed { argv, status: ended.status, stderr: one_line(&output.stderr) })
        }
    }
}

impl<R: Run> Run for Arc<R> {
    async fn run(&self, argv: Argv) -> Result<Output, RunError> {
        R::run(self, argv).await
    }
}

/// What a program complained of, fit for a message: LVM indents its lines and mixes warnings in.
fn one_line(stderr: &str) -> String {
    stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The right to start LVM on this node.
pub struct HostLock {
    path: PathBuf,
    file: File,
    held: Mutex<bool>,
}

impl HostLock {
    /// Opens the lock file in `folder`, without waiting for the lock.
    pub fn open(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join("lvmd.lock");
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        Ok(Self { path, file, held: Mutex::new(false) })
    }

    /// Whether the lock is held by now.
    pub fn try_hold(&self) -> bool {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // The lock belongs to the open file: asking for it again while a child shares it succeeds.
        *held = *held || rustix::fs::flock(&self.file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok();
        *held
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn share(&self) -> Result<File, RunError> {
        let locked = || RunError::Locked { lock: self.path.display().to_string() };
        if !self.try_hold() {
            return Err(locked());
        }
        self.file.try_clone().map_err(|_| locked())
    }
}

/// Answers from recordings, and keeps what was asked.
#[cfg(test)]
#[derive(Default)]
pub struct Recorded {
    pub answers: std::collections::BTreeMap<String, String>,
    pub asked: Mutex<Vec<String>>,
}

#[cfg(test)]
impl Run for Recorded {
    async fn run(&self, argv: Argv) -> Result<Output, RunError> {
        let line = argv.to_string();
        let stdout = self.answers.get(&line).unwrap_or_else(|| panic!("no recording of `{line}`"));
        self.asked.lock().unwrap().push(line);
        Ok(Output { stdout: stdout.clone(), ..Output::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(folder: &Path) -> System {
        System::new(folder.to_owned(), HostLock::open(folder).unwrap())
    }

    #[tokio::test]
    async fn a_failure_says_what_was_tried() {
        let folder = tempfile::tempdir().unwrap();
        let argv = Argv::new("/usr/bin/ls").arg("/nowhere");
        let err = system(folder.path()).run(argv).await.unwrap_err();
        assert_eq!(err.code(), Some(2));
        assert!(err.to_string().starts_with("`/usr/bin/ls /nowhere` ended with exit status: 2: "), "{err}");
    }

    #[tokio::test]
    async fn a_missing_program_is_an_error_with_its_cause() {
        let folder = tempfile::tempdir().unwrap();
        let err = system(folder.path()).run(Argv::new("/usr/sbin/nothing")).await.unwrap_err();
        assert!(matches!(err, RunError::Start { .. }), "{err}");
    }

    /// A15: the old and the new pod of a rollout.
    #[tokio::test]
    async fn a_second_lvmd_starts_no_lvm() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (system(folder.path()), system(folder.path()));
        assert!(first.lock().try_hold() && first.lock().try_hold());
        let err = second.run(Argv::lvm("version", [])).await.unwrap_err();
        assert!(matches!(err, RunError::Locked { .. }), "{err}");
        drop(first);
        assert!(second.lock().try_hold());
    }
}
