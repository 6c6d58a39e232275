//! A guest that has been booted and prepared once, to be continued any number of times.

use std::fmt;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, IsTerminal};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use wire::Outcome;

use crate::home::{Console, Home, Image};
use crate::machine::{self, Machine};
use crate::scene::Scene;
use crate::session::{self, End, Recorder, Request};
use crate::settings::Settings;
use crate::{Failure, Result};

pub struct Snapshot<'a> {
    home: &'a Home,
    folder: PathBuf,
    /// Locked as long as somebody may read the folder.
    state: File,
}

const SCENE_LIMIT: Duration = Duration::from_secs(120);

/// The snapshot that fits the settings; made if there is none.
pub fn get<'a>(home: &'a Home, settings: &Settings) -> Result<Snapshot<'a>> {
    let image = home.image(settings.release)?;
    let scene = Scene::find(home, &settings.scene)?;
    let all = home.snapshots()?;
    let name = Name::of(home, settings, &image, &scene)?;
    let folder = all.join(name.to_string());

    if let Some(state) = open(&folder)? {
        return Ok(Snapshot { home, folder, state });
    }
    let lock = File::create(all.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(io::Error::from)?;
    // Another runner may have made it while this one waited.
    if let Some(state) = open(&folder)? {
        return Ok(Snapshot { home, folder, state });
    }
    remove_stale(&all, &name);
    make(home, settings, &image, &scene, &folder)?;
    let state = open(&folder)?.ok_or_else(|| Failure::no_guest("the snapshot vanished"))?;
    Ok(Snapshot { home, folder, state })
}

impl Snapshot<'_> {
    pub fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().display().to_string()
    }

    pub fn restore(&self, settings: &Settings, console: &Console) -> Result<Machine> {
        let memory = self.folder.join("memory");
        Machine::restore(self.home, settings, &memory, &self.state, console)
    }
}

/// What a snapshot is called: everything that its state depends on is in the name.
struct Name {
    /// Release and accelerator.
    guest: String,
    scene: String,
    /// Hash of the kernel, the initrd, QEMU and what it is told.
    machine: u64,
    /// Hash of the scene's scripts.
    scripts: u64,
}

impl Name {
    fn of(home: &Home, settings: &Settings, image: &Image, scene: &Scene) -> Result<Name> {
        // Asking QEMU for its version would take longer than all the rest.
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let qemu = std::env::split_paths(&paths)
            .find_map(|folder| fs::metadata(folder.join(machine::QEMU)).ok())
            .ok_or_else(|| Failure::no_guest("there is no QEMU; run tests/rxe/setup"))?;
        let ingredients = (
            &image.id,
            machine::arguments(settings),
            machine::command_line(home, settings),
            qemu.len(),
            qemu.modified()?,
        );
        Ok(Name {
            guest: format!("{}{}", settings.release, if settings.kvm { "kvm" } else { "" }),
            scene: scene.name.clone(),
            machine: hash(&ingredients),
            scripts: hash(scene),
        })
    }

    /// Whether a snapshot of that name can never be used again, now that there is this one.
    fn outdates(&self, other: &str) -> bool {
        let mut parts = other.trim_end_matches(".new").rsplitn(3, '-');
        let (scripts, machine, what) = (parts.next(), parts.next(), parts.next());
        let Some((guest, scene)) = what.and_then(|what| what.split_once('-')) else {
            return false;
        };
        guest == self.guest
            && (machine != Some(&format!("{:016x}", self.machine))
                || scene == self.scene && scripts != Some(&format!("{:016x}", self.scripts)))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Name { guest, scene, machine, scripts } = self;
        write!(f, "{guest}-{scene}-{machine:016x}-{scripts:016x}")
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The state of a finished snapshot, with a lock that keeps it from being removed.
fn open(folder: &Path) -> Result<Option<File>> {
    match File::open(folder.join("state")) {
        Ok(state) => {
            flock(&state, FlockOperation::LockShared).map_err(io::Error::from)?;
            // Between the two calls it may have been removed.
            Ok(folder.exists().then_some(state))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn make(
    home: &Home,
    settings: &Settings,
    image: &Image,
    scene: &Scene,
    folder: &Path,
) -> Result<()> {
    if io::stderr().is_terminal() {
        eprintln!("rxe: preparing the scene {} (once)", scene.name);
    }
    let mut new = folder.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let unfinished = Unfinished(&new);
    let _ = fs::remove_dir_all(&new);
    fs::create_dir_all(&new)?;
    let console = home.new_console()?;
    let (machine, port) = boot(home, settings, image, &new.join("memory"), &console)?;

    let mut recorder = Recorder::default();
    let request = Request::scene(scene, SCENE_LIMIT);
    match session::run(&port, request, &mut recorder)? {
        End::Exited(Outcome::Code(0)) => {}
        End::Gone => {
            return Err(
                Failure::no_guest("the guest went away while its scene was prepared").see(&console)
            );
        }
        end => {
            let text = String::from_utf8_lossy(&recorder.0);
            return Err(Failure::no_guest(format!(
                "the scene {} failed ({end:?}): {}",
                settings.scene,
                text.trim_end()
            ))
            .see(&console));
        }
    }
    machine.save(&new.join("state")).map_err(|e| {
        Failure::no_guest(format!("the snapshot could not be taken: {e}")).see(&console)
    })?;
    // What an interrupted removal may have left.
    let _ = fs::remove_dir_all(folder);
    fs::rename(&new, folder)?;
    drop(unfinished);
    Ok(())
}

/// A guest that has come up. Under emulation a boot can fail for reasons of its own, rarely; what
/// fails three times has another reason.
fn boot(
    home: &Home,
    settings: &Settings,
    image: &Image,
    memory: &Path,
    console: &Console,
) -> Result<(Machine, UnixStream)> {
    let mut left = 3;
    loop {
        left -= 1;
        let booted =
            Machine::boot(home, settings, image, memory, console).and_then(|mut machine| {
                let port = machine.take_port();
                machine::wake(&port, machine::BOOT_LIMIT).map_err(|e| e.see(console))?;
                Ok((machine, port))
            });
        match booted {
            Err(failure) if left > 0 => eprintln!("rxe: {failure}; once more"),
            booted => return booted,
        }
    }
}

/// What is left of a snapshot that did not come to its end is removed.
struct Unfinished<'a>(&'a Path);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0);
    }
}

/// Removes what the new snapshot outdates, unless it is in use.
fn remove_stale(all: &Path, name: &Name) {
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let stale = name.outdates(&entry.file_name().display().to_string());
        let used = File::open(entry.path().join("state"))
            .is_ok_and(|state| flock(&state, FlockOperation::NonBlockingLockExclusive).is_err());
        if stale && !used {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_be_used_again_is_outdated() {
        let name = |guest: &str, scene: &str, machine, scripts| Name {
            guest: guest.into(),
            scene: scene.into(),
            machine,
            scripts,
        };
        let new = name("12", "a-b", 1, 2);
        for (other, outdated) in [
            (name("12", "a-b", 1, 2), false),
            (name("12", "a-b", 1, 3), true),
            (name("12", "other", 1, 3), false),
            (name("12", "other", 9, 3), true),
            (name("13", "a-b", 9, 3), false),
            (name("12kvm", "a-b", 9, 2), false),
        ] {
            assert_eq!(new.outdates(&other.to_string()), outdated, "{other}");
        }
        assert!(new.outdates(&format!("{}.new", name("12", "a-b", 1, 3))));
        assert!(!new.outdates("lock"));
    }
}
