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

/// The most that is read of a file: the kernel's are of one page, mostly of one line.
const MOST_BYTES: u64 = 1 << 16;

impl RealFiles {
    /// Below `root`, a device's own folder.
    pub(crate) fn new(root: PathBuf) -> RealFiles {
        RealFiles { root }
    }
}

impl Files for RealFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        use io::Read;
        let mut content = Vec::new();
        std::fs::File::open(self.root.join(path))?.take(MOST_BYTES).read_to_end(&mut content)?;
        Ok(content)
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

/// What the rows of a port have in common.
struct Link {
    /// Whether the kernel tells type and interface of a row: old ones do not.
    attributes: bool,
    /// What version 1 is here.
    version_1: GidType,
}

/// How often a row is read again that changes between its files.
const TRIES: usize = 4;

impl SysfsSource {
    /// Reads below `root`, the device's own folder.
    pub(crate) fn new(device: Arc<str>, root: PathBuf) -> SysfsSource {
        SysfsSource { device, files: RealFiles::new(root) }
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
            Err(error) => {
                return Err(self.failed(Some(port), &folder.join("gid_attrs"), error.into()));
            }
        };
        let link = Link { attributes, version_1: self.version_1(link_layer)? };
        for index in indices {
            rows.extend(self.row(port, &folder, index, &link)?);
        }
        Ok(PortShape { port, len, link_layer })
    }

    /// Reads one row; `None` when it is empty. A row has three files, and may change between them:
    /// what two readings in turn agree on is taken.
    fn row(
        &self,
        port: PortNum,
        folder: &Path,
        index: u32,
        link: &Link,
    ) -> Result<Option<GidEntry>> {
        let mut last = self.row_once(port, folder, index, link)?;
        for _ in 0..TRIES {
            let again = self.row_once(port, folder, index, link)?;
            if again == last {
                return Ok(again);
            }
            last = again;
        }
        let path = folder.join(format!("gids/{index}"));
        Err(self.bad(Some(port), &path, "it keeps changing while it is read"))
    }

    fn row_once(
        &self,
        port: PortNum,
        folder: &Path,
        index: u32,
        link: &Link,
    ) -> Result<Option<GidEntry>> {
        let Some(gid) = self.gid(port, &folder.join(format!("gids/{index}")))? else {
            return Ok(None);
        };
        let entry = GidEntry::new(port, index, gid);
        if !link.attributes {
            return Ok(Some(entry.with_assumed_type(link.version_1)));
        }
        let entry = match self.gid_type(port, folder, index, link)? {
            Some(gid_type) => entry.with_type(gid_type),
            None => entry.with_assumed_type(link.version_1),
        };
        Ok(Some(match self.netdev(port, folder, index)? {
            Some(name) => entry.with_netdev(netdev::index(&name).unwrap_or(0), Some(name)),
            None => entry,
        }))
    }

    /// The GID in a file; `None` when it is zero, or gone since the folder was listed.
    fn gid(&self, port: PortNum, path: &Path) -> Result<Option<Gid>> {
        let content = match self.files.read(path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed(Some(port), path, error.into())),
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
        link: &Link,
    ) -> Result<Option<GidType>> {
        let path = folder.join(format!("gid_attrs/types/{index}"));
        let Some(text) = self.attribute(port, &path)? else { return Ok(None) };
        Ok(match text.as_str() {
            "IB/RoCE v1" => Some(link.version_1),
            "RoCE v1" => Some(GidType::ROCE_V1),
            "RoCE v2" => Some(GidType::ROCE_V2),
            "" => None,
            _ => Some(GidType::UNRECOGNIZED),
        })
    }

    /// The interface in a row's file; `None` when it has none, or a name that is no text.
    fn netdev(&self, port: PortNum, folder: &Path, index: u32) -> Result<Option<IfName>> {
        let path = folder.join(format!("gid_attrs/ndevs/{index}"));
        let name =
            self.attribute(port, &path)?.filter(|name| !name.contains(char::REPLACEMENT_CHARACTER));
        Ok(name.and_then(|name| IfName::new(&name)))
    }

    /// A row's attribute; `None` when the kernel answers `EINVAL` (no such thing on this row) or
    /// `ENODEV` (its interface is just going), or has no such file.
    fn attribute(&self, port: PortNum, path: &Path) -> Result<Option<String>> {
        match self.files.read(path) {
            Ok(content) => {
                Ok(Some(String::from_utf8_lossy(&content).trim_end_matches('\n').into()))
            }
            Err(error) => match Errno::from(error) {
                Errno::EINVAL | Errno::ENODEV | Errno::ENOENT => Ok(None),
                errno => Err(self.failed(Some(port), path, errno)),
            },
        }
    }

    /// What version 1 is on this link: one text of sysfs stands for InfiniBand and RoCE. The GID of an
    /// iWARP device, on Ethernet too, is made of its MAC address, and called InfiniBand's.
    fn version_1(&self, link_layer: LinkLayer) -> Result<GidType> {
        const RNIC: &str = "4:";
        let node_type = match self.files.read(Path::new("node_type")) {
            Ok(content) => String::from_utf8_lossy(&content).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(self.failed(None, Path::new("node_type"), error.into())),
        };
        let roce = link_layer == LinkLayer::ETHERNET && !node_type.starts_with(RNIC);
        Ok(if roce { GidType::ROCE_V1 } else { GidType::IB })
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
            Err(error) => Err(self.failed(port, folder, error.into())),
        }
    }

    fn failed(&self, port: Option<PortNum>, path: &Path, errno: Errno) -> Error {
        let object = Object { port, ..Object::device(&self.device) };
        Error::Sysfs { object, file: path.to_string_lossy().into(), errno }
    }

    fn bad(&self, port: Option<PortNum>, path: &Path, problem: &str) -> Error {
        let object = Object { port, ..Object::device(&self.device) };
        Error::BadTable { object, problem: format!("sysfs {}: {problem}", path.display()).into() }
    }
}

#[cfg(test)]
mod tests;
