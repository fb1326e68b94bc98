//! What can go wrong, with what a person needs to see: the command, and the last lines of the log that tells why.

use std::{fmt, io, path::PathBuf, process::ExitStatus};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what}")]
    Io { what: String, source: io::Error },
    #[error("`{program}` is not installed; apt-get install {package}")]
    Missing { program: String, package: String },
    #[error("`{command}` ended with {status}{tail}")]
    Failed { command: String, status: ExitStatus, tail: Tail },
    #[error("{what} took longer than {seconds} s{tail}")]
    TimedOut { what: String, seconds: u64, tail: Tail },
    #[error("{process} ended{tail}")]
    Ended { process: String, tail: Tail },
    #[error("on {guest}: `{script}` ended with {code}{tail}")]
    InGuest { guest: String, script: String, code: i32, tail: Tail },
    #[error("QEMU refused `{command}`: {answer}")]
    Qmp { command: String, answer: String },
    #[error("{what} is not what was expected: {why}")]
    Unexpected { what: String, why: String },
    #[error("rig {name} is in use by process {owner}; `rig down --name {name}` ends it")]
    InUse { name: String, owner: i32 },
    #[error("{}", .0.join("\n"))]
    NotReady(Vec<String>),
    #[error("while {what}")]
    While { what: String, source: Box<Error> },
}

impl Error {
    pub(crate) fn unexpected(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Unexpected { what: what.into(), why: why.to_string() }
    }

    /// The error and all its causes, as `main` and tests print it.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(err) = cause {
            text += &format!(": {err}");
            cause = err.source();
        }
        text
    }
}

/// The last lines of one or more logs, on lines of their own below an error.
#[derive(Clone, Debug, Default)]
pub struct Tail(pub Vec<(String, String)>);

impl Tail {
    pub(crate) fn of(name: impl Into<String>, text: &str) -> Self {
        Self(vec![(name.into(), last_lines(text, LINES))])
    }

    pub(crate) fn files(files: impl IntoIterator<Item = (String, PathBuf)>) -> Self {
        let read = |(name, path): (String, PathBuf)| {
            // Logs may hold bytes that are no text: a kernel's console does.
            let bytes = std::fs::read(path).ok()?;
            Some((name, last_lines(&String::from_utf8_lossy(&bytes), LINES)))
        };
        Self(files.into_iter().filter_map(read).collect())
    }
}

const LINES: usize = 25;

pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, text) in self.0.iter().filter(|(_, text)| !text.is_empty()) {
            write!(f, "\n  last lines of {name}:")?;
            for line in text.lines() {
                write!(f, "\n  | {line}")?;
            }
        }
        Ok(())
    }
}

/// Says what was being done when it failed.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { what: what(), source })
    }
}

impl<T> Context<T> for std::result::Result<T, rustix::io::Errno> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|errno| Error::Io { what: what(), source: errno.into() })
    }
}

impl<T> Context<T> for Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::While { what: what(), source: Box::new(source) })
    }
}
