//! What stands around every program of Stowage: logs, health and metrics over
//! HTTP, the stop signal.
//!
//! Deliberately absent: anything that knows what the program is for.

pub mod health;

use std::error::Error;

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// How a program logs.
#[derive(clap::Args, Clone, Debug)]
pub struct LogArgs {
    /// Which log lines to print: error, warn, info, debug, trace, or a filter as `tracing_subscriber` reads it.
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    pub log_level: String,
    /// `text` for people, `json` for a collector.
    #[arg(long, env = "LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error("{level:?} is not a log level: use error, warn, info, debug or trace")]
    Level { level: String, source: tracing_subscriber::filter::ParseError },
    #[error("logging was started already")]
    Twice(#[source] Box<dyn Error + Send + Sync>),
}

/// Sends this process's log lines to stderr.
pub fn start_logging(args: &LogArgs) -> Result<(), LoggingError> {
    let filter = EnvFilter::try_new(&args.log_level)
        .map_err(|source| LoggingError::Level { level: args.log_level.clone(), source })?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match args.log_format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    }
    .map_err(LoggingError::Twice)
}

/// Ends at the first SIGTERM or SIGINT. Where the signals can not be had it never ends: then only SIGKILL stops the
/// program, as it would without this function.
pub async fn stop_signal() {
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("asked to stop");
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "signals can not be received");
            std::future::pending().await
        }
    }
}

/// An error and all its causes in one line, for the border where it is logged or shown.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    std::iter::once(error).chain(causes).fold(String::new(), |mut line, part| {
        let part = part.to_string();
        // Some libraries paste the cause into their own message.
        if !line.ends_with(&part) {
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(&part);
        }
        line
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("making the volume")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("the group is full")]
    struct Inner;

    #[derive(Debug, thiserror::Error)]
    #[error("pasted: {0}")]
    struct Pasted(#[source] Inner);

    #[test]
    fn an_error_is_written_with_its_causes_and_nothing_twice() {
        assert_eq!(chain(&Outer(Inner)), "making the volume: the group is full");
        assert_eq!(chain(&Pasted(Inner)), "pasted: the group is full");
    }
}
