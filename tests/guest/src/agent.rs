//! Does what the host asks, one thread a command, so that a long one never keeps a short one waiting.
//!
//! Each of the guest's `rig.*` ports is served by itself: the one that a test holds open, and the one for people.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::{
        fs::PermissionsExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle, sleep},
    time::{Duration, Instant},
};

use guest::frame::{Frame, Kind};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::machine::command;

/// How long the output of a command is waited for after its end: a daemon that it started may keep the pipes open.
const DRAIN: Duration = Duration::from_secs(2);

pub fn run() -> ! {
    let ports: Vec<PathBuf> = fs::read_dir("/sys/class/virtio-ports")
        .expect("a virtio-serial device")
        .flatten()
        .filter(|port| fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.starts_with("rig.")))
        .map(|port| Path::new("/dev").join(port.file_name()))
        .collect();
    let serving: Vec<JoinHandle<()>> = ports.into_iter().map(|port| thread::spawn(move || serve(&port))).collect();
    for thread in serving {
        let _ = thread.join();
    }
    panic!("no port is served any more");
}

#[derive(Clone)]
struct Port {
    out: Arc<Mutex<File>>,
    /// The process groups of the commands that run, by call.
    running: Arc<Mutex<BTreeMap<u32, Pid>>>,
}

fn serve(path: &Path) {
    let mut port = OpenOptions::new().read(true).write(true).open(path).expect("the port is there");
    let out = port.try_clone().expect("the port can be used by several threads");
    let answers = Port { out: Arc::new(Mutex::new(out)), running: Arc::default() };
    loop {
        match Frame::read_from(&mut port) {
            Ok(frame) => answers.take(frame),
            // Nobody is connected on the host.
            Err(_) => sleep(Duration::from_millis(20)),
        }
    }
}

impl Port {
    fn take(&self, frame: Frame) {
        let Frame { kind, call, body } = frame;
        match kind {
            Kind::Shell => {
                let port = self.clone();
                thread::spawn(move || port.shell(call, &String::from_utf8_lossy(&body)));
            }
            // In the order in which they came, so that a file's pieces follow each other.
            Kind::Write | Kind::Append => match put(kind, &body) {
                Ok(()) => self.send(&Frame::exit(call, 0)),
                Err(err) => self.fail(call, 1, &err),
            },
            Kind::Kill => {
                let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(group) = running.get(&call) {
                    let _ = kill_process_group(*group, Signal::KILL);
                }
            }
            Kind::Out | Kind::Err | Kind::Exit => {}
        }
    }

    fn shell(&self, call: u32, script: &str) {
        let mut shell = command("/bin/sh", &["-c", script]);
        let started = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(err) => return self.fail(call, 127, &err),
        };
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            self.running.lock().unwrap_or_else(PoisonError::into_inner).insert(call, group);
        }
        let pumps: Vec<JoinHandle<()>> = [
            child.stdout.take().map(|out| self.pump(Kind::Out, call, out)),
            child.stderr.take().map(|err| self.pump(Kind::Err, call, err)),
        ]
        .into_iter()
        .flatten()
        .collect();
        let status = child.wait();
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&call);
        let ended = Instant::now();
        while !pumps.iter().all(JoinHandle::is_finished) && ended.elapsed() < DRAIN {
            sleep(Duration::from_millis(1));
        }
        let code = |status: std::process::ExitStatus| status.code().unwrap_or(128 + status.signal().unwrap_or(0));
        self.send(&Frame::exit(call, status.map_or(126, code)));
    }

    fn pump(&self, kind: Kind, call: u32, mut from: impl Read + Send + 'static) -> JoinHandle<()> {
        let port = self.clone();
        thread::spawn(move || {
            let mut piece = vec![0; 32 << 10];
            while let Ok(length @ 1..) = from.read(&mut piece) {
                port.send(&Frame::new(kind, call, &piece[..length]));
            }
        })
    }

    fn fail(&self, call: u32, code: i32, err: &io::Error) {
        self.send(&Frame::new(Kind::Err, call, format!("{err}\n")));
        self.send(&Frame::exit(call, code));
    }

    fn send(&self, frame: &Frame) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(err) = frame.write_to(&mut *out).and_then(|()| out.flush()) {
            println!("agent: answering call {}: {err}", frame.call);
        }
    }
}

fn put(kind: Kind, body: &[u8]) -> io::Result<()> {
    let end = body.iter().position(|byte| *byte == 0).ok_or_else(|| io::Error::other("a file without a name"))?;
    let path = Path::new(std::str::from_utf8(&body[..end]).map_err(io::Error::other)?);
    let bytes = &body[end + 1..];
    if kind == Kind::Append {
        return OpenOptions::new().append(true).open(path)?.write_all(bytes);
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, bytes)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}
