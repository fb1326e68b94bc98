//! The one place in the rig that starts programs, and the record by which each of them is found and ended again.

use std::{
    ffi::OsString,
    fmt,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::{
    error::{Context, Error, Result, Tail},
    progress::wait_until,
    setup,
};

/// A program that is about to be started.
#[derive(Clone, Debug)]
pub struct Run {
    argv: Vec<OsString>,
    folder: Option<PathBuf>,
    env: Vec<(OsString, OsString)>,
    input: Input,
    stdout: Option<PathBuf>,
    stderr: Option<PathBuf>,
}

#[derive(Clone, Debug)]
enum Input {
    Nothing,
    Bytes(Vec<u8>),
    File(PathBuf),
}

/// What a program said, and how it ended.
#[derive(Clone, Debug)]
pub struct Output {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            argv: vec![program.into()],
            folder: None,
            env: Vec::new(),
            input: Input::Nothing,
            stdout: None,
            stderr: None,
        }
    }

    /// The program is started inside a network namespace that `ip netns` made.
    pub fn in_network(namespace: &str, program: impl Into<OsString>) -> Self {
        Self::new("nsenter").arg(format!("--net=/run/netns/{namespace}")).arg(program)
    }

    /// The program ends when this one does: for long builds.
    pub fn tied(program: impl Into<OsString>) -> Self {
        Self::new("setpriv").args(["--pdeathsig", "KILL"]).arg(program)
    }

    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.argv.push(arg.into());
        self
    }

    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.argv.extend(args.into_iter().map(Into::into));
        self
    }

    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Its standard input; without one it is empty.
    #[must_use]
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Input::Bytes(bytes.into());
        self
    }

    #[must_use]
    pub fn input_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.input = Input::File(path.into());
        self
    }

    /// Its standard output becomes this file.
    #[must_use]
    pub fn output_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.stdout = Some(path.into());
        self
    }

    #[must_use]
    pub fn error_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.stderr = Some(path.into());
        self
    }

    /// Runs it to its end, whatever that is.
    pub fn output(self) -> Result<Output> {
        let mut command = self.command()?;
        let stream = |path: &Option<PathBuf>| match path {
            Some(path) => File::create(path).map(Stdio::from).context(|| format!("making {}", path.display())),
            None => Ok(Stdio::piped()),
        };
        command.stdout(stream(&self.stdout)?).stderr(stream(&self.stderr)?);
        let mut child = command.spawn().map_err(|err| self.not_started(err))?;
        let feeding = match (self.input, child.stdin.take()) {
            (Input::Bytes(bytes), Some(mut pipe)) => Some(std::thread::spawn(move || drop(pipe.write_all(&bytes)))),
            (Input::Bytes(_) | Input::Nothing | Input::File(_), _) => None,
        };
        let output = child.wait_with_output().context(|| "waiting for a program".to_owned())?;
        if let Some(feeding) = feeding {
            // A program that does not read to the end is not an error of ours.
            let _ = feeding.join();
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Output { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) })
    }

    /// Runs it; its standard output, or an error with the last lines it wrote.
    pub fn check(self) -> Result<String> {
        let command = self.to_string();
        let output = self.output()?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let said = if output.stderr.trim().is_empty() { &output.stdout } else { &output.stderr };
        Err(Error::Failed { command, status: output.status, tail: Tail::of("its output", said) })
    }

    /// Starts it in a process group of its own, with everything it says in `log`, and records it in `folder`.
    pub fn spawn(self, name: &str, log: &Path, folder: &Path) -> Result<Process> {
        let file =
            OpenOptions::new().create(true).append(true).open(log).context(|| format!("opening {}", log.display()))?;
        let second = file.try_clone().context(|| format!("opening {}", log.display()))?;
        let mut command = self.command()?;
        let child =
            command.stdout(file).stderr(second).process_group(0).spawn().map_err(|err| self.not_started(err))?;
        Process::record(name, &child, log, folder)
    }

    /// As `spawn`, with a pipe that the caller holds as the program's standard input.
    pub(crate) fn spawn_held(
        self,
        name: &str,
        log: &Path,
        folder: &Path,
    ) -> Result<(Process, Option<std::process::ChildStdin>)> {
        let file = File::create(log).context(|| format!("making {}", log.display()))?;
        let mut command = self.command()?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(file)
            .process_group(0)
            .spawn()
            .map_err(|err| self.not_started(err))?;
        let pipe = child.stdin.take();
        Ok((Process::record(name, &child, log, folder)?, pipe))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn command(&self) -> Result<Command> {
        let mut argv = self.argv.iter();
        let mut command = Command::new(argv.next().map_or_else(OsString::new, OsString::clone));
        command.args(argv).envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        match &self.input {
            Input::Nothing => command.stdin(Stdio::null()),
            Input::Bytes(_) => command.stdin(Stdio::piped()),
            Input::File(path) => command.stdin(File::open(path).context(|| format!("opening {}", path.display()))?),
        };
        Ok(command)
    }

    fn not_started(&self, err: std::io::Error) -> Error {
        let program = self.argv.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        match setup::package_of(&program) {
            Some(package) if err.kind() == ErrorKind::NotFound => {
                Error::Missing { program, package: package.to_owned() }
            }
            Some(_) | None => Error::Io { what: format!("starting `{self}`"), source: err },
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.argv.iter().map(|word| word.to_string_lossy()).collect();
        f.write_str(&words.join(" "))
    }
}

/// A program that runs on after the call that started it, known by its id and the time of its start: an id alone may
/// be another program's by now.
#[derive(Clone, Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    started: u64,
    log: PathBuf,
    record: PathBuf,
}

impl Process {
    fn record(name: &str, child: &Child, log: &Path, folder: &Path) -> Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Error::unexpected("a process id", child.id()))?;
        let record = folder.join(format!("{name}.pid"));
        let process = Self {
            name: name.to_owned(),
            pid,
            // One that has ended already has no time of start, and needs no ending.
            started: start_time(pid).unwrap_or(0),
            log: log.to_owned(),
            record,
        };
        let line = format!("{} {} {}\n", pid.as_raw_nonzero(), process.started, log.display());
        fs::write(&process.record, line).context(|| format!("writing {}", process.record.display()))?;
        Ok(process)
    }

    /// What an earlier program recorded in `folder`.
    pub fn recorded(folder: &Path) -> Vec<Self> {
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut found: Vec<Self> = files.filter_map(|file| Self::from_record(&file.path())).collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    pub fn from_record(record: &Path) -> Option<Self> {
        let name = record.file_name()?.to_str()?.strip_suffix(".pid")?.to_owned();
        let text = fs::read_to_string(record).ok()?;
        let mut words = text.trim_end().splitn(3, ' ');
        let pid = Pid::from_raw(words.next()?.parse().ok()?)?;
        let started = words.next()?.parse().ok()?;
        Some(Self { name, pid, started, log: words.next()?.into(), record: record.to_owned() })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    pub fn is_alive(&self) -> bool {
        // One of ours that ended stays in the table until it is waited for.
        let _ = waitpid(Some(self.pid), WaitOptions::NOHANG);
        self.started != 0 && start_time(self.pid) == Some(self.started)
    }

    /// The last lines of its log, as part of an error.
    pub fn tail(&self) -> Tail {
        Tail::files([(self.name.clone(), self.log.clone())])
    }

    /// Fails when it has ended, with the last lines of its log.
    pub fn check(&self) -> Result<()> {
        if self.is_alive() { Ok(()) } else { Err(Error::Ended { process: self.name.clone(), tail: self.tail() }) }
    }

    /// Ends it at once, and returns when it is gone.
    pub fn kill(&self) -> Result<()> {
        self.end(Signal::KILL, Duration::from_secs(10))
    }

    /// Asks it to end, and ends it when it has not after `grace`.
    pub fn stop(&self, grace: Duration) -> Result<()> {
        self.end(Signal::TERM, grace).or_else(|_| self.kill())
    }

    fn end(&self, signal: Signal, limit: Duration) -> Result<()> {
        let gone = || Ok::<_, Error>((!self.is_alive()).then_some(()));
        if self.is_alive() {
            let _ = kill_process(self.pid, signal);
        }
        match wait_until(limit, Duration::from_millis(5), gone)? {
            Some(()) => {
                let _ = fs::remove_file(&self.record);
                Ok(())
            }
            None => Err(Error::TimedOut {
                what: format!("ending {}", self.name),
                seconds: limit.as_secs(),
                tail: self.tail(),
            }),
        }
    }

    /// Memory that is its own, in KiB: shared pages are counted in part.
    pub fn proportional_memory(&self) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.id())).ok()?;
        text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
    }
}

/// In clock ticks since the machine's start; none for a process that is gone or only waits to be waited for.
pub(crate) fn start_time(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name may hold blanks and brackets; the fields after its last bracket do not.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if matches!(fields.first(), Some(&("Z" | "X"))) { None } else { fields.get(19)?.parse().ok() }
}
