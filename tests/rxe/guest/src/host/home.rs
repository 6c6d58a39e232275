//! Where everything lies: the checkout, and `target/rxe` in it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use crate::{Failure, Result};

/// A release's kernel and initrd, as `tests/rxe/image` made them.
pub struct Image {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    /// Differs when one of the two differs.
    pub id: String,
}

pub struct Home {
    checkout: PathBuf,
}

impl Home {
    pub fn new(checkout: OsString) -> Home {
        Home { checkout: checkout.into() }
    }

    pub fn checkout(&self) -> &Path {
        &self.checkout
    }

    fn cache(&self) -> PathBuf {
        self.checkout.join("target/rxe")
    }

    pub fn image(&self, release: u32) -> Result<Image> {
        let folder = self.cache().join(release.to_string());
        let id = fs::read_to_string(folder.join("id")).map_err(|_| {
            Failure::no_guest(format!(
                "the guest of Debian {release} is not set up; run: RDMA_RXE_DEBIAN={release} tests/rxe/setup"
            ))
        })?;
        Ok(Image { kernel: folder.join("kernel"), initrd: folder.join("initrd"), id })
    }

    pub fn scenes(&self) -> PathBuf {
        self.checkout.join("tests/rxe/scenes")
    }

    pub fn snapshots(&self) -> io::Result<PathBuf> {
        self.made("snapshots")
    }

    /// The folder of a shared guest.
    pub fn shared(&self, name: &str) -> io::Result<PathBuf> {
        self.made(&format!("shared/{name}"))
    }

    pub fn tsc(&self) -> PathBuf {
        self.cache().join("tsc")
    }

    /// A console log for one run.
    pub fn new_console(&self) -> io::Result<Console> {
        let folder = self.made("console")?;
        let path = folder.join(format!("{}.log", process::id()));
        // An earlier process of the same number may have left one.
        File::create(&path)?;
        Ok(Console { path, kept: false.into() })
    }

    fn made(&self, name: &str) -> io::Result<PathBuf> {
        let folder = self.cache().join(name);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

/// The log of a guest's serial console and of QEMU's own complaints. It goes with its run, unless
/// something in it is worth reading.
pub struct Console {
    path: PathBuf,
    kept: std::cell::Cell<bool>,
}

/// Logs of earlier failures that stay.
const KEPT: usize = 20;

impl Console {
    /// A log that stays whatever happens.
    pub fn at(path: PathBuf) -> Console {
        Console { path, kept: true.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the log stay, and says where it is.
    pub fn keep(&self) -> String {
        if !self.kept.replace(true) {
            self.forget_old();
        }
        self.path.display().to_string()
    }

    /// The line in which the kernel said why it panicked.
    pub fn panic(&self) -> Option<String> {
        let log = fs::read(&self.path).ok()?;
        let log = String::from_utf8_lossy(&log);
        let at = log.find("Kernel panic")?;
        log[at..].lines().next().map(|line| line.trim_end().to_owned())
    }

    /// What QEMU said last, if it said anything; else the error that was seen here.
    pub fn last_line(&self, error: &io::Error) -> String {
        let log = fs::read(&self.path).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        log.trim_end().lines().last().map_or_else(|| error.to_string(), str::to_owned)
    }

    fn forget_old(&self) {
        let entries = self.path.parent().and_then(|folder| fs::read_dir(folder).ok());
        let mut logs: Vec<_> = entries
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        logs.sort();
        for (_, path) in logs.iter().rev().skip(KEPT) {
            let _ = fs::remove_file(path);
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        if !self.kept.get() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
