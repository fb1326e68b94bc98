//! A client that writes only while the Lease is held, so that no part of a program can forget to ask.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use http::{Method, Request, Response};
use kube::{Client, client::Body};
use tokio::time::Instant;
use tower_service::Service;

use super::{Lost, Validity};

/// `client`, with every request that may change something refused once `validity` is over, and every request that is not a
/// watch given up after `limit`, when there is one.
pub fn client(client: Client, validity: Validity, limit: Option<Duration>) -> Client {
    let namespace = client.default_namespace().to_owned();
    Client::new(Guard { client, validity, limit }, namespace)
}

#[derive(Debug, thiserror::Error)]
#[error("the API server has not answered within {0:?}")]
struct Slow(Duration);

struct Guard {
    client: Client,
    validity: Validity,
    limit: Option<Duration>,
}

impl Service<Request<Body>> for Guard {
    type Response = Response<Body>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // `Client::send` waits until it is ready itself.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let client = self.client.clone();
        let validity = self.validity.clone();
        let limit = self.limit.filter(|_| !is_watch(&request));
        async move {
            if request.method() != Method::GET && !validity.holds_at(Instant::now()) {
                return Err(Lost.into());
            }
            match limit {
                None => Ok(client.send(request).await?),
                Some(limit) => match tokio::time::timeout(limit, whole(&client, request)).await {
                    Ok(answer) => answer,
                    Err(_) => Err(Slow(limit).into()),
                },
            }
        }
        .boxed()
    }
}

/// The answer to the last byte: one that stops in the middle has not been given.
async fn whole(
    client: &Client,
    request: Request<Body>,
) -> Result<Response<Body>, Box<dyn std::error::Error + Send + Sync>> {
    let (head, body) = client.send(request).await?.into_parts();
    Ok(Response::from_parts(head, Body::from(body.collect_bytes().await?)))
}

fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    request.method() == Method::GET && query.split('&').any(|one| one == "watch=true" || one == "watch=1")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api,
        api::{DeleteParams, ListParams, WatchParams},
    };

    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    fn guarded(
        validity: Validity,
        limit: Option<Duration>,
    ) -> (Api<ConfigMap>, tower_test::mock::Handle<Request<Body>, Response<Body>>) {
        let (service, handle) = tower_test::mock::pair();
        (Api::namespaced(client(Client::new(service, "default"), validity, limit), "default"), handle)
    }

    #[tokio::test]
    async fn nothing_is_written_once_the_lease_is_over() {
        let validity = Validity::until_then(Instant::now() + Duration::from_millis(500));
        let (maps, mut server) = guarded(validity, None);
        let served = tokio::spawn(async move {
            let mut seen = Vec::new();
            while let Some((request, send)) = server.next_request().await {
                seen.push(request.method().clone());
                send.send_response(Response::new(Body::from(br#"{"items":[]}"#.to_vec())));
            }
            seen
        });
        maps.delete("a", &DeleteParams::default()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let refused = maps.delete("a", &DeleteParams::default()).await.unwrap_err();
        assert!(runtime::chain(&refused).contains("the lease is not held"), "{refused:?}");
        maps.list(&ListParams::default()).await.unwrap();
        drop(maps);
        assert_eq!(served.await.unwrap(), [Method::DELETE, Method::GET]);
    }

    /// A server that takes a request and never answers.
    #[tokio::test]
    async fn an_answer_is_not_waited_for_without_end_except_of_a_watch() {
        let (maps, mut server) = guarded(Validity::default(), Some(LIMIT));
        tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Some(taken) = server.next_request().await {
                kept.push(taken);
            }
        });
        let began = Instant::now();
        let error = maps.get("a").await.unwrap_err();
        assert!(began.elapsed() >= LIMIT);
        assert!(runtime::chain(&error).contains("has not answered within"), "{error:?}");
        let params = WatchParams::default();
        let watch = tokio::time::timeout(LIMIT * 5, maps.watch(&params, "1")).await;
        assert!(watch.is_err(), "a watch is waited for");
    }
}
