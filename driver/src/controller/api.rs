//! One request to the API server, with a limit of its own: a CSI call has time for several.

use std::{error::Error as _, future::Future, time::Duration};

use tonic::Code;

/// The API server answers in milliseconds; what takes this long has lost its way.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("{verb} {name}")]
    Failed { verb: &'static str, name: String, source: Box<kube::Error> },
    #[error("{verb} {name}: the API server has not answered within {LIMIT:?}")]
    Slow { verb: &'static str, name: String },
}

impl ApiError {
    /// The code of an answer; a request that never reached the API server has none.
    fn answered(&self) -> Option<u16> {
        match self {
            Self::Failed { source, .. } => {
                if let kube::Error::Api(status) = &**source {
                    Some(status.code)
                } else {
                    None
                }
            }
            Self::Slow { .. } => None,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.answered() == Some(404)
    }

    /// Somebody else was quicker: the object exists, or is another version by now.
    pub fn is_conflict(&self) -> bool {
        self.answered() == Some(409)
    }

    /// Whether it is certain that nothing was changed.
    pub fn changed_nothing(&self) -> bool {
        match self {
            Self::Failed { source, .. } => {
                let code = self.answered();
                code.is_some_and(|code| (400..500).contains(&code))
                    || source.source().is_some_and(|e| e.is::<lease::Lost>())
            }
            Self::Slow { .. } => false,
        }
    }

    pub fn code(&self) -> Code {
        match self.answered() {
            Some(409) => Code::Aborted,
            // Nothing is at work behind a request that is not allowed or not valid, and asking again soon does not help.
            Some(code @ 400..500) if code != 429 && code != 408 => Code::Internal,
            Some(_) | None => Code::Unavailable,
        }
    }
}

/// `verb` and `name` say in an error what was tried.
pub async fn answer<T>(
    verb: &'static str,
    name: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(LIMIT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(ApiError::Failed { verb, name: name.to_owned(), source: Box::new(source) }),
        Err(_) => Err(ApiError::Slow { verb, name: name.to_owned() }),
    }
}
