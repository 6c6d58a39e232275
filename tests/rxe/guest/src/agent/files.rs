//! Files that come with a program and files that go back with it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::mount::{MountFlags, mount};
use wire::{CHUNK, FileHead, FromGuest};

/// Makes a folder. What the guest does not have, from its topmost part on, is a tmpfs of its own:
/// so a folder of the host can be told from one of the guest.
pub fn make_folder(path: &Path) -> io::Result<()> {
    // Two programs may begin in one place at one time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _lock = ONE_AT_A_TIME.lock().unwrap();
    if path.is_dir() {
        return Ok(());
    }
    let missing = path.ancestors().take_while(|part| !part.exists()).last().unwrap_or(path);
    fs::create_dir(missing)?;
    if on_root(missing)? {
        mount("tmpfs", missing, "tmpfs", MountFlags::empty(), c"mode=755")?;
    }
    fs::create_dir_all(path)
}

fn on_root(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.dev() == fs::metadata("/")?.dev())
}

/// A file on its way in. It appears when it is complete, beside one that is being executed.
pub struct Incoming {
    file: File,
    part: PathBuf,
    head: FileHead,
}

impl Incoming {
    pub fn begin(head: FileHead) -> io::Result<Incoming> {
        make_folder(head.path.parent().unwrap_or(Path::new("/")))?;
        let mut part = head.path.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        let file = File::create(&part)?;
        Ok(Incoming { file, part, head })
    }

    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.file.write_all(data)
    }

    pub fn finish(self) -> io::Result<()> {
        if self.head.link {
            let target = std::ffi::OsString::from_vec(fs::read(&self.part)?);
            fs::remove_file(&self.part)?;
            let _ = fs::remove_file(&self.head.path);
            return symlink(target, &self.head.path);
        }
        self.file.set_permissions(PermissionsExt::from_mode(self.head.mode))?;
        drop(self.file);
        fs::rename(self.part, self.head.path)
    }
}

/// What is under a working directory at one time.
pub struct Listing {
    folder: PathBuf,
    files: HashMap<PathBuf, Stamp>,
}

/// Two equal stamps of one path: nobody wrote to it in between.
#[derive(PartialEq)]
struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Listing {
    /// `None` for a folder of the guest's own system, of which nothing goes to the host.
    pub fn of(folder: &Path) -> Option<Listing> {
        if on_root(folder).ok()? {
            return None;
        }
        let mut files = HashMap::new();
        walk(folder, fs::metadata(folder).ok()?.dev(), &mut |path, stamp| {
            files.insert(path, stamp);
        });
        Some(Listing { folder: folder.to_owned(), files })
    }

    /// Sends what was made or changed since.
    pub fn send_changes(
        &self,
        send: &mut impl FnMut(FromGuest) -> io::Result<()>,
    ) -> io::Result<()> {
        let Ok(folder) = fs::metadata(&self.folder) else { return Ok(()) };
        let mut changed = Vec::new();
        walk(&self.folder, folder.dev(), &mut |path, stamp| {
            if self.files.get(&path) != Some(&stamp) {
                changed.push(path);
            }
        });
        changed.sort();
        for path in changed {
            self.send_one(&path, send)?;
        }
        Ok(())
    }

    fn send_one(
        &self,
        path: &Path,
        send: &mut impl FnMut(FromGuest) -> io::Result<()>,
    ) -> io::Result<()> {
        let relative = path.strip_prefix(&self.folder).expect("found under it").to_owned();
        let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
        let link = metadata.is_symlink();
        let head = FileHead { path: relative, mode: metadata.mode() & 0o7777, link };
        if link {
            let target = fs::read_link(path)?;
            send(FromGuest::File(head))?;
            send(FromGuest::Data(target.as_os_str().as_bytes().to_vec()))?;
            return send(FromGuest::Data(Vec::new()));
        }
        let mut file = File::open(path)?;
        send(FromGuest::File(head))?;
        loop {
            let mut data = Vec::with_capacity(CHUNK);
            (&mut file).take(CHUNK as u64).read_to_end(&mut data)?;
            let end = data.is_empty();
            send(FromGuest::Data(data))?;
            if end {
                return Ok(());
            }
        }
    }
}

/// Every file and link under a folder, on its own file system only.
fn walk(folder: &Path, device: u64, found: &mut impl FnMut(PathBuf, Stamp)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.dev() != device {
            continue;
        }
        if metadata.is_dir() {
            walk(&entry.path(), device, found);
        } else if metadata.is_file() || metadata.is_symlink() {
            let stamp = Stamp {
                inode: metadata.ino(),
                size: metadata.size(),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
            };
            found(entry.path(), stamp);
        }
    }
}
