//! Reading the API server, and waiting until it says what is expected.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;

/// A client that blocks: a story is told one step after the other.
pub struct Api {
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Api {
    /// As the user that the file names.
    pub fn connect(kubeconfig: &Path) -> anyhow::Result<Self> {
        Self::connect_as(Kubeconfig::read_from(kubeconfig)?)
    }

    /// As whoever the token belongs to.
    pub fn connect_with_token(kubeconfig: &Path, token: &str) -> anyhow::Result<Self> {
        let mut file = Kubeconfig::read_from(kubeconfig)?;
        for user in &mut file.auth_infos {
            user.auth_info = Some(AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() });
        }
        Self::connect_as(file)
    }

    fn connect_as(file: Kubeconfig) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(async {
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
            anyhow::Ok(Client::try_from(config)?)
        });
        Ok(Self { client: client.context("making a client")?, runtime })
    }

    /// The object or list at `path`, or nothing where there is none.
    pub fn get(&self, path: &str) -> anyhow::Result<Option<Value>> {
        self.ask(http::Method::GET, path, None)
    }

    /// Makes the object; an error says what the API server said.
    pub fn create(&self, path: &str, object: &Value) -> anyhow::Result<Value> {
        let made = self.ask(http::Method::POST, path, Some(("application/json", object)))?;
        made.with_context(|| format!("there is no {path} to create in"))
    }

    /// Merges into the object.
    pub fn merge(&self, path: &str, change: &Value) -> anyhow::Result<Option<Value>> {
        self.ask(http::Method::PATCH, path, Some(("application/merge-patch+json", change)))
    }

    /// Applies with a field manager, as a controller does.
    pub fn apply(&self, path: &str, manager: &str, object: &Value) -> anyhow::Result<Option<Value>> {
        let path = format!("{path}?fieldManager={manager}&force=true");
        self.ask(http::Method::PATCH, &path, Some(("application/apply-patch+yaml", object)))
    }

    /// Deletes the object, if it is there.
    pub fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.ask(http::Method::DELETE, path, None).map(|_| ())
    }

    fn ask(&self, method: http::Method, path: &str, body: Option<(&str, &Value)>) -> anyhow::Result<Option<Value>> {
        let request = http::Request::builder().method(method.clone()).uri(path);
        let request = match body {
            Some((kind, body)) => request.header("content-type", kind).body(serde_json::to_vec(body)?)?,
            None => request.body(Vec::new())?,
        };
        let answer = self.runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(20), self.client.request::<Value>(request)).await
        });
        match answer.with_context(|| format!("no answer to {method} {path}"))? {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{method} {path}")),
        }
    }

    /// The items of the list at `path`; none where the kind is not there.
    pub fn list(&self, path: &str) -> anyhow::Result<Vec<Value>> {
        let list = self.get(path)?.unwrap_or_default();
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }
}

/// Asks again and again until there is an answer. What is asked for last is part of the error.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let began = Instant::now();
    loop {
        // An API server that is being restarted is asked again; the last word on it is the error.
        let answer = ask();
        if let Ok(Some(answer)) = answer {
            return Ok(answer);
        }
        if began.elapsed() > limit {
            match answer {
                Err(error) => return Err(error.context(format!("{what}: not within {limit:?}"))),
                Ok(_) => bail!("{what}: not within {limit:?}"),
            }
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// The status of a condition, or `""`.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    field(object, kind, "status")
}

/// The message of a condition, or `""`.
pub fn message<'a>(object: &'a Value, kind: &str) -> &'a str {
    field(object, kind, "message")
}

fn field<'a>(object: &'a Value, kind: &str, field: &str) -> &'a str {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|condition| condition["type"] == kind);
    found.and_then(|condition| condition[field].as_str()).unwrap_or_default()
}
