//! A client that writes only while the Lease is held, so that no part of the controller can forget to ask.

use std::task::{Context, Poll};

use futures::{FutureExt, future::BoxFuture};
use kube::{Client, client::Body};
use tokio::time::Instant;
use tonic::codegen::{Service, http};

use super::lease::{Lost, Validity};

/// `client`, with every request that may change something refused once `validity` is over.
pub fn client(client: Client, validity: Validity) -> Client {
    let namespace = client.default_namespace().to_owned();
    Client::new(Guard { client, validity }, namespace)
}

struct Guard {
    client: Client,
    validity: Validity,
}

impl Service<http::Request<Body>> for Guard {
    type Response = http::Response<Body>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // `Client::send` waits until it is ready itself.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let client = self.client.clone();
        let validity = self.validity.clone();
        async move {
            if request.method() != http::Method::GET && !validity.holds_at(Instant::now()) {
                return Err(Lost.into());
            }
            Ok(client.send(request).await?)
        }
        .boxed()
    }
}
