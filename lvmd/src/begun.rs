//! Devices that a step was about to be carried out on: what an interrupted vgcreate or vgextend leaves is a PV in no
//! group, and nothing on it says whose it is. This list does, since it is written before the command and after the
//! device was seen to be blank.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use crate::name::Bytes;

/// The list, in a file below the state folder. Identities and sizes: a disk that was swapped meanwhile is not meant.
#[derive(Clone, Debug)]
pub struct Begun(PathBuf);

impl Begun {
    pub fn below(state: &Path) -> Self {
        Self(state.join("begun.json"))
    }

    /// Empty where there is no list, or one that can not be read: then such a PV is somebody's and a person is asked.
    pub fn read(&self) -> BTreeMap<String, Bytes> {
        let list = fs::read(&self.0).ok().and_then(|text| serde_json::from_slice::<BTreeMap<String, u64>>(&text).ok());
        list.unwrap_or_default().into_iter().map(|(id, size)| (id, Bytes(size))).collect()
    }

    /// Adds these to the list, at once or not at all, and on the disk before the command is started. What an earlier
    /// command left stays listed until a later one has taken it up.
    pub fn begin<'a>(&self, devices: impl IntoIterator<Item = (&'a str, Bytes)>) -> io::Result<()> {
        let mut list = self.read();
        list.extend(devices.into_iter().map(|(id, size)| (id.to_owned(), size)));
        self.write(&list)
    }

    /// Takes these off the list: the command was done, and they are in their group.
    pub fn end<'a>(&self, devices: impl IntoIterator<Item = &'a str>) -> io::Result<()> {
        let mut list = self.read();
        for id in devices {
            list.remove(id);
        }
        self.write(&list)
    }

    fn write(&self, list: &BTreeMap<String, Bytes>) -> io::Result<()> {
        let list = list.iter().map(|(id, size)| (id.as_str(), size.0)).collect::<BTreeMap<_, _>>();
        let new = self.0.with_extension("new");
        let file = fs::File::create(&new)?;
        serde_json::to_writer(&file, &list)?;
        file.sync_all()?;
        fs::rename(&new, &self.0)?;
        self.0.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_survives_its_writer() {
        let folder = tempfile::tempdir().unwrap();
        let begun = Begun::below(folder.path());
        assert!(begun.read().is_empty());
        begun.begin([("a", Bytes(1)), ("b", Bytes(2))]).unwrap();
        begun.begin([("c", Bytes(3))]).unwrap();
        begun.end(["c", "d"]).unwrap();
        assert_eq!(Begun::below(folder.path()).read(), [("a".to_owned(), Bytes(1)), ("b".to_owned(), Bytes(2))].into());
        begun.end(["a", "b"]).unwrap();
        assert!(begun.read().is_empty());
    }

    #[test]
    fn half_a_list_is_none() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("begun.json"), "{\"a\":1").unwrap();
        assert!(Begun::below(folder.path()).read().is_empty());
    }
}
