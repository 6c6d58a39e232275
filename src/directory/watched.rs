//! One device that a directory watches.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll;

use super::snapshot::{DirectoryDevice, TableSource};
use crate::context::Context;
use crate::device::Device;
use crate::error::{Errno, Error, Result};
use crate::gid::{GidCache, GidSnapshot};
use crate::kept::CacheStats;
use crate::port::PortAttr;
use crate::trace::event;

/// A device, how it is read, and what the directory's snapshot has of it.
pub(super) struct Watched {
    /// Its token in the epoll set, never given twice.
    pub(super) token: u64,
    device: Device,
    access: Access,
    /// What its last read failed with; tried again until it does not.
    trouble: Option<Arc<Error>>,
    /// Of an open device, as of its last event.
    ports: Arc<[PortAttr]>,
    published: Option<DirectoryDevice>,
}

enum Access {
    /// Not looked at yet, or not to be had.
    Closed,
    Open(Context),
    Sysfs {
        cache: GidCache,
        because: Option<Arc<Error>>,
    },
}

impl Watched {
    pub(super) fn new(device: &Device, token: u64) -> Watched {
        Watched {
            token,
            device: device.clone(),
            access: Access::Closed,
            trouble: None,
            ports: Arc::new([]),
            published: None,
        }
    }

    #[cfg(feature = "tracing")]
    pub(super) fn name(&self) -> &str {
        self.device.name()
    }

    /// Whether this is the device listed: its name may be another's by now.
    pub(super) fn is(&self, listed: &Device) -> bool {
        let identity = |device: &Device| {
            (device.name().to_owned(), device.guid(), device.index(), device.node())
        };
        identity(&self.device) == identity(listed)
    }

    /// Opens a device that is not, or could not be, adds it to the set, or reads it from sysfs where
    /// that fails.
    pub(super) fn open_if_closed(&mut self, only_sysfs: bool, epoll: &OwnedFd) {
        match &self.access {
            Access::Open(_) => return,
            Access::Sysfs { because: None, .. } => return,
            // As before: its rows are read already.
            Access::Sysfs { .. } if self.device.probe_node().is_err() => return,
            _ => {}
        }
        let opened = if only_sysfs { None } else { Some(self.open(epoll)) };
        let because = match opened {
            Some(Ok(context)) => {
                (self.access, self.trouble) = (Access::Open(context), None);
                return self.read_ports();
            }
            Some(Err(error)) => Some(Arc::new(error)),
            None => None,
        };
        if matches!(self.access, Access::Sysfs { .. }) {
            return;
        }
        event!(info, device = self.device.name(), "its GID tables are read from sysfs");
        match self.device.gids_from_sysfs() {
            Ok(cache) => (self.access, self.trouble) = (Access::Sysfs { cache, because }, None),
            Err(error) => self.trouble = Some(because.unwrap_or(Arc::new(error))),
        }
    }

    fn open(&self, epoll: &OwnedFd) -> Result<Context> {
        let context = self.device.open()?;
        super::work::add(epoll, context.events_fd(), self.token)?;
        Ok(context)
    }

    /// Lets go of an open device, so that the kernel can take it away.
    pub(super) fn close(&mut self, epoll: &OwnedFd) {
        if let Access::Open(context) = &self.access {
            // Its descriptor may be open elsewhere, in a forked process, and would stay in the set.
            let _ = epoll::delete(epoll, context.events_fd());
            self.access = Access::Closed;
            self.ports = Arc::new([]);
        }
    }

    /// Closes a device whose failure is for good: it is opened anew if it comes back.
    pub(super) fn close_if_dead(&mut self, epoll: &OwnedFd) {
        let for_good = match self.trouble.as_deref() {
            Some(Error::DeviceFatal { .. } | Error::DeviceGone { .. }) => true,
            Some(Error::Verb { errno, .. }) => matches!(*errno, Errno::ENODEV | Errno::EIO),
            _ => false,
        };
        if for_good {
            self.close(epoll);
        }
    }

    /// Asks an open device what its ports are like.
    fn read_ports(&mut self) {
        let ports = match &self.access {
            // A port that cannot be asked is not told of; its rows go by events of their own.
            Access::Open(context) => context.ports().filter_map(|n| context.port(n).ok()).collect(),
            _ => Vec::new(),
        };
        if *self.ports != *ports {
            self.ports = ports.into();
        }
    }

    /// Takes in the device's events and reads its tables if one told of a change.
    pub(super) fn process_events(&mut self) {
        if let Access::Open(context) = &self.access {
            let outcome = context.process_events();
            self.trouble = outcome.err().map(Arc::new);
            self.read_ports();
        }
    }

    /// Reads the tables now.
    pub(super) fn read_anew(&mut self) {
        let outcome = match &self.access {
            Access::Open(context) => context.gids().fresh().map(|_| ()),
            Access::Sysfs { cache, .. } => cache.fresh().map(|_| ()),
            Access::Closed => return,
        };
        self.trouble = outcome.err().map(Arc::new);
        self.read_ports();
    }

    /// Reads the tables now if they come from sysfs.
    pub(super) fn read_sysfs_anew(&mut self) {
        if self.reads_sysfs() {
            self.read_anew();
        }
    }

    pub(super) fn reads_sysfs(&self) -> bool {
        matches!(self.access, Access::Sysfs { .. })
    }

    /// Whether something of it failed and is to be tried again.
    pub(super) fn is_failing(&self) -> bool {
        self.trouble.is_some()
    }

    /// Its name, and what the cache of its tables did; `None` when there is none.
    pub(super) fn stats(&self) -> (Arc<str>, Option<CacheStats>) {
        let stats = match &self.access {
            Access::Open(context) => Some(context.gids().stats()),
            Access::Sysfs { cache, .. } => Some(cache.stats()),
            Access::Closed => None,
        };
        (Arc::clone(&self.device.name), stats)
    }

    /// Whether the directory's snapshot is behind.
    pub(super) fn has_changed(&self) -> bool {
        let Some(published) = &self.published else { return true };
        let told = matches!(published.source, TableSource::Failed(_));
        if told != self.is_failing() || !Arc::ptr_eq(&published.ports, &self.ports) {
            return true;
        }
        match &self.access {
            Access::Open(context) => {
                !Arc::ptr_eq(&published.gids, &context.gids().cached().to_arc())
                    || !(told || matches!(published.source, TableSource::Device))
            }
            Access::Sysfs { cache, .. } => !Arc::ptr_eq(&published.gids, &cache.cached().to_arc()),
            Access::Closed => !published.gids.rows().is_empty(),
        }
    }

    /// The device as it is to be seen now.
    pub(super) fn publish(&mut self) -> DirectoryDevice {
        let (source, gids) = match &self.access {
            Access::Open(context) => (TableSource::Device, context.gids().cached().to_arc()),
            Access::Sysfs { cache, because } => {
                let source = match because {
                    Some(error) => TableSource::SysfsInstead(Arc::clone(error)),
                    None => TableSource::Sysfs,
                };
                (source, cache.cached().to_arc())
            }
            Access::Closed => {
                let nothing = GidSnapshot::nothing(Arc::clone(&self.device.name));
                (TableSource::Failed(Arc::new(self.device.gone())), Arc::new(nothing))
            }
        };
        let source = self.trouble.clone().map_or(source, TableSource::Failed);
        let (name, ports) = (Arc::clone(&self.device.name), Arc::clone(&self.ports));
        let device = DirectoryDevice { name, source, gids, ports, start: 0 };
        self.published = Some(device.clone());
        device
    }
}
