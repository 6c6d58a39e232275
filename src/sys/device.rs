//! The owner of `ibv_device` references.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::ibv_device;
use super::context::ContextHandle;
use super::ops::Newer;
use super::{calls, conv};
use crate::error::Errno;
use crate::types::Guid;

/// One array that `ibv_get_device_list` gave: it holds a reference on each device in it.
struct List {
    array: NonNull<*mut ibv_device>,
}

// SAFETY: libibverbs guards its device list with a mutex and counts references atomically, so the
// array may be freed from any thread; we only ever read the pointers in it.
unsafe impl Send for List {}
// SAFETY: as above: shared access only reads.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the array came from ibv_get_device_list and is freed once, here.
        unsafe { calls::ibv_free_device_list(self.array.as_ptr()) }
    }
}

/// A device of a list. The reference that keeps it alive is the list's.
#[derive(Clone)]
pub(crate) struct DeviceHandle {
    device: NonNull<ibv_device>,
    /// Held, not read.
    _list: Arc<List>,
}

// SAFETY: a listed device's fields do not change while it is referenced, and the functions taking
// it (guid, index, open) may be called from any thread.
unsafe impl Send for DeviceHandle {}
// SAFETY: as above: shared access only reads.
unsafe impl Sync for DeviceHandle {}

/// The devices there are now (`ibv_get_device_list`). No RDMA subsystem is no device.
pub(crate) fn list_devices() -> Result<Vec<DeviceHandle>, Errno> {
    let mut count: c_int = 0;
    // SAFETY: `count` is written during the call only.
    let array = match conv::pointer(unsafe { calls::ibv_get_device_list(&mut count) }) {
        Ok(array) => array,
        // What a kernel without the subsystem gives.
        Err(Errno::ENOSYS) => return Ok(Vec::new()),
        Err(errno) => return Err(errno),
    };
    let list = Arc::new(List { array });
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the array has `count` pointers before its NULL, and lives as long as the list.
    let devices = unsafe { std::slice::from_raw_parts(array.as_ptr(), count) };
    let devices = devices.iter().filter_map(|device| NonNull::new(*device));
    Ok(devices.map(|device| DeviceHandle { device, _list: Arc::clone(&list) }).collect())
}

impl DeviceHandle {
    /// The device that the context is of, of those that are listed now.
    pub(crate) fn of(context: &ContextHandle) -> Result<Option<DeviceHandle>, Errno> {
        // The library gives a device the same address for as long as somebody has it.
        let is_it = |listed: &DeviceHandle| listed.device.as_ptr() == context.device();
        Ok(list_devices()?.into_iter().find(is_it))
    }

    /// The name the device had when this process first listed it.
    pub(crate) fn name(&self) -> String {
        // SAFETY: the list holds the device; the field is an array in it.
        text(unsafe { &(*self.device.as_ptr()).name }).to_string_lossy().into_owned()
    }

    /// The name of its node in `/dev/infiniband`: `uverbs0`.
    pub(crate) fn node_name(&self) -> PathBuf {
        // SAFETY: as for the name.
        text(unsafe { &(*self.device.as_ptr()).dev_name }).into()
    }

    /// Its folder in sysfs.
    pub(crate) fn sysfs_path(&self) -> PathBuf {
        // SAFETY: as for the name.
        Path::new(text(unsafe { &(*self.device.as_ptr()).ibdev_path })).into()
    }

    /// The folder of its node's class in sysfs, which goes as soon as the device is removed; the
    /// device's own folder stays while somebody has it open.
    pub(crate) fn node_sysfs_path(&self) -> PathBuf {
        // SAFETY: as for the name.
        Path::new(text(unsafe { &(*self.device.as_ptr()).dev_path })).into()
    }

    /// `enum ibv_node_type`, as a number.
    pub(crate) fn node_type(&self) -> i32 {
        // SAFETY: the list holds the device.
        unsafe { (*self.device.as_ptr()).node_type }
    }

    /// `enum ibv_transport_type`, as a number.
    pub(crate) fn transport_type(&self) -> i32 {
        // SAFETY: the list holds the device.
        unsafe { (*self.device.as_ptr()).transport_type }
    }

    pub(crate) fn guid(&self) -> Guid {
        // SAFETY: the list holds the device.
        Guid::from_be(unsafe { calls::ibv_get_device_guid(self.device.as_ptr()) })
    }

    /// The kernel's own number of the device, where kernel and library tell it.
    pub(crate) fn index(&self) -> Option<u32> {
        let index = Newer::get().get_device_index?;
        // SAFETY: the list holds the device. Negative: not known.
        u32::try_from(unsafe { index(self.device.as_ptr()) }).ok()
    }

    /// `ibv_open_device`. Takes 5 s to fail where the node may not be opened: check that first.
    pub(crate) fn open(&self) -> Result<ContextHandle, Errno> {
        // A provider may fail without setting errno.
        conv::preset_errno();
        // SAFETY: the list holds the device; an open context takes a reference of its own.
        let context = conv::pointer(unsafe { calls::ibv_open_device(self.device.as_ptr()) })?;
        // SAFETY: just opened, and nobody else has the pointer.
        unsafe { ContextHandle::new(context) }
    }
}

/// The text in a C array, up to its NUL or its end.
pub(super) fn text(array: &[c_char]) -> &OsStr {
    // SAFETY: c_char and u8 have the same size and alignment, and the slice's length is kept.
    let bytes = unsafe { std::slice::from_raw_parts(array.as_ptr().cast::<u8>(), array.len()) };
    match CStr::from_bytes_until_nul(bytes) {
        Ok(text) => OsStr::from_bytes(text.to_bytes()),
        Err(_) => OsStr::from_bytes(bytes),
    }
}
