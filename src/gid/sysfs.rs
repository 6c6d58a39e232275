//! One device's GID tables, read from sysfs: three small files for each row. Needs no open device
//! and no permission on its node; slower than the table call by three orders of magnitude.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::table::{PortShape, Source, Table};
use crate::error::{Errno, Error, Object, Result};
use crate::sys::netdev;
use crate::types::{Gid, GidEntry, GidType, IfName, LinkLayer, PortNum};

/// Reads below a device's folder, `/sys/class/infiniband/<device>`.
///
/// A trait because a plain file cannot show what sysfs does: an empty row's attributes open, and
/// the read fails with `EINVAL`.
pub(crate) trait Files: Send + Sync {
    /// The whole content of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// The names in a folder, in any order.
    fn names(&self, path: &Path) -> io::Result<Vec<String>>;
}

/// The real files.
pub(crate) struct RealFiles {
    root: PathBuf,
}

impl Files for RealFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(self.root.join(path))
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(self.root.join(path))?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }
}

/// A source of tables that reads sysfs.
pub(crate) struct SysfsSource<F = RealFiles> {
    device: Arc<str>,
    files: F,
}

/// How often a row is read again that changes between its files.
const TRIES: usize = 4;

impl SysfsSource {
    /// Reads below `root`, the device's own folder.
    pub(crate) fn new(device: Arc<str>, root: PathBuf) -> SysfsSource {
        SysfsSource { device, files: RealFiles { root } }
    }
}

impl<F: Files> Source for SysfsSource<F> {
    fn read(&self, _live: usize) -> Result<Table> {
        let mut table = Table { ports: Vec::new(), rows: Vec::new() };
        for port in self.numbers(Path::new("ports"), None)? {
            let Some(port) = u8::try_from(port).ok().and_then(PortNum::new) else {
                return Err(self.bad(None, Path::new("ports"), "a port that is not 1 to 255"));
            };
            let shape = self.port(port, &mut table.rows)?;
            table.ports.push(shape);
        }
        Ok(table)
    }
}

impl<F: Files> SysfsSource<F> {
    /// Reads one port's rows.
    fn port(&self, port: PortNum, rows: &mut Vec<GidEntry>) -> Result<PortShape> {
        let folder = PathBuf::from(format!("ports/{port}"));
        let link_layer = self.link_layer(port, &folder)?;
        // iWARP has no such folder, and no table.
        let mut indices = self.numbers(&folder.join("gids"), Some(port))?;
        indices.sort_unstable();
        let len = indices.last().map_or(0, |last| last.saturating_add(1));
        // Old kernels tell neither type nor interface.
        let attributes = match self.files.names(&folder.join("gid_attrs")) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(self.failed(Some(port), &folder.join("gid_attrs"), &error)),
        };
        for index in indices {
            rows.extend(self.row(port, &folder, index, link_layer, attributes)?);
        }
        Ok(PortShape { port, len, link_layer })
    }

    /// Reads one row; `None` when it is empty. The files are read one after the other, so the GID
    /// is read again at the end: if it changed, so may have the rest.
    fn row(
        &self,
        port: PortNum,
        folder: &Path,
        index: u32,
        link_layer: LinkLayer,
        attributes: bool,
    ) -> Result<Option<GidEntry>> {
        let path = folder.join(format!("gids/{index}"));
        let Some(mut gid) = self.gid(port, &path)? else { return Ok(None) };
        for _ in 0..TRIES {
            let mut entry = GidEntry::new(port, index, gid);
            let gid_type =
                if attributes { self.gid_type(port, folder, index, link_layer)? } else { None };
            entry = match gid_type {
                Some(gid_type) => entry.with_type(gid_type),
                None => entry.with_assumed_type(version_1(link_layer)),
            };
            if let Some(name) = self.netdev(port, folder, index, attributes)? {
                entry = entry.with_netdev(netdev::index(&name).unwrap_or(0), Some(name));
            }
            match self.gid(port, &path)? {
                Some(again) if again == gid => return Ok(Some(entry)),
                Some(changed) => gid = changed,
                None => return Ok(None),
            }
        }
        Err(self.bad(Some(port), &path, "it keeps changing while it is read"))
    }

    /// The GID in a file; `None` when it is zero, or gone since the folder was listed.
    fn gid(&self, port: PortNum, path: &Path) -> Result<Option<Gid>> {
        let content = match self.files.read(path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed(Some(port), path, &error)),
        };
        let text = std::str::from_utf8(&content).unwrap_or_default().trim_end();
        // Exactly eight groups of four digits: what else a GID can be spelt as, sysfs never does.
        let whole = text.len() == 39 && text.split(':').count() == 8;
        match text.parse::<Gid>() {
            Ok(gid) if whole => Ok(Some(gid).filter(|gid| !gid.is_zero())),
            _ => Err(self.bad(Some(port), path, "it holds no GID")),
        }
    }

    /// The type in a row's file; `None` when the kernel does not tell.
    fn gid_type(
        &self,
        port: PortNum,
        folder: &Path,
        index: u32,
        link_layer: LinkLayer,
    ) -> Result<Option<GidType>> {
        let path = folder.join(format!("gid_attrs/types/{index}"));
        let Some(text) = self.attribute(port, &path)? else { return Ok(None) };
        Ok(match text.as_str() {
            "IB/RoCE v1" => Some(version_1(link_layer)),
            "RoCE v1" => Some(GidType::ROCE_V1),
            "RoCE v2" => Some(GidType::ROCE_V2),
            "" => None,
            _ => Some(GidType::UNRECOGNIZED),
        })
    }

    /// The interface in a row's file; `None` when it has none.
    fn netdev(
        &self,
        port: PortNum,
        folder: &Path,
        index: u32,
        attributes: bool,
    ) -> Result<Option<IfName>> {
        if !attributes {
            return Ok(None);
        }
        let path = folder.join(format!("gid_attrs/ndevs/{index}"));
        match self.attribute(port, &path)?.as_deref() {
            None | Some("") => Ok(None),
            Some(name) => match IfName::new(name) {
                Some(name) => Ok(Some(name)),
                None => Err(self.bad(Some(port), &path, "it holds no interface name")),
            },
        }
    }

    /// A row's attribute; `None` when the kernel answers `EINVAL` (no such thing on this row) or
    /// has no such file.
    fn attribute(&self, port: PortNum, path: &Path) -> Result<Option<String>> {
        match self.files.read(path) {
            Ok(content) => match std::str::from_utf8(&content) {
                Ok(text) => Ok(Some(text.trim_end_matches('\n').into())),
                Err(_) => Err(self.bad(Some(port), path, "it is no text")),
            },
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(Some(port), path, &error)),
        }
    }

    fn link_layer(&self, port: PortNum, folder: &Path) -> Result<LinkLayer> {
        // Kernels before 2.6.37 have no such file: all was InfiniBand then.
        let text = self.attribute(port, &folder.join("link_layer"))?;
        Ok(match text.as_deref() {
            Some("Ethernet") => LinkLayer::ETHERNET,
            Some("InfiniBand") => LinkLayer::INFINIBAND,
            _ => LinkLayer::UNSPECIFIED,
        })
    }

    /// The numbers that are names in a folder; none when there is no such folder of a port.
    fn numbers(&self, folder: &Path, port: Option<PortNum>) -> Result<Vec<u32>> {
        match self.files.names(folder) {
            Ok(names) => Ok(names.iter().filter_map(|name| name.parse().ok()).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound && port.is_some() => Ok(vec![]),
            Err(error) => Err(self.failed(port, folder, &error)),
        }
    }

    fn failed(&self, port: Option<PortNum>, path: &Path, error: &io::Error) -> Error {
        let errno = error.raw_os_error().map(Errno::from_raw);
        let why = errno.map_or_else(|| error.to_string(), |errno| errno.to_string());
        self.bad(port, path, &why)
    }

    fn bad(&self, port: Option<PortNum>, path: &Path, problem: &str) -> Error {
        let object = Object { port, ..Object::device(&self.device) };
        Error::BadTable { object, problem: format!("sysfs {}: {problem}", path.display()).into() }
    }
}

/// What version 1 is on this link: one text of sysfs stands for both. Unspecified is InfiniBand.
fn version_1(link_layer: LinkLayer) -> GidType {
    if link_layer == LinkLayer::ETHERNET { GidType::ROCE_V1 } else { GidType::IB }
}

#[cfg(test)]
mod tests;
