//! What a guest is prepared with: a script, run once before the snapshot is taken.

use std::ffi::OsString;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use wire::Start;

use crate::home::Home;
use crate::{Failure, Result};

pub struct Scene {
    /// Fit for a file's name.
    pub name: String,
    /// The scene's own script and what it includes, by their name in the guest's folder.
    scripts: [(&'static str, Vec<u8>); 2],
    args: Vec<String>,
}

/// Where the scripts lie in the guest.
const FOLDER: &str = "/run/scene";

impl Scene {
    /// `NxM`, a name under `tests/rxe/scenes`, or the path of a script of the caller's own.
    pub fn find(home: &Home, wanted: &str) -> Result<Scene> {
        let folder = home.scenes();
        let (name, file, args) = if wanted.contains('/') {
            let file = PathBuf::from(wanted);
            let stem = file.file_stem().unwrap_or_default().display();
            (format!("own.{stem}"), file, Vec::new())
        } else if let Some((devices, addresses)) = grid(wanted)? {
            let args = vec![devices.to_string(), addresses.to_string()];
            (wanted.to_owned(), folder.join("grid"), args)
        } else if ["default", "bare", "none"].contains(&wanted) {
            (wanted.to_owned(), folder.join(wanted), Vec::new())
        } else {
            return Err(Failure::no_guest(format!(
                "no scene {wanted}; there are default, bare, none, NxM (as in 8x250), and a \
                 script's path (RDMA_RXE_SCENE)"
            )));
        };
        let read = |file: &Path| {
            fs::read(file).map_err(|e| {
                Failure::no_guest(format!("cannot read the scene {}: {e}", file.display()))
            })
        };
        let scripts = [("scene", read(&file)?), ("lib", read(&folder.join("lib"))?)];
        Ok(Scene { name, scripts, args })
    }

    /// The scripts with their paths in the guest.
    pub fn files(&self) -> impl Iterator<Item = (PathBuf, &[u8])> {
        self.scripts.iter().map(|(name, text)| (Path::new(FOLDER).join(name), &text[..]))
    }

    pub fn start(&self) -> Start {
        let script = OsString::from(format!("{FOLDER}/scene"));
        Start {
            program: "/bin/sh".into(),
            args: [OsString::from("-eu"), script]
                .into_iter()
                .chain(self.args.iter().map(OsString::from))
                .collect(),
            cwd: "/".into(),
            ..Start::default()
        }
    }
}

impl Hash for Scene {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.scripts, &self.args).hash(hasher);
    }
}

/// `NxM`: so many devices with so many addresses each.
fn grid(wanted: &str) -> Result<Option<(u32, u32)>> {
    let Some((devices, addresses)) = wanted.split_once('x') else { return Ok(None) };
    let (Ok(devices), Ok(addresses)) = (devices.parse(), addresses.parse()) else {
        return Ok(None);
    };
    if !(1..=64).contains(&devices) || !(0..=1000).contains(&addresses) {
        return Err(Failure::no_guest(format!(
            "scene {wanted}: 1 to 64 devices with 0 to 1000 addresses each"
        )));
    }
    Ok(Some((devices, addresses)))
}
