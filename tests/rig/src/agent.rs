//! The host's end of the port to the agent in a guest: many calls at once over one connection.

use std::{
    collections::BTreeMap,
    io::Write,
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant, SystemTime},
};

use ::guest::frame::{Frame, Kind};

use crate::error::{Context, Error, Result, Tail};

/// Small pieces leave the port free for others, and take little memory in the guest.
const PIECE: usize = 1 << 20;

/// What a script in a guest said, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

type Calls = Arc<Mutex<BTreeMap<u32, Sender<Frame>>>>;

pub(crate) struct Agent {
    guest: String,
    port: Mutex<UnixStream>,
    calls: Calls,
    next: AtomicU32,
}

impl Agent {
    /// QEMU takes the connection even when nobody in the guest listens yet; what is sent waits.
    pub fn connect(guest: &str, socket: &Path) -> Result<Self> {
        let what = || format!("connecting to {}", socket.display());
        let port = UnixStream::connect(socket).context(what)?;
        let mut answers = port.try_clone().context(what)?;
        let calls = Calls::default();
        let waiting = Arc::clone(&calls);
        std::thread::spawn(move || {
            while let Ok(frame) = Frame::read_from(&mut answers) {
                let calls = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                // An answer that nobody waits for belongs to a call that was given up.
                if let Some(call) = calls.get(&frame.call) {
                    let _ = call.send(frame);
                }
            }
            // Every call that still waits is told so by the end of its channel.
            waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        // Numbers of an earlier connection are not used again soon: its answers may still come.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let next = AtomicU32::new((now.as_millis() & 0x7fff_ffff) as u32);
        Ok(Self { guest: guest.to_owned(), port: Mutex::new(port), calls, next })
    }

    /// Waits until the guest answers; `check` tells when that has become impossible.
    pub fn wait_ready(&self, limit: Duration, check: impl Fn() -> Result<()>) -> Result<()> {
        let began = Instant::now();
        let (call, answers) = self.send(Kind::Shell, b"true".to_vec())?;
        let ready = loop {
            match self.collect(call, &answers, Duration::from_millis(200)) {
                Ok(_) => break Ok(()),
                Err((RecvTimeoutError::Timeout, _)) if began.elapsed() < limit => check()?,
                Err(_) => {
                    check()?;
                    let what = format!("the start of {}", self.guest);
                    break Err(Error::TimedOut { what, seconds: limit.as_secs(), tail: Tail::default() });
                }
            }
        };
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).remove(&call);
        ready
    }

    pub fn shell(&self, script: &str, limit: Duration) -> Result<Said> {
        let (call, answers) = self.send(Kind::Shell, script.as_bytes().to_vec())?;
        let ended = self.collect(call, &answers, limit);
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).remove(&call);
        match ended {
            Ok(said) => Ok(said),
            Err((why, out)) => {
                let tail = Tail::of("its output", &out);
                let what = format!("`{}` on {}", first_line(script), self.guest);
                match why {
                    RecvTimeoutError::Timeout => {
                        let _ = self.write(&Frame::new(Kind::Kill, call, Vec::new()));
                        Err(Error::TimedOut { what, seconds: limit.as_secs(), tail })
                    }
                    RecvTimeoutError::Disconnected => {
                        Err(Error::Ended { process: format!("{} during {what}", self.guest), tail })
                    }
                }
            }
        }
    }

    /// Makes a file, and the folders above it.
    pub fn push(&self, path: &str, bytes: &[u8], limit: Duration) -> Result<()> {
        let mut kind = Kind::Write;
        let mut pieces = bytes.chunks(PIECE);
        let mut piece = pieces.next().unwrap_or_default();
        loop {
            let body = [path.as_bytes(), b"\0", piece].concat();
            let (call, answers) = self.send(kind, body)?;
            let ended = self.collect(call, &answers, limit);
            self.calls.lock().unwrap_or_else(PoisonError::into_inner).remove(&call);
            match ended {
                Ok(Said { code: 0, .. }) => {}
                Ok(Said { code, err, .. }) => {
                    let tail = Tail::of("the agent", &err);
                    return Err(Error::InGuest {
                        guest: self.guest.clone(),
                        script: format!("writing {path}"),
                        code,
                        tail,
                    });
                }
                Err(_) => {
                    let what = format!("writing {path} on {}", self.guest);
                    return Err(Error::TimedOut { what, seconds: limit.as_secs(), tail: Tail::default() });
                }
            }
            kind = Kind::Append;
            match pieces.next() {
                Some(next) => piece = next,
                None => return Ok(()),
            }
        }
    }

    fn send(&self, kind: Kind, body: Vec<u8>) -> Result<(u32, Receiver<Frame>)> {
        let call = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answers) = channel();
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).insert(call, sender);
        self.write(&Frame::new(kind, call, body))?;
        Ok((call, answers))
    }

    fn write(&self, frame: &Frame) -> Result<()> {
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        frame.write_to(&mut *port).and_then(|()| port.flush()).context(|| format!("talking to {}", self.guest))
    }

    fn collect(
        &self,
        call: u32,
        answers: &Receiver<Frame>,
        limit: Duration,
    ) -> std::result::Result<Said, (RecvTimeoutError, String)> {
        let began = Instant::now();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        loop {
            let left = limit.saturating_sub(began.elapsed());
            let frame = answers.recv_timeout(left).map_err(|why| (why, text(&out) + &text(&err)))?;
            match frame.kind {
                Kind::Out => out.extend(frame.body),
                Kind::Err => err.extend(frame.body),
                Kind::Exit => {
                    let code = frame.body.try_into().map_or(-1, i32::from_le_bytes);
                    return Ok(Said { code, out: text(&out), err: text(&err) });
                }
                Kind::Shell | Kind::Write | Kind::Append | Kind::Kill => {
                    debug_assert!(false, "call {call}: not an answer")
                }
            }
        }
    }
}

impl Drop for Agent {
    /// Ends the reading thread, which holds the connection too.
    fn drop(&mut self) {
        let port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = port.shutdown(std::net::Shutdown::Both);
    }
}

pub(crate) fn first_line(script: &str) -> &str {
    script.trim().lines().next().unwrap_or_default()
}
