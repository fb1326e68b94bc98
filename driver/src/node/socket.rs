//! Sockets in folders that kubelet looks into, and what is served on them.

use std::{
    io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;

/// How long calls that run may go on when their server ends.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
#[error("opening the socket {path}")]
pub struct SocketError {
    path: PathBuf,
    source: io::Error,
}

/// A socket that is listened on, and the file by which others find it.
#[derive(Debug)]
struct Socket {
    path: PathBuf,
    inode: u64,
}

impl Socket {
    /// Takes the place of a socket that an earlier run left. Anything else at that path is left alone.
    fn open(path: &Path) -> Result<(Self, UnixListener), SocketError> {
        let open = || {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            match std::fs::symlink_metadata(path) {
                Ok(old) if old.file_type().is_socket() => std::fs::remove_file(path)?,
                Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is there and no socket")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let listener = UnixListener::bind(path)?;
            let inode = std::fs::symlink_metadata(path)?.ino();
            Ok((Self { path: path.to_owned(), inode }, listener))
        };
        open().map_err(|source| SocketError { path: path.to_owned(), source })
    }

    /// Whether the file still leads here.
    fn is_there(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode)
    }
}

/// Serves `router` at `path` until `stop`. Each `pace` the file is looked for, with one `lstat`: a socket whose file
/// went away, or could not be opened, is opened anew. At the end the file stays.
pub async fn serve(
    path: &Path,
    pace: Duration,
    router: impl Fn() -> Router,
    opened: impl Fn(),
    stop: &CancellationToken,
) {
    while !stop.is_cancelled() {
        let (socket, listener) = match Socket::open(path) {
            Ok(open) => open,
            Err(error) => {
                tracing::error!(error = runtime::chain(&error), "kubelet can not reach the driver");
                tokio::select! {
                    () = tokio::time::sleep(pace) => continue,
                    () = stop.cancelled() => return,
                }
            }
        };
        opened();
        let end = stop.child_token();
        let serving =
            router().serve_with_incoming_shutdown(UnixListenerStream::new(listener), end.clone().cancelled_owned());
        let patience = async {
            tokio::select! {
                () = gone(&socket, pace) => {
                    tracing::warn!(path = %path.display(), "the socket's file is gone: opening it again");
                    end.cancel();
                }
                () = stop.cancelled() => {}
            }
            tokio::time::sleep(PATIENCE).await;
        };
        tokio::select! {
            outcome = serving => {
                if let Err(error) = outcome {
                    tracing::error!(path = %path.display(), error = runtime::chain(&error), "serving ended");
                }
            }
            () = patience => tracing::warn!(path = %path.display(), "calls were still running when serving ended"),
        }
    }
}

async fn gone(socket: &Socket, pace: Duration) {
    while socket.is_there() {
        tokio::time::sleep(pace).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plugins").join("csi.sock");
        let (first, listener) = Socket::open(&path).unwrap();
        assert!(first.is_there());
        drop(listener);
        assert!(path.exists(), "the kernel leaves the file of a socket that was closed");

        let (second, _listener) = Socket::open(&path).unwrap();
        assert!(second.is_there());
        std::fs::remove_file(&path).unwrap();
        assert!(!second.is_there());

        std::fs::write(&path, "somebody's").unwrap();
        assert!(Socket::open(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's");
    }
}
