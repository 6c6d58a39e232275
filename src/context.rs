//! An open device.

use std::fmt;
use std::sync::Arc;

use crate::device::Device;
use crate::error::{Errno, Error, Object, Result};
use crate::gid::{GidCache, PortShape, VerbsSource};
use crate::limits::DeviceLimits;
use crate::port::PortAttr;
use crate::sys::ContextHandle;
use crate::types::{Gid, PortNum};

/// An open device (`struct ibv_context`), with its limits and its GID tables.
///
/// Cheap to clone; the device is closed when the last clone, and the last object made on it, is
/// gone. An open context delays the removal of its device.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    handle: Arc<ContextHandle>,
    device: Device,
    limits: DeviceLimits,
    gids: GidCache,
}

impl Device {
    /// Opens the device (`ibv_open_device`), asks its limits and reads its GID tables once.
    ///
    /// # Errors
    ///
    /// [`Error::PermissionDenied`] and [`Error::NoNode`] at once, where the C call waits 5 s;
    /// [`Error::DeviceGone`] when it was removed since it was listed; [`Error::Verb`] for what
    /// else the kernel answers.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        self.probe_node()?;
        let object = || Object::device(self.name());
        let failed = |verb| {
            move |errno| match errno {
                _ if self.has_gone() => {
                    Error::DeviceGone { device: self.name().into(), node: self.node() }
                }
                Errno::EACCES | Errno::EPERM => {
                    Error::PermissionDenied { device: self.name().into(), node: self.node() }
                }
                errno => Error::Verb { verb, object: object(), errno },
            }
        };
        let handle = Arc::new(self.handle.open().map_err(failed("ibv_open_device"))?);
        let attr = handle.query_device().map_err(failed("ibv_query_device_ex"))?;
        let limits = DeviceLimits::from_raw(&attr, handle.num_comp_vectors());
        let ports = shapes(self, &handle, limits.ports)?;
        let device = Arc::clone(&self.name);
        let source = VerbsSource::new(device, Arc::clone(&handle), ports, self.sysfs_path());
        let gids = GidCache::new(Arc::clone(&self.name), Box::new(source))?;
        Ok(Context { inner: Arc::new(Inner { handle, device: self.clone(), limits, gids }) })
    }
}

/// What each port's GID table is like. Verbs name ports with 8 bits: of more, the first 255.
fn shapes(device: &Device, handle: &ContextHandle, ports: u32) -> Result<Vec<PortShape>> {
    let mut shapes = Vec::new();
    for port in (1..=ports).map_while(|port| u8::try_from(port).ok()).filter_map(PortNum::new) {
        let attr = query_port(device, handle, port)?;
        shapes.push(PortShape { port, len: attr.gid_table_len, link_layer: attr.link_layer });
    }
    Ok(shapes)
}

fn query_port(device: &Device, handle: &ContextHandle, port: PortNum) -> Result<PortAttr> {
    let raw = handle.query_port(port).map_err(|errno| Error::Verb {
        verb: "ibv_query_port",
        object: Object::port(device.name(), port),
        errno,
    })?;
    Ok(PortAttr::from_raw(port, &raw))
}

impl Context {
    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The device's identity and limits, as of when it was opened.
    #[doc(alias = "ibv_query_device_ex")]
    pub fn limits(&self) -> &DeviceLimits {
        &self.inner.limits
    }

    /// The device's GID tables, answered from memory.
    pub fn gids(&self) -> &GidCache {
        &self.inner.gids
    }

    /// The ports, from 1.
    pub fn ports(&self) -> impl Iterator<Item = PortNum> + use<> {
        let last = u8::try_from(self.inner.limits.ports).unwrap_or(u8::MAX);
        (1..=last).filter_map(PortNum::new)
    }

    /// A port's attributes now (`ibv_query_port`): one system call.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPort`] before any call; [`Error::Verb`] with `ENODEV` when the device or its
    /// network interface has gone.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self, port: PortNum) -> Result<PortAttr> {
        self.check_port(port)?;
        query_port(&self.inner.device, &self.inner.handle, port)
    }

    /// One GID as the device has it now (`ibv_query_gid`): one system call. What programs do for
    /// every row of every table; [`gids`](Context::gids) answers from memory.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPort`] and [`Error::GidIndexOutOfRange`] before any call;
    /// [`Error::GidRowEmpty`] for a row without a GID.
    #[doc(alias = "ibv_query_gid")]
    pub fn query_gid(&self, port: PortNum, index: u32) -> Result<Gid> {
        self.check_port(port)?;
        let object = || Object::row(self.inner.device.name(), port, index);
        let len = self.inner.gids.cached().port(port).map_or(0, |table| table.capacity());
        if index >= len {
            return Err(Error::GidIndexOutOfRange { object: object(), len });
        }
        match self.inner.handle.query_gid(port, index) {
            Ok(gid) if gid.is_zero() => Err(Error::GidRowEmpty { object: object() }),
            Ok(gid) => Ok(gid),
            Err(Errno::ENODATA) => Err(Error::GidRowEmpty { object: object() }),
            Err(errno) => Err(Error::Verb { verb: "ibv_query_gid", object: object(), errno }),
        }
    }

    fn check_port(&self, port: PortNum) -> Result<()> {
        let ports = self.inner.limits.ports;
        if u32::from(port.get()) > ports {
            let device = self.inner.device.name().into();
            return Err(Error::NoSuchPort { device, port, ports });
        }
        Ok(())
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.inner.device).finish_non_exhaustive()
    }
}
