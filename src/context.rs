//! An open device.

mod raw;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::device::Device;
use crate::error::{Errno, Error, Object, Result};
use crate::event::{EventQueue, Events, ForLookups, Readiness};
use crate::gid::{self, GidCache, PortShape, VerbsSource};
use crate::kept::Announcements;
use crate::limits::DeviceLimits;
use crate::pkey::{self, PKeyCache};
use crate::port::PortAttr;
use crate::sys::ContextHandle;
use crate::sys::abi::ibv_gid_entry;
use crate::trace::{event, span};
use crate::types::{Capabilities, Capability, DeviceTime, Gid, GidEntry, Guid, PortNum};

/// An open device (`struct ibv_context`), with its limits and its GID tables.
///
/// Cheap to clone; the device is closed when the last clone, and the last object made on it, is
/// gone. An open context delays the removal of its device.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    limits: DeviceLimits,
    supported: Capabilities,
    gids: GidCache,
    /// Read when first asked for: a file read a row.
    pkeys: OnceLock<PKeyCache>,
    /// Held by whoever reads them first.
    first_pkeys: Mutex<()>,
    for_lookups: Arc<ForLookups>,
    events: Arc<Events>,
    readiness: Arc<Readiness>,
    /// Of each port, once one of its queue pairs was brought to INIT: it never changes.
    longest_messages: Box<[OnceLock<u32>]>,
    /// Objects that could not be destroyed.
    leaks: AtomicU64,
    /// Closed after all that was made on it.
    handle: Arc<ContextHandle>,
}

/// A context that others keep open, or not.
pub(crate) struct WeakContext(Weak<Inner>);

impl WeakContext {
    pub(crate) fn upgrade(&self) -> Option<Context> {
        self.0.upgrade().map(|inner| Context { inner })
    }
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
        span!("open", device = self.name());
        let opened = self.probe_node().and_then(|()| self.open_probed()).map_err(|error| {
            // Whatever it was: the device may have gone meanwhile.
            if self.has_gone() { self.gone() } else { error }
        });
        match &opened {
            Ok(_opened) => {
                event!(info, device = self.name(), ports = _opened.limits().ports, "opened");
            }
            Err(_error) => {
                event!(warn, device = self.name(), error = %_error, "could not be opened");
            }
        }
        opened
    }

    fn open_probed(&self) -> Result<Context> {
        let failed =
            |verb| move |errno| Error::Verb { verb, object: Object::device(self.name()), errno };
        let handle = self.handle.open().map_err(|errno| match errno {
            Errno::EACCES | Errno::EPERM => self.denied(errno),
            errno => failed("ibv_open_device")(errno),
        })?;
        self.with(Arc::new(handle))
    }

    /// The context that is made of an open device of C's.
    fn with(&self, handle: Arc<ContextHandle>) -> Result<Context> {
        let failed =
            |verb| move |errno| Error::Verb { verb, object: Object::device(self.name()), errno };
        let attr = handle.query_device().map_err(failed("ibv_query_device_ex"))?;
        let limits = DeviceLimits::from_raw(&attr, handle.num_comp_vectors());
        // Nodes are numbered anew: what was listed may have gone, and this be another device
        // behind the same node.
        if self.guid() != Guid::default() && self.guid() != limits.node_guid {
            return Err(self.gone());
        }
        let ports = shapes(self, &handle, limits.ports)?;
        let device = Arc::clone(&self.name);
        let source = VerbsSource::new(device, Arc::clone(&handle), ports, self.sysfs_path());
        let events = Arc::new(Events::new(Arc::clone(&self.name), Arc::clone(&handle)));
        let readiness = Arc::new(Readiness::new(handle.async_fd())?);
        let for_lookups =
            Arc::new(ForLookups { events: Arc::clone(&events), readiness: Arc::clone(&readiness) });
        let announcements: Arc<dyn Announcements> = Arc::clone(&for_lookups) as _;
        let announce = |kept: &_| events.announce_gids_to(kept);
        let gids = gid::cache(&self.name, source, Some(announcements), announce)?;
        let longest_messages = (0..limits.ports).map(|_| OnceLock::new()).collect();
        let inner = Inner {
            device: self.clone(),
            supported: limits.supported(),
            limits,
            gids,
            pkeys: OnceLock::new(),
            first_pkeys: Mutex::new(()),
            for_lookups,
            events,
            readiness,
            longest_messages,
            leaks: AtomicU64::new(0),
            handle,
        };
        Ok(Context { inner: Arc::new(inner) })
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

    /// What the device can do at all, as it told when it was opened.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.supported
    }

    /// Whether the device can do this at all.
    pub fn supports(&self, capability: Capability) -> bool {
        self.inner.supported.contains(capability)
    }

    /// The same as a result: what this crate's own calls ask before they ask the device.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`].
    pub fn require(&self, what: Capability) -> Result<()> {
        if self.supports(what) {
            return Ok(());
        }
        Err(Error::Unsupported { device: self.device().name().into(), what })
    }

    /// What the device's clock shows now (`ibv_query_rt_values_ex`, `IBV_VALUES_MASK_RAW_CLOCK`): to hold times of
    /// completions against. A read of a register on some devices, a system call on others.
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] where device, provider or library have no such clock; [`Error::Verb`].
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn device_time(&self) -> Result<DeviceTime> {
        let device = || self.device().name().into();
        match self.inner.handle.raw_clock() {
            Ok(ticks) => Ok(DeviceTime::from_ticks(ticks)),
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                Err(Error::NotSupported { device: device(), what: "clock that can be read" })
            }
            Err(errno) => {
                let object = Object::device(self.device().name());
                Err(Error::Verb { verb: "ibv_query_rt_values_ex", object, errno })
            }
        }
    }

    /// The device's GID tables, answered from memory.
    pub fn gids(&self) -> &GidCache {
        &self.inner.gids
    }

    /// The device's P_Key tables, answered from memory. The first call reads them, a file read a
    /// row; no later one does.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when the first read fails; the next call tries again.
    #[doc(alias = "ibv_query_pkey")]
    pub fn pkeys(&self) -> Result<&PKeyCache> {
        let inner = &*self.inner;
        if let Some(pkeys) = inner.pkeys.get() {
            return Ok(pkeys);
        }
        let first = inner.first_pkeys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pkeys) = inner.pkeys.get() {
            return Ok(pkeys);
        }
        let ports: Result<Vec<_>> =
            self.ports().map(|port| Ok((port, self.port(port)?.pkey_table_len))).collect();
        let calls = Arc::clone(&inner.handle);
        let announcements: Arc<dyn Announcements> = Arc::clone(&inner.for_lookups) as _;
        let announce = |kept: &_| inner.events.announce_pkeys_to(kept);
        let name = &inner.device.name;
        let read = pkey::cache(name, calls, ports?, Some(announcements), announce)?;
        let pkeys = inner.pkeys.get_or_init(|| read);
        drop(first);
        Ok(pkeys)
    }

    /// Takes in the asynchronous events there are, without waiting, reads the tables anew that one
    /// told a change of, and gives the number of events. For a program with a loop of its own: wait
    /// until the context's descriptor ([`AsFd`]) is readable, then call this; the tables that
    /// [`cached`](crate::Cache::cached) answers from then stay true, whoever else takes events in by
    /// `checked` lookups. Takes in 4096 events at most: an edge-triggered loop calls it until it gives
    /// 0.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceFatal`] when the device has failed, [`Error::Verb`] when its events or
    /// tables cannot be read: call again later, or close the context.
    #[doc(alias = "ibv_get_async_event")]
    pub fn process_events(&self) -> Result<usize> {
        self.inner.readiness.clear();
        let drained = self.inner.events.drain();
        let gids = self.inner.gids.catch_up();
        let pkeys = self.inner.pkeys.get().map_or(Ok(()), PKeyCache::catch_up);
        let count = drained?;
        gids.and(pkeys).map(|()| count)
    }

    /// Takes the events in for a wait, which needs no tables: who has a loop is told, and reads them.
    pub(crate) fn take_in_events(&self) -> Result<()> {
        self.inner.for_lookups.take_in()
    }

    pub(crate) fn downgrade(&self) -> WeakContext {
        WeakContext(Arc::downgrade(&self.inner))
    }

    /// Whether both are clones of one.
    pub(crate) fn same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn handle(&self) -> &Arc<ContextHandle> {
        &self.inner.handle
    }

    /// Where the objects made on the context hear of their events.
    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.inner.events
    }

    /// Notes that an object could not be destroyed, and so stays, with the memory that the device may
    /// still touch. Told on stderr, as libibverbs itself does of such things.
    pub(crate) fn leaked(&self, what: &str, errno: Errno) {
        use std::io::Write;
        self.inner.leaks.fetch_add(1, Ordering::Relaxed);
        let device = self.device().name();
        let line =
            format!("rdma-verbs: {device}: a {what} could not be destroyed and stays: {errno}");
        let _ = writeln!(std::io::stderr(), "{line}");
        event!(error, device, what, %errno, "an object could not be destroyed and stays");
    }

    /// Whether an object that a call with this answer was to destroy is gone all the same, because the
    /// device is, and the kernel destroyed what was made on it.
    pub(crate) fn went_with(&self, errno: Errno) -> bool {
        matches!(errno, Errno::EIO | Errno::ENODEV) && self.device().has_gone()
    }

    /// How many objects could not be destroyed, and so stay until the process ends, with the memory that
    /// the device may still touch. Zero on a sound device and driver.
    pub fn leaks(&self) -> u64 {
        self.inner.leaks.load(Ordering::Relaxed) + self.inner.handle.leaks()
    }

    /// The device's own descriptor of events, for a watcher that shares the context with nobody, and for
    /// waits, which are told by other ways of what others took in.
    pub(crate) fn events_fd(&self) -> BorrowedFd<'_> {
        self.inner.handle.async_fd()
    }

    /// A queue of this context's events, from now on. Any number of subscribers get each event.
    ///
    /// # Errors
    ///
    /// [`Error::Host`] when there can be no more descriptors.
    #[doc(alias = "ibv_get_async_event")]
    pub fn subscribe(&self) -> Result<EventQueue> {
        self.inner.events.subscribe()
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

    /// The longest message of a port, where it is kept once it is known.
    pub(crate) fn longest_message(&self, port: PortNum) -> Result<&OnceLock<u32>> {
        self.check_port(port)?;
        let of_port = self.inner.longest_messages.get(usize::from(port.get() - 1));
        of_port.ok_or_else(|| Error::NoSuchPort {
            device: self.device().name().into(),
            port,
            ports: self.inner.limits.ports,
        })
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
        let object = self.check_row(port, index)?;
        match self.inner.handle.query_gid(port, index) {
            Ok(gid) if gid.is_zero() => Err(Error::GidRowEmpty { object }),
            Ok(gid) => Ok(gid),
            Err(Errno::ENODATA) => Err(Error::GidRowEmpty { object }),
            Err(errno) => Err(Error::Verb { verb: "ibv_query_gid", object, errno }),
        }
    }

    /// One row as the device has it now (`ibv_query_gid_ex`): one system call, and three for the
    /// name of its interface. `None` when it is empty. Where library or kernel lack the call, the tables are read.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPort`] and [`Error::GidIndexOutOfRange`] before any call.
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn query_row(&self, port: PortNum, index: u32) -> Result<Option<GidEntry>> {
        self.query_row_as(port, index, gid::row)
    }

    /// The same, made of what the device answers by `row`.
    pub(crate) fn query_row_as(
        &self,
        port: PortNum,
        index: u32,
        row: fn(&ibv_gid_entry) -> Option<GidEntry>,
    ) -> Result<Option<GidEntry>> {
        let object = self.check_row(port, index)?;
        match self.inner.handle.query_gid_entry(port, index) {
            Ok(raw) => Ok(row(&raw)),
            Err(Errno::ENODATA) => Ok(None),
            // ENODEV: without the call in the kernel, the library reads sysfs, and gives up on a row of
            // an interface in another namespace.
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENOTTY | Errno::ENODEV) => {
                Ok(self.inner.gids.fresh()?.row(port, index).copied())
            }
            Err(errno) => Err(Error::Verb { verb: "ibv_query_gid_ex", object, errno }),
        }
    }

    /// All rows of all ports as the device has them now (`ibv_query_gid_table`), as they come: one
    /// system call, and neither index nor names of interfaces. What [`gids`](Context::gids) is read
    /// with.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when the table cannot be read, and where library or kernel lack the call.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn query_gid_table(&self) -> Result<Vec<GidEntry>> {
        let capacity = self.inner.gids.cached().ports().iter().map(|table| table.capacity()).sum();
        gid::plain_table(&*self.inner.handle, capacity).map_err(|errno| Error::Verb {
            verb: "ibv_query_gid_table",
            object: Object::device(self.device().name()),
            errno,
        })
    }

    /// The place, if there is such a one.
    fn check_row(&self, port: PortNum, index: u32) -> Result<Object> {
        self.check_port(port)?;
        let object = Object::row(self.inner.device.name(), port, index);
        let len = self.inner.gids.cached().port(port).map_or(0, |table| table.capacity());
        if index < len { Ok(object) } else { Err(Error::GidIndexOutOfRange { object, len }) }
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

impl AsFd for Context {
    /// Readable when there are asynchronous events, or a lookup on another thread took some in. Only
    /// to wait on, then call [`process_events`](Context::process_events).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.readiness.as_fd()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.inner.device).finish_non_exhaustive()
    }
}
