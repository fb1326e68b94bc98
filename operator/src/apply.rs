//! Writing to the API server: server-side apply under the operator's own name, and nothing when nothing changed.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Mutex,
};

use crds::names::manager;
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, Preconditions},
};

use crate::objects::Owned;

pub fn params() -> PatchParams {
    PatchParams::apply(manager::OPERATOR).force()
}

/// Only this very object, not one that was made anew under its name.
pub fn only(uid: Option<String>, resource_version: Option<String>) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions { uid, resource_version })
}

/// An error in one line: what the API server said, or what went wrong on the way.
pub fn why(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error { status.message.clone() } else { runtime::chain(error) }
}

/// Whether an error says that the object is not there (any more), or is another one by now.
pub fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || status.code == 409)
}

/// Whether it was this call that changed the object: not when that is gone, or is another one by now.
pub fn is_new<T>(answer: Result<T, kube::Error>) -> Result<bool, kube::Error> {
    match answer {
        Ok(_) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// `Ok` also when the object was gone already.
pub fn gone<T>(answer: Result<T, kube::Error>) -> Result<(), kube::Error> {
    is_new(answer).map(|_| ())
}

/// Keeps objects as they are wanted: applies one when it was not yet, when what is wanted changed, or when somebody else
/// changed what is there.
#[derive(Default)]
pub struct Keeper {
    applied: Mutex<HashMap<String, (u64, Seen)>>,
}

/// What shows that an object is still the one that was applied. Status writes do not change it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    uid: Option<String>,
    /// The generation where the kind has one, else the resourceVersion.
    version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl From<&ObjectMeta> for Seen {
    fn from(meta: &ObjectMeta) -> Self {
        let generation = meta.generation.filter(|generation| *generation > 0).map(|generation| generation.to_string());
        Self {
            uid: meta.uid.clone(),
            version: generation.or_else(|| meta.resource_version.clone()),
            labels: meta.labels.clone(),
            annotations: meta.annotations.clone(),
        }
    }
}

/// What applying did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Nothing,
    Created,
    Changed,
}

impl Keeper {
    /// `there` is the metadata of the watched copy.
    pub async fn keep(&self, client: &Client, owned: &Owned, there: Option<&ObjectMeta>) -> Result<Done, kube::Error> {
        let mut hasher = DefaultHasher::new();
        owned.body.to_string().hash(&mut hasher);
        let wanted = hasher.finish();
        let title = owned.title();
        let known = self.lock().get(&title).cloned();
        if let (Some((hash, seen)), Some(there)) = (&known, there)
            && *hash == wanted
            && *seen == Seen::from(there)
        {
            return Ok(Done::Nothing);
        }
        let api: Api<DynamicObject> = match &owned.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &owned.resource),
            None => Api::all_with(client.clone(), &owned.resource),
        };
        // Strict: a field that the API server does not know is a mistake of ours, not to be dropped in silence.
        let answer = api.patch(&owned.name, &params().validation_strict(), &Patch::Apply(&owned.body)).await?;
        let seen = Seen::from(&answer.metadata);
        let done = match there {
            None => Done::Created,
            Some(there) if Seen::from(there) == seen => Done::Nothing,
            Some(_) => Done::Changed,
        };
        self.lock().insert(title, (wanted, seen));
        Ok(done)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, (u64, Seen)>> {
        self.applied.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
