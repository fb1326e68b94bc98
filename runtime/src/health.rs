//! `/healthz` (the process runs), `/readyz` (it does its work) and `/metrics`.

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use prometheus_client::{encoding::text::encode, registry::Registry};

/// Whether this program does its work. Cloned freely; all clones are one. It says nothing of the API server:
/// a program that waits for it is healthy.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<AtomicBool>);

impl Health {
    /// Says whether the program does its work from now on.
    pub fn ready(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }

    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("serving health and metrics on {address}")]
pub struct ServeError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Serves until `stop` ends.
pub async fn serve(
    address: SocketAddr,
    health: Health,
    registry: Registry,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let failed = |source| ServeError { address, source };
    let listener = tokio::net::TcpListener::bind(address).await.map_err(failed)?;
    let metrics = Arc::new(registry);
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz).with_state(health))
        .route("/metrics", get(write_metrics).with_state(metrics));
    axum::serve(listener, app).with_graceful_shutdown(stop).await.map_err(failed)
}

async fn readyz(State(health): State<Health>) -> (StatusCode, &'static str) {
    if health.is_ready() { (StatusCode::OK, "ok\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready\n") }
}

async fn write_metrics(State(registry): State<Arc<Registry>>) -> Result<String, StatusCode> {
    let mut text = String::new();
    encode(&mut text, &registry).map(|()| text).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}
