//! One device that a directory watches.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::snapshot::{DirectoryDevice, TableSource};
use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::gid::{GidCache, GidSnapshot};
use crate::kept::CacheStats;
use crate::port::PortAttr;

/// A device, how it is read, and what the directory's snapshot has of it.
pub(super) struct Watched {
    /// Its token in the epoll set, never given twice.
    pub(super) token: u64,
    device: Device,
    access: Access,
    /// Of an open device, as of its last event.
    ports: Arc<[PortAttr]>,
    published: Option<DirectoryDevice>,
}

enum Access {
    /// Not looked at yet, or failed: tried again at each rescan.
    Closed(Option<Arc<Error>>),
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
            access: Access::Closed(None),
            ports: Arc::new([]),
            published: None,
        }
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
        let settled = match &self.access {
            Access::Closed(_) => false,
            Access::Open(_) => true,
            Access::Sysfs { because, .. } => because.is_none(),
        };
        if settled {
            return;
        }
        let sysfs = |because| match self.device.gids_from_sysfs() {
            Ok(cache) => Access::Sysfs { cache, because },
            Err(error) => Access::Closed(because.or(Some(Arc::new(error)))),
        };
        if only_sysfs {
            self.access = sysfs(None);
            return;
        }
        let opened = self.device.open();
        let added = opened.and_then(|context| {
            super::add(epoll, context.events_fd(), self.token)?;
            Ok(context)
        });
        self.access = match added {
            Ok(context) => Access::Open(context),
            Err(error) => sysfs(Some(Arc::new(error))),
        };
        self.read_ports();
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
            let outcome = context.process_events().map(|_| ());
            self.fail_on(outcome);
            self.read_ports();
        }
    }

    /// Reads the tables now.
    pub(super) fn read_anew(&mut self) {
        let outcome = match &self.access {
            Access::Open(context) => context.gids().fresh().map(|_| ()),
            Access::Sysfs { cache, .. } => cache.fresh().map(|_| ()),
            Access::Closed(_) => return,
        };
        self.fail_on(outcome);
        self.read_ports();
    }

    /// Reads the tables now if they come from sysfs.
    pub(super) fn read_sysfs_anew(&mut self) {
        if matches!(self.access, Access::Sysfs { .. }) {
            self.read_anew();
        }
    }

    /// A device that fails is closed, and opened again at the next rescan if it is there then.
    fn fail_on(&mut self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.access = Access::Closed(Some(Arc::new(error)));
        }
    }

    /// Its name, and what the cache of its tables did; `None` when there is none.
    pub(super) fn stats(&self) -> (Arc<str>, Option<CacheStats>) {
        let stats = match &self.access {
            Access::Open(context) => Some(context.gids().stats()),
            Access::Sysfs { cache, .. } => Some(cache.stats()),
            Access::Closed(_) => None,
        };
        (Arc::clone(&self.device.name), stats)
    }

    /// Whether the directory's snapshot is behind.
    pub(super) fn has_changed(&self) -> bool {
        let Some(published) = &self.published else { return true };
        if !Arc::ptr_eq(&published.ports, &self.ports) {
            return true;
        }
        match &self.access {
            Access::Open(context) => {
                !Arc::ptr_eq(&published.gids, &context.gids().cached().to_arc())
            }
            Access::Sysfs { cache, .. } => !Arc::ptr_eq(&published.gids, &cache.cached().to_arc()),
            Access::Closed(_) => !matches!(published.source, TableSource::Failed(_)),
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
            Access::Closed(error) => {
                let gone = || Error::DeviceGone {
                    device: self.device.name().into(),
                    node: self.device.node(),
                };
                let error = error.clone().unwrap_or_else(|| Arc::new(gone()));
                let nothing = GidSnapshot::nothing(Arc::clone(&self.device.name));
                (TableSource::Failed(error), Arc::new(nothing))
            }
        };
        let (name, ports) = (Arc::clone(&self.device.name), Arc::clone(&self.ports));
        let device = DirectoryDevice { name, source, gids, ports };
        self.published = Some(device.clone());
        device
    }
}
