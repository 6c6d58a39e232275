//! Files that are drawn.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

/// Whether the file can be written; nothing is left of that.
pub(crate) fn check(file: &Path) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", file.display());
    if file.exists() {
        return OpenOptions::new().write(true).open(file).map(drop).map_err(failed);
    }
    OpenOptions::new().write(true).create_new(true).open(file).map_err(failed)?;
    fs::remove_file(file).map_err(failed)
}

/// Writes it. The file is there as a whole, or as it was.
pub(crate) fn write(file: &Path, svg: &str) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", file.display());
    if fs::metadata(file).is_ok_and(|metadata| !metadata.is_file()) {
        return fs::write(file, svg).map_err(failed);
    }
    let mut part = file.as_os_str().to_owned();
    part.push(format!(".{}.part", std::process::id()));
    let part = PathBuf::from(part);
    fs::write(&part, svg).and_then(|()| fs::rename(&part, file)).map_err(|error| {
        let _ = fs::remove_file(&part);
        failed(error)
    })
}
