//! Protection domains and memory regions: what may be touched.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{ibv_context, ibv_mr, ibv_pd, ibv_sge};
use crate::bytes::{self, Segment};
use crate::given::Given;
use crate::numbers::{access, limit};
use crate::verbs::{self, Verb};
use crate::world::{World, there, world};

/// A protection domain.
pub(crate) struct Pd {
    given: Given<ibv_pd>,
    pub(crate) context: usize,
    pub(crate) serial: u32,
}

/// A memory region.
pub(crate) struct Mr {
    given: Given<ibv_mr>,
    pub(crate) pd: usize,
    pub(crate) serial: u32,
    /// Where the memory is.
    address: u64,
    pub(crate) length: u64,
    /// Where work requests say that it is.
    iova: u64,
    pub(crate) access: u32,
    lkey: u32,
    rkey: u32,
    /// False after a send with invalidate named its key.
    remote: bool,
}

impl Mr {
    /// What both its keys have in their upper 24 bits.
    pub(crate) fn index(&self) -> u32 {
        self.lkey >> 8
    }

    /// Where these bytes of it are, if they are all inside of it.
    pub(crate) fn segment(&self, address: u64, length: u64) -> Option<Segment> {
        let offset = address.checked_sub(self.iova)?;
        (offset.checked_add(length)? <= self.length).then_some((self.address + offset, length))
    }
}

impl World {
    fn mr_of_key(&self, key: u32) -> Option<&Mr> {
        self.mrs.get(self.keys.get(&(key >> 8))?)
    }

    /// Where the memory of a work request is; `None` if a key, a bound or a right forbids it.
    /// Entries without length are not looked at.
    pub(crate) fn local(&self, pd: usize, sges: &[ibv_sge], write: bool) -> Option<Vec<Segment>> {
        let segment = |sge: &ibv_sge| {
            let mr = self.mr_of_key(sge.lkey)?;
            let allowed = mr.lkey == sge.lkey
                && mr.pd == pd
                && (!write || mr.access & access::LOCAL_WRITE != 0);
            if !allowed {
                return None;
            }
            mr.segment(sge.addr, sge.length.into())
        };
        sges.iter().filter(|sge| sge.length != 0).map(segment).collect()
    }

    /// Where the memory of a peer's request is, if the peer may. No length needs no key.
    pub(crate) fn remote(
        &self,
        pd: usize,
        address: u64,
        length: u64,
        rkey: u32,
        right: u32,
    ) -> Option<Segment> {
        if length == 0 {
            return Some((address, 0));
        }
        let mr = self.mr_of_key(rkey)?;
        let allowed = mr.rkey == rkey && mr.remote && mr.pd == pd && mr.access & right != 0;
        if allowed { mr.segment(address, length) } else { None }
    }

    /// Ends the rights of a remote key; false when there is no such key here.
    pub(crate) fn invalidate(&mut self, pd: usize, rkey: u32) -> bool {
        let mr = self.keys.get(&(rkey >> 8)).and_then(|id| self.mrs.get_mut(id));
        let Some(mr) = mr.filter(|mr| mr.rkey == rkey && mr.pd == pd && mr.remote) else {
            return false;
        };
        mr.remote = false;
        true
    }

    /// How much memory is registered.
    pub(crate) fn registered(&self) -> u64 {
        self.mrs.values().map(|mr| mr.length).sum()
    }

    fn reg_mr(
        &mut self,
        pd: *mut ibv_pd,
        address: *mut c_void,
        length: usize,
        iova: u64,
        rights: u32,
    ) -> Result<*mut ibv_mr, c_int> {
        self.call(Verb::RegMr)?;
        let pd_id = pd.addr();
        let context = there(&mut self.pds, pd, "protection domain").context;
        let known = access::LOCAL_WRITE
            | access::REMOTE
            | access::MW_BIND
            | access::OTHERS
            | access::OPTIONAL;
        let writes = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
        let cannot = rights & writes != 0 && rights & access::LOCAL_WRITE == 0;
        if length == 0 || rights & !known != 0 || cannot || length as u64 > 1 << 40 {
            return Err(libc::EINVAL);
        }
        let start = address.expose_provenance() as u64;
        if !bytes::is_mapped(start, length as u64) {
            return Err(libc::EFAULT);
        }
        if self.registered() + length as u64 > self.faults.most_memory {
            return Err(libc::ENOMEM);
        }
        let serial = self.serial();
        let context = self.contexts.get(&context).map_or(std::ptr::null_mut(), |c| c.pointer());
        // They differ, so that one in the other's place is seen.
        let lkey = serial << 8 | 0x11;
        let rkey = if rights & access::REMOTE == 0 { 0 } else { serial << 8 | 0x77 };
        let given =
            Given::new(ibv_mr { context, pd, addr: address, length, handle: serial, lkey, rkey });
        let pointer = given.as_ptr();
        let mr = Mr {
            given,
            pd: pd_id,
            serial,
            address: start,
            length: length as u64,
            iova,
            access: rights,
            lkey,
            rkey,
            remote: true,
        };
        self.keys.insert(mr.index(), mr.given.id());
        self.mrs.insert(mr.given.id(), mr);
        Ok(pointer)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let mut world = world();
    let called = world.call(Verb::AllocPd);
    there(&mut world.contexts, context, "context");
    verbs::pointer(called.map(|()| {
        let serial = world.serial();
        let given = Given::new(ibv_pd { context, handle: serial });
        let pd = Pd { given, context: context.addr(), serial };
        let pointer = pd.given.as_ptr();
        world.pds.insert(pd.given.id(), pd);
        pointer
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let mut world = world();
    let called = world.call(Verb::DeallocPd);
    let id = pd.addr();
    there(&mut world.pds, pd, "protection domain");
    verbs::errno(called.and_then(|()| {
        let used = world.mrs.values().any(|mr| mr.pd == id)
            || world.qps.values().any(|qp| qp.pd == id)
            || world.srqs.values().any(|srq| srq.pd == id)
            || world.ahs.values().any(|ah| ah.pd == id)
            || world.mws.values().any(|mw| mw.pd == id);
        if used {
            return Err(libc::EBUSY);
        }
        world.pds.remove(&id);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let access = access as u32;
    // The plain function does not know the optional flags.
    if access & access::OPTIONAL != 0 {
        return verbs::pointer(Err(libc::EINVAL));
    }
    verbs::pointer(world().reg_mr(pd, address, length, address.addr() as u64, access))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    verbs::pointer(world().reg_mr(pd, address, length, iova, access))
}

/// Succeeds with work posted on it, as rxe does: after it the device does not touch the memory. As there, it does
/// not with a window bound on it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let mut world = world();
    let called = world.call(Verb::DeregMr);
    let index = there(&mut world.mrs, mr, "memory region").index();
    verbs::errno(called.and_then(|()| {
        if world.has_windows(mr.addr()) {
            return Err(libc::EINVAL);
        }
        world.keys.remove(&index);
        world.mrs.remove(&mr.addr());
        Ok(())
    }))
}

/// The largest message, for those who ask.
pub(crate) fn is_message(length: u64) -> bool {
    length <= limit::MESSAGE
}
