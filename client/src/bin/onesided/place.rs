//! Files from keys, never outside the directory: a key is somebody else's text.
//!
//! The name is checked, and then every directory on the way is opened relative to the one before
//! without following symbolic links, so that neither `..` nor a link that lies in the directory
//! already leads out of it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, mkdirat, openat};
use rustix::io::Errno;

const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::RDONLY).union(OFlags::CLOEXEC);
/// NONBLOCK: a pipe that lies there without a reader is an error and not a wait.
const FILE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// The directory that keys are written below.
pub(crate) struct Place(OwnedFd);

impl Place {
    /// Opens it; makes it first if need be.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self(openat(CWD, dir, flags, Mode::empty())?))
    }

    /// Writes the file that `key` names. `Err` tells people why not.
    pub(crate) fn write(&self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let parts = parts_of(key)?;
        self.write_parts(&parts, value).map_err(|error| match error.raw_os_error() {
            Some(code) if code == Errno::LOOP.raw_os_error() => {
                "a symbolic link lies in the way; it is not followed".to_owned()
            }
            _ => error.to_string(),
        })
    }

    fn write_parts(&self, parts: &[&OsStr], value: &[u8]) -> io::Result<()> {
        let (name, directories) = parts.split_last().ok_or(io::ErrorKind::InvalidInput)?;
        let mut below: Option<OwnedFd> = None;
        for directory in directories {
            let at = below.as_ref().unwrap_or(&self.0).as_fd();
            let made = mkdirat(at, *directory, Mode::from_raw_mode(0o777));
            if let Err(error) = made.or_else(|error| ignore(error, Errno::EXIST)) {
                return Err(error.into());
            }
            below = Some(open_directory(at, directory)?);
        }
        let at = below.as_ref().unwrap_or(&self.0).as_fd();
        let file = openat(at, *name, FILE, Mode::from_raw_mode(0o666))?;
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("something that is not a regular file lies there"));
        }
        let mut file = File::from(file);
        file.set_len(0)?;
        file.write_all(value)
    }
}

fn open_directory(at: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    // NOFOLLOW with DIRECTORY says NOTDIR for a link too; ask which of the two it is.
    openat(&at, name, DIRECTORY, Mode::empty()).map_err(|error| {
        let status = rustix::fs::statat(&at, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        let link = status.is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Symlink);
        if link { Errno::LOOP.into() } else { error.into() }
    })
}

fn ignore(error: Errno, harmless: Errno) -> Result<(), Errno> {
    if error == harmless { Ok(()) } else { Err(error) }
}

/// The parts of a relative path, or why the key is none.
fn parts_of(key: &[u8]) -> Result<Vec<&OsStr>, String> {
    if key.is_empty() {
        return Err("an empty key has no file name".to_owned());
    }
    if key.contains(&0) {
        return Err("a NUL byte cannot be in a file name".to_owned());
    }
    if key[0] == b'/' {
        return Err("an absolute path would lead out of the directory".to_owned());
    }
    key.split(|&byte| byte == b'/').map(part_of).collect()
}

fn part_of(part: &[u8]) -> Result<&OsStr, String> {
    match part {
        b".." => Err("`..` would lead out of the directory".to_owned()),
        b"" | b"." => Err("an empty part or `.` is no file name".to_owned()),
        _ => Ok(OsStr::from_bytes(part)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_are_kept_inside() {
        let root = tempfile::tempdir().unwrap();
        let inside = root.path().join("in");
        let place = Place::open(&inside).unwrap();
        for key in
            [&b""[..], b"/etc/x", b"../x", b"a/../../x", b"a//b", b"a/", b"./a", b"a\0b", b".."]
        {
            assert!(place.write(key, b"bad").is_err(), "{key:?}");
        }
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
        place.write(b"a/b/..c", b"good").unwrap();
        place.write(b"a/b/..c", b"go").unwrap();
        assert_eq!(std::fs::read(inside.join("a/b/..c")).unwrap(), b"go");
    }

    #[test]
    fn links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("in"), root.path().join("out"));
        std::fs::create_dir(&outside).unwrap();
        let place = Place::open(&inside).unwrap();
        symlink(&outside, inside.join("dir")).unwrap();
        symlink(outside.join("file"), inside.join("file")).unwrap();
        for key in [&b"dir/x"[..], b"file"] {
            let error = place.write(key, b"bad").unwrap_err();
            assert!(error.contains("symbolic link"), "{error}");
        }
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn other_files_in_the_way_are_errors() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::open(root.path()).unwrap();
        place.write(b"a", b"file").unwrap();
        assert!(place.write(b"a/b", b"below a file").is_err());
        place.write(b"d/e", b"").unwrap();
        assert!(place.write(b"d", b"over a directory").is_err());
        assert!(place.write(&[b'x'; 300], b"too long for a file name").is_err());
    }
}
