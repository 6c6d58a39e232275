//! The RDMA devices of this machine.

use std::fmt;
use std::fs::{Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Errno, Error, Object, Result};
use crate::gid::{self, GidCache, SysfsSource};
use crate::sys::{DeviceHandle, list_devices};
use crate::types::{Guid, NodeType, TransportType};

/// Where the nodes of the devices are.
const NODES: &str = "/dev/infiniband";
/// Where sysfs has one folder for each node, with the name of its device in it.
const VERBS_CLASS: &str = "/sys/class/infiniband_verbs";
/// Where sysfs has one folder for each device.
const CLASS: &str = "/sys/class/infiniband";

/// The RDMA devices that were there when the list was made.
///
/// A device that comes or goes later changes nothing in it: make a new list. Names are those that
/// a device had when this process first listed it; libibverbs does not follow a rename.
#[derive(Debug, Clone)]
pub struct DeviceList {
    devices: Vec<Device>,
}

impl DeviceList {
    /// Lists the devices (`ibv_get_device_list`), in the library's order.
    ///
    /// A machine without a device, or without RDMA in its kernel, has an empty list, which is no
    /// error; [`absence`](DeviceList::absence) tells what is missing.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceList`] when the library cannot list them at all: out of memory.
    #[doc(alias = "ibv_get_device_list")]
    pub fn new() -> Result<DeviceList> {
        let handles = list_devices().map_err(|errno| Error::DeviceList { errno })?;
        Ok(DeviceList { devices: handles.into_iter().map(Device::new).collect() })
    }

    /// How many devices there are.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Whether there is no device.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// The devices, in the library's order.
    pub fn iter(&self) -> std::slice::Iter<'_, Device> {
        self.devices.iter()
    }

    /// The device of this name.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchDevice`], with the names there are.
    pub fn find(&self, name: &str) -> Result<&Device> {
        self.iter().find(|device| device.name() == name).ok_or_else(|| Error::NoSuchDevice {
            name: name.into(),
            available: self.iter().map(|device| device.name().into()).collect(),
        })
    }

    /// Why the list is empty, from what `/sys` and `/dev` have now; `None` when it is not.
    pub fn absence(&self) -> Option<Absence> {
        self.is_empty().then(|| Absence::look(CLASS.as_ref(), VERBS_CLASS.as_ref(), NODES.as_ref()))
    }
}

impl<'a> IntoIterator for &'a DeviceList {
    type Item = &'a Device;
    type IntoIter = std::slice::Iter<'a, Device>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for DeviceList {
    type Item = Device;
    type IntoIter = std::vec::IntoIter<Device>;

    fn into_iter(self) -> Self::IntoIter {
        self.devices.into_iter()
    }
}

/// Why no RDMA device is listed. Prints what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Absence {
    /// The kernel has no RDMA subsystem loaded: `/sys/class/infiniband` is not there.
    NoSubsystem,
    /// The subsystem is there and has no device.
    NoDevice,
    /// The kernel has this device, but its node `/dev/infiniband/uverbsN` is not here.
    NoNode(Box<str>),
    /// The kernel has this device and its node is here, but libibverbs has no provider for it.
    NoProvider(Box<str>),
}

impl Absence {
    fn look(class: &Path, verbs_class: &Path, nodes: &Path) -> Absence {
        let Some(devices) = names(class) else { return Absence::NoSubsystem };
        let Some(first) = devices.first() else { return Absence::NoDevice };
        // The kernel has devices that the library does not list: one whose node is missing here, or
        // all have theirs and no provider.
        let is_of = |node: &String, device: &str| {
            let name = std::fs::read_to_string(verbs_class.join(node).join("ibdev"));
            name.is_ok_and(|name| name.trim_end() == device)
        };
        let verbs = names(verbs_class).unwrap_or_default();
        let lacks_node = |device: &&String| {
            !verbs.iter().any(|node| is_of(node, device) && nodes.join(node).exists())
        };
        match devices.iter().find(lacks_node) {
            Some(device) => Absence::NoNode(device.as_str().into()),
            None => Absence::NoProvider(first.as_str().into()),
        }
    }
}

/// The names in a folder, sorted; `None` when there is no such folder.
fn names(folder: &Path) -> Option<Vec<String>> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Some(names)
}

impl std::error::Error for Absence {}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absence::NoSubsystem => write!(
                f,
                "no RDMA in this kernel: {CLASS} is not there; load the device's driver, or \
                 `modprobe rdma_rxe` for a software device"
            ),
            Absence::NoDevice => write!(
                f,
                "no RDMA device: {CLASS} is empty; load the device's driver, or add a software \
                 device with `rdma link add rxe0 type rxe netdev <interface>`"
            ),
            Absence::NoNode(device) => write!(
                f,
                "the kernel has {device}, but {NODES} has no uverbs node for it; `modprobe \
                 ib_uverbs`, or give this container the nodes"
            ),
            Absence::NoProvider(device) => write!(
                f,
                "the kernel has {device}, but libibverbs has no provider for it; install the \
                 providers (package ibverbs-providers, or rdma-core)"
            ),
        }
    }
}

/// An RDMA device (`struct ibv_device`), not opened. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    pub(crate) name: Arc<str>,
    guid: Guid,
    pub(crate) handle: DeviceHandle,
}

impl Device {
    pub(crate) fn new(handle: DeviceHandle) -> Device {
        Device { name: handle.name().into(), guid: handle.guid(), handle }
    }

    /// Its name, `rxe0` or `mlx5_0` (`ibv_get_device_name`).
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its node GUID when it was listed (`ibv_get_device_guid`); zero when it had none.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> Guid {
        self.guid
    }

    /// The kernel's number for the device, which a rename does not change
    /// (`ibv_get_device_index`, rdma-core 31); `None` where library or kernel does not tell.
    #[doc(alias = "ibv_get_device_index")]
    pub fn index(&self) -> Option<u32> {
        self.handle.index()
    }

    /// The node that opening it opens: `/dev/infiniband/uverbs0`.
    pub fn node(&self) -> PathBuf {
        Path::new(NODES).join(self.handle.node_name())
    }

    /// Its folder in sysfs: `/sys/class/infiniband/rxe0`.
    pub fn sysfs_path(&self) -> PathBuf {
        self.handle.sysfs_path()
    }

    /// The NUMA node that it is attached to, from sysfs; `None` where the kernel does not tell, or the
    /// machine has one only.
    pub fn numa_node(&self) -> Option<u32> {
        let node = std::fs::read_to_string(self.sysfs_path().join("device/numa_node")).ok()?;
        // -1: not known.
        node.trim().parse().ok()
    }

    /// What it is on its network.
    pub fn node_type(&self) -> NodeType {
        NodeType::from_raw(self.handle.node_type())
    }

    /// Its transport.
    pub fn transport_type(&self) -> TransportType {
        TransportType::from_raw(self.handle.transport_type())
    }

    /// The device's GID tables, read from sysfs: for a device that this user may not open. Takes
    /// half a dozen file reads a row, where an open device takes one system call for all.
    ///
    /// # Errors
    ///
    /// [`Error::Sysfs`] when a file cannot be read, [`Error::BadTable`] when one makes no sense.
    pub fn gids_from_sysfs(&self) -> Result<GidCache> {
        let source = SysfsSource::new(Arc::clone(&self.name), self.sysfs_path());
        gid::cache(&self.name, source, None, |_| ())
    }

    /// Whether the node can be opened, and is this device's. `ibv_open_device` itself waits 5 s
    /// before it gives up on a node it may not open or that is another's, and then tells the wrong
    /// reason where `/dev/char` is missing. The node is really opened: a container's device rules do
    /// not show in its permissions.
    pub(crate) fn probe_node(&self) -> Result<()> {
        let node = self.node();
        let device = || self.name().into();
        let opened = OpenOptions::new().read(true).write(true).open(&node);
        let found = opened.and_then(|file| file.metadata());
        match found {
            Ok(found) if self.is_node(&found) => Ok(()),
            _ if self.has_gone() => Err(self.gone()),
            // Another device's node under this one's name.
            Ok(_) => Err(Error::NoNode { device: device(), node }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(Error::NoNode { device: device(), node })
            }
            Err(error) => Err(match Errno::from(error) {
                errno @ (Errno::EACCES | Errno::EPERM) => self.denied(errno),
                errno => Error::Verb { verb: "open", object: Object::device(self.name()), errno },
            }),
        }
    }

    /// Whether an open file is the node that the kernel made for this device: sysfs tells its numbers.
    fn is_node(&self, found: &Metadata) -> bool {
        let numbers = std::fs::read_to_string(self.handle.node_sysfs_path().join("dev"));
        let Ok(numbers) = numbers else { return true };
        let rdev = found.rdev();
        numbers.trim_end() == format!("{}:{}", libc::major(rdev), libc::minor(rdev))
    }

    pub(crate) fn gone(&self) -> Error {
        Error::DeviceGone { device: self.name().into(), node: self.node() }
    }

    pub(crate) fn denied(&self, errno: Errno) -> Error {
        Error::PermissionDenied { errno, device: self.name().into(), node: self.node() }
    }

    /// Whether the kernel has removed it, though others may still have it open.
    pub(crate) fn has_gone(&self) -> bool {
        !self.handle.node_sysfs_path().exists()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The four ways of having no device, in a folder of our own.
    #[test]
    fn each_absence_names_what_is_missing() {
        let root = std::env::temp_dir().join(format!("rdma-verbs-absence-{}", std::process::id()));
        let (class, verbs, nodes) = (root.join("class"), root.join("verbs"), root.join("dev"));
        let look = || Absence::look(&class, &verbs, &nodes);
        let make =
            |folder: PathBuf| std::fs::create_dir_all(folder).expect("the test's own folder");
        assert_eq!(look(), Absence::NoSubsystem);
        make(class.clone());
        assert_eq!(look(), Absence::NoDevice);
        make(class.join("rxe0"));
        assert_eq!(look(), Absence::NoNode("rxe0".into()), "ib_uverbs is not loaded");
        make(verbs.join("uverbs0"));
        std::fs::write(verbs.join("uverbs0/ibdev"), "rxe0\n").expect("the test's own file");
        make(nodes.join("rdma_cm"));
        make(nodes.join("uverbs7"));
        assert_eq!(look(), Absence::NoNode("rxe0".into()), "another device's node");
        make(nodes.join("uverbs0"));
        assert_eq!(look(), Absence::NoProvider("rxe0".into()));
        std::fs::remove_dir_all(&root).expect("the test's own folder goes");
    }

    #[test]
    fn a_name_that_is_not_there_is_told_with_those_that_are() {
        let list = DeviceList { devices: vec![] };
        let error = list.find("rxe7").expect_err("the list is empty");
        assert_eq!(error.to_string(), "no RDMA device named \"rxe7\"; there is no RDMA device");
    }
}
