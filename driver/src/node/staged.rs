//! What the service has learned of filesystems and the objects do not say yet: kubelet's calls need no API server,
//! so they leave a note here and go on.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use crds::{
    device_class::FilesystemType,
    logical_volume::{FilesystemRef, LogicalVolume},
};
use futures::{Stream, stream};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;

/// Notes that wait for their volume's reconciler. One per volume that this node has staged at most.
#[derive(Clone, Debug)]
pub struct Staged {
    notes: Arc<Mutex<HashMap<String, FilesystemRef>>>,
    wake: mpsc::UnboundedSender<String>,
}

impl Staged {
    /// With the volumes to be reconciled, as they are told of.
    pub fn new() -> (Self, impl Stream<Item = ObjectRef<LogicalVolume>> + Send + 'static) {
        let (wake, woken) = mpsc::unbounded_channel();
        let names = stream::unfold(woken, |mut woken: mpsc::UnboundedReceiver<String>| async {
            woken.recv().await.map(|name| (ObjectRef::new(&name), woken))
        });
        (Self { notes: Arc::default(), wake }, names)
    }

    pub fn tell(&self, volume: &str, fs_type: &str, uuid: String) {
        // A filesystem that Stowage does not make (an LV that was adopted) has no word in the object.
        let Some(type_) = FilesystemType::parse(fs_type) else { return };
        let note = FilesystemRef { type_, uuid };
        let old = self.notes.lock().unwrap_or_else(PoisonError::into_inner).insert(volume.to_owned(), note.clone());
        if old.as_ref() != Some(&note) {
            // The receiver goes away only when the program ends.
            let _ = self.wake.send(volume.to_owned());
        }
    }

    pub fn of(&self, volume: &str) -> Option<FilesystemRef> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).get(volume).cloned()
    }

    /// The object says it now.
    pub fn forget(&self, volume: &str) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).remove(volume);
    }
}
