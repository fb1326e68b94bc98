//! Mounting and unmounting by open file: what is mounted and where was opened before and can not be swapped meanwhile.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, StatVfsMountFlags, fstatvfs, mkdirat, openat, statat, unlinkat},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
        fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_remount, move_mount, open_tree, unmount,
    },
};

use crate::mount::{
    options::Options,
    path::{Missing, Target},
};

#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("opening {path}")]
    Open { path: String, source: io::Error },
    #[error("making {path}")]
    Make { path: String, source: io::Error },
    #[error("mount option {option}: {complaint}")]
    Option { option: String, complaint: String },
    #[error("mounting {what} at {path}: {complaint}")]
    Mount { what: String, path: String, complaint: String },
    #[error("unmounting {path}")]
    Unmount { path: String, source: io::Error },
    #[error("removing {path}")]
    Remove { path: String, source: io::Error },
}

fn shown(target: &Target) -> String {
    target.path().display().to_string()
}

/// A filesystem that is mounted nowhere yet.
pub fn filesystem(kind: &str, device: &Path, options: &Options) -> Result<OwnedFd, AttachError> {
    let source = device.display().to_string();
    let refused = |fd: Option<&OwnedFd>, err: Errno| AttachError::Mount {
        what: source.clone(),
        path: "-".to_owned(),
        complaint: complaint(fd, err),
    };
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|err| refused(None, err))?;
    fsconfig_set_string(&fs, "source", source.as_str()).map_err(|err| refused(Some(&fs), err))?;
    if options.is_read_only() {
        fsconfig_set_flag(&fs, "ro").map_err(|err| refused(Some(&fs), err))?;
    }
    for (key, value) in &options.filesystem {
        let set = match value {
            Some(value) => fsconfig_set_string(&fs, key.as_str(), value.as_str()),
            None => fsconfig_set_flag(&fs, key.as_str()),
        };
        set.map_err(|err| AttachError::Option {
            option: value.as_ref().map_or_else(|| key.clone(), |value| format!("{key}={value}")),
            complaint: complaint(Some(&fs), err),
        })?;
    }
    fsconfig_create(&fs).map_err(|err| refused(Some(&fs), err))?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, options.mount).map_err(|err| refused(Some(&fs), err))
}

/// A second view of what `from` is.
pub fn clone(from: &OwnedFd) -> Result<OwnedFd, Errno> {
    open_tree(
        from,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH,
    )
}

/// What the kernel says of a refused mount: it leaves sentences to be read from the file of the filesystem.
fn complaint(fs: Option<&OwnedFd>, err: Errno) -> String {
    let mut lines = Vec::new();
    if let Some(mut file) = fs.and_then(|fs| Some(File::from(fs.try_clone().ok()?))) {
        // One message a read, with its level in front: `e xfs: Unknown parameter 'x'`.
        let mut message = [0; 1024];
        while let Ok(read @ 1..) = file.read(&mut message) {
            let text = String::from_utf8_lossy(&message[..read]).trim().to_owned();
            lines.push(text.get(2..).unwrap_or(&text).to_owned());
        }
    }
    lines.push(io::Error::from(err).to_string());
    lines.join(": ")
}

/// What stands at a target that something is to be mounted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Folder,
    File,
}

/// Mounts `mount` at the target, which is made if it is missing.
pub fn attach(mount: &OwnedFd, target: &Target, shape: Shape) -> Result<(), AttachError> {
    let place = make(target, shape)?;
    move_mount(mount, "", &place, "", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH)
        .map_err(|err| AttachError::Mount {
            what: "the volume".to_owned(),
            path: shown(target),
            complaint: io::Error::from(err).to_string(),
        })
}

fn make(target: &Target, shape: Shape) -> Result<OwnedFd, AttachError> {
    let failed = |source| AttachError::Make { path: shown(target), source };
    let folder = target.open_folder(Missing::Make).map_err(failed)?;
    let made = match shape {
        Shape::Folder => mkdirat(&folder, target.name(), Mode::from_raw_mode(0o750)),
        Shape::File => openat(
            &folder,
            target.name(),
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        )
        .map(drop),
    };
    match made {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(err) => return Err(failed(err.into())),
    }
    target.open().map_err(|source| AttachError::Open { path: shown(target), source })
}

/// Makes one mount read-only, and its filesystem's other mounts not. Called right after it was attached and before
/// anybody was told of it. A remount sets all of a mount's own options anew, so those of the staged mount are given again.
pub fn make_read_only(target: &Target) -> Result<(), AttachError> {
    let failed = |source| AttachError::Mount { what: "read-only".to_owned(), path: shown(target), complaint: source };
    let place = target.open().map_err(|err| failed(err.to_string()))?;
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    let now = fstatvfs(&place).map_err(|err| failed(io::Error::from(err).to_string()))?.f_flag;
    mount_remount(path, MountFlags::BIND | MountFlags::RDONLY | kept(now), "")
        .map_err(|err| failed(io::Error::from(err).to_string()))
}

/// The flags of a mount, as a remount has to be told of them.
fn kept(now: StatVfsMountFlags) -> MountFlags {
    let flags = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
        // ST_NOSYMFOLLOW and MS_NOSYMFOLLOW of Linux 5.10.
        (StatVfsMountFlags::from_bits_retain(0x2000), MountFlags::from_bits_retain(0x100)),
    ];
    let kept = flags.into_iter().filter(|(flag, _)| now.contains(*flag)).map(|(_, flag)| flag).collect::<MountFlags>();
    let access_times = MountFlags::NOATIME | MountFlags::RELATIME;
    if kept.intersects(access_times) { kept } else { kept | MountFlags::STRICTATIME }
}

/// Takes away whatever is mounted at the target, however often.
pub fn detach(target: &Target) -> Result<(), AttachError> {
    let failed = |source: io::Error| AttachError::Unmount { path: shown(target), source };
    let folder = match target.open_folder(Missing::Fail) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed)?,
    };
    // Through the folder's file: an open file of the mount itself would keep it busy.
    let path = format!("/proc/self/fd/{}/{}", folder.as_raw_fd(), target.name());
    loop {
        match unmount(path.as_str(), UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(err) => return Err(failed(err.into())),
        }
    }
}

/// Removes the empty folder or file that something was mounted on.
pub fn remove(target: &Target) -> Result<(), AttachError> {
    let failed = |source: io::Error| AttachError::Remove { path: shown(target), source };
    let folder = match target.open_folder(Missing::Fail) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed)?,
    };
    let is_folder = match statat(&folder, target.name(), AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        other => rustix::fs::FileType::from_raw_mode(other.map_err(|err| failed(err.into()))?.st_mode).is_dir(),
    };
    let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    match unlinkat(&folder, target.name(), flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(err) => Err(failed(err.into())),
    }
}
