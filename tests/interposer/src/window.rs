//! Memory windows.

use std::ffi::{c_int, c_uint};

use crate::abi::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp};
use crate::bytes::Segment;
use crate::given::Given;
use crate::memory::Mr;
use crate::numbers::{access, state, window};
use crate::verbs::{self, Verb};
use crate::work::{Place, PlaceNumber, Send};
use crate::world::{World, there, world};

/// A memory window.
pub(crate) struct Mw {
    given: Given<ibv_mw>,
    pub(crate) pd: usize,
    pub(crate) serial: u32,
    kind: c_uint,
    rkey: u32,
    bound: Option<Bound>,
}

struct Bound {
    mr: usize,
    address: u64,
    length: u64,
    access: u32,
    /// Of type 2: the queue pair.
    qp: usize,
}

/// What a bind was posted with: the keys as they were then.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bind {
    mw_rkey: u32,
    rkey: u32,
    mr_lkey: u32,
    address: u64,
    length: u64,
    access: u32,
}

impl World {
    fn mw_of_key(&mut self, rkey: u32) -> Option<&mut Mw> {
        self.mws.values_mut().find(|mw| mw.rkey == rkey)
    }

    /// Whether a window is bound to this region.
    pub(crate) fn has_windows(&self, mr: usize) -> bool {
        self.mws.values().any(|mw| mw.bound.as_ref().is_some_and(|bound| bound.mr == mr))
    }

    /// Whether a window of type 2 is bound through this queue pair.
    pub(crate) fn binds_windows(&self, qp: usize) -> bool {
        let is_of = |mw: &Mw| mw.kind == window::TYPE_2;
        self.mws
            .values()
            .filter(|mw| is_of(mw))
            .any(|mw| mw.bound.as_ref().is_some_and(|b| b.qp == qp))
    }

    /// Where the memory is that a peer's request names by a window's key, if that grants it.
    pub(crate) fn in_window(
        &mut self,
        qp: usize,
        pd: usize,
        address: u64,
        length: u64,
        rkey: u32,
        right: u32,
    ) -> Option<Segment> {
        let mw = self.mw_of_key(rkey).filter(|mw| mw.pd == pd)?;
        let ours = mw.kind == window::TYPE_1 || mw.bound.as_ref().is_some_and(|b| b.qp == qp);
        let bound = mw.bound.as_ref().filter(|bound| ours && bound.access & right != 0)?;
        let offset = address.checked_sub(bound.address)?;
        let inside = offset.checked_add(length)? <= bound.length;
        let mr = bound.mr;
        self.mrs.get(&mr).filter(|_| inside)?.segment(address, length)
    }

    /// What a bind names, read when it is posted.
    ///
    /// # Safety
    ///
    /// The region is one of C's, if there is one.
    pub(crate) unsafe fn read_bind(
        &mut self,
        mw: *mut ibv_mw,
        rkey: u32,
        info: &ibv_mw_bind_info,
        kind: c_uint,
    ) -> Result<Bind, c_int> {
        let there_is = there(&mut self.mws, mw, "memory window");
        if there_is.kind != kind {
            return Err(libc::EINVAL);
        }
        // SAFETY: the window is there.
        let mw_rkey = unsafe { (*mw).rkey };
        // As rxe: looked at whatever the length.
        there(&mut self.mrs, info.mr, "memory region");
        // SAFETY: it is there.
        let mr_lkey = unsafe { (*info.mr).lkey };
        let (address, length, access) = (info.addr, info.length, info.mw_access_flags);
        Ok(Bind { mw_rkey, rkey, mr_lkey, address, length, access })
    }

    /// Carries it out; false when it cannot be.
    pub(crate) fn bind(&mut self, qp: usize, pd: usize, bind: &Bind) -> bool {
        let mr = self.keys.get(&(bind.mr_lkey >> 8)).copied();
        let allows = |mr: &Mr| {
            let inside = mr.segment(bind.address, bind.length).is_some();
            mr.pd == pd && mr.access & access::MW_BIND != 0 && inside
        };
        let mr = mr.filter(|mr| self.mrs.get(mr).is_some_and(allows));
        let Some(mw) = self.mw_of_key(bind.mw_rkey).filter(|mw| mw.pd == pd) else { return false };
        let is_second = mw.kind == window::TYPE_2;
        // The tag must be another.
        let same = bind.rkey == mw.rkey || bind.rkey >> 8 != mw.rkey >> 8;
        if same || is_second && (mw.bound.is_some() || bind.length == 0) {
            return false;
        }
        let (address, length, access) = (bind.address, bind.length, bind.access);
        mw.bound = match (length, mr) {
            (0, _) => None,
            (_, Some(mr)) => Some(Bound { mr, address, length, access, qp }),
            _ => return false,
        };
        mw.rkey = bind.rkey;
        true
    }

    /// Ends what a key of type 2 grants; false when it grants nothing.
    pub(crate) fn unbind(&mut self, qp: usize, pd: usize, rkey: u32) -> bool {
        let mw = self.mw_of_key(rkey).filter(|mw| mw.pd == pd && mw.kind == window::TYPE_2);
        let bound = mw.and_then(|mw| mw.bound.take_if(|bound| bound.qp == qp));
        bound.is_some()
    }

    fn alloc_mw(&mut self, pd: *mut ibv_pd, kind: c_uint) -> Result<*mut ibv_mw, c_int> {
        self.call(Verb::AllocMw)?;
        let context = there(&mut self.pds, pd, "protection domain").context;
        if !(window::TYPE_1..=window::TYPE_2).contains(&kind) {
            return Err(libc::EINVAL);
        }
        let serial = self.serial();
        let context = self.contexts.get(&context).map_or(std::ptr::null_mut(), |c| c.pointer());
        let rkey = serial << 8 | 0xfe;
        let given = Given::new(ibv_mw { context, pd, rkey, handle: serial, type_: kind });
        let pointer = given.as_ptr();
        let mw = Mw { given, pd: pd.addr(), serial, kind, rkey, bound: None };
        self.mws.insert(mw.given.id(), mw);
        Ok(pointer)
    }
}

pub(crate) unsafe extern "C" fn alloc(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    verbs::pointer(world().alloc_mw(pd, kind))
}

pub(crate) unsafe extern "C" fn dealloc(mw: *mut ibv_mw) -> c_int {
    let mut world = world();
    let called = world.call(Verb::DeallocMw);
    there(&mut world.mws, mw, "memory window");
    verbs::errno(called.map(|()| {
        world.mws.remove(&mw.addr());
    }))
}

/// # Safety
///
/// As C's: `bind` is one, and the region that it names is there.
pub(crate) unsafe extern "C" fn bind(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    let mut world = world();
    let called = world.call(Verb::BindMw);
    there(&mut world.qps, qp, "queue pair").outside("ibv_bind_mw");
    // SAFETY: the caller has one there.
    let asked = unsafe { &*bind };
    verbs::errno(called.and_then(|()| {
        there(&mut world.mws, mw, "memory window");
        // SAFETY: it is there.
        let old = unsafe { (*mw).rkey };
        let rkey = old & !0xff | old.wrapping_add(1) & 0xff;
        // SAFETY: as the caller says.
        let bind = unsafe { world.read_bind(mw, rkey, &asked.bind_info, window::TYPE_1) }?;
        let id = qp.addr();
        let found = world.qps.get(&id).filter(|qp| qp.state >= state::RTS);
        let (posted, epoch) = found.map(|qp| (qp.posted, qp.epoch)).ok_or(libc::EINVAL)?;
        let place = Place { owner: id, epoch, number: PlaceNumber::Send(posted) };
        world.take_local(id, Send::bind(asked.wr_id, asked.send_flags, place, bind))?;
        // SAFETY: it is there.
        unsafe { (*mw).rkey = rkey };
        world.start_sends(id);
        world.pump();
        Ok(())
    }))
}
