//! QEMU's monitor: one connection a command, since nothing is asked often.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde_json::{Value, json};

use crate::error::{Context, Error, Result};

/// QEMU answers within milliseconds unless its machine is stuck.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Qmp {
    socket: BufReader<UnixStream>,
}

impl Qmp {
    pub fn connect(socket: &Path) -> Result<Self> {
        let what = || format!("connecting to {}", socket.display());
        let stream = UnixStream::connect(socket).context(what)?;
        stream.set_read_timeout(Some(LIMIT)).context(what)?;
        let mut qmp = Self { socket: BufReader::new(stream) };
        qmp.line()?;
        qmp.ask("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    pub fn ask(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let question = json!({ "execute": command, "arguments": arguments });
        self.socket
            .get_mut()
            .write_all(format!("{question}\n").as_bytes())
            .context(|| format!("asking QEMU to {command}"))?;
        loop {
            let mut answer = self.line()?;
            if answer.get("event").is_some() {
                continue;
            }
            return match answer.get_mut("return") {
                Some(value) => Ok(value.take()),
                None => Err(Error::Qmp { command: question.to_string(), answer: answer["error"].to_string() }),
            };
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.socket.read_line(&mut line).context(|| "reading QEMU's answer".to_owned())?;
        serde_json::from_str(&line).map_err(|err| Error::unexpected("QEMU's answer", err))
    }
}
