//! Address handles and multicast groups.

use std::ffi::c_int;

use crate::abi::{ibv_ah_attr, ibv_context, ibv_gid, ibv_pd, ibv_qp};
use crate::given::{Given, OnContext};
use crate::numbers::transport;
use crate::states;
use crate::verbs::{self, Verb};
use crate::world::{World, there, world};

/// What C has of an address handle.
#[repr(C)]
pub struct AhFront {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    handle: u32,
}

// SAFETY: it begins with the context.
unsafe impl OnContext for AhFront {}

/// An address handle.
pub(crate) struct Ah {
    given: Given<AhFront>,
    pub(crate) pd: usize,
    pub(crate) serial: u32,
    /// The GIDs that datagrams come from, and go to.
    pub(crate) source: [u8; 16],
    pub(crate) target: [u8; 16],
}

impl World {
    fn create_ah(&mut self, pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut AhFront, c_int> {
        self.call(Verb::CreateAh)?;
        let context = there(&mut self.pds, pd, "protection domain").context;
        let context = self.contexts.get(&context).ok_or(libc::ENODEV)?;
        states::check_address(Some(context.kind), &self.gids, attr)?;
        let source = self.gids.row(context.kind, attr.grh.sgid_index.into()).unwrap_or_default();
        let target = attr.grh.dgid.raw;
        let context = context.pointer();
        let serial = self.serial();
        let given = Given::new(AhFront { context, pd, handle: serial });
        let pointer = given.as_ptr();
        self.ahs.insert(given.id(), Ah { given, pd: pd.addr(), serial, source, target });
        Ok(pointer)
    }
}

/// # Safety
///
/// As C's: `attr` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut AhFront {
    // SAFETY: the caller has one there.
    verbs::pointer(world().create_ah(pd, unsafe { &*attr }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_ah(ah: *mut AhFront) -> c_int {
    let mut world = world();
    let called = world.call(Verb::DestroyAh);
    let id = there(&mut world.ahs, ah, "address handle").given.id();
    verbs::errno(called.map(|()| {
        world.ahs.remove(&id);
    }))
}

/// # Safety
///
/// As C's: `gid` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    let mut world = world();
    let called = world.call(Verb::AttachMcast);
    let qp = there(&mut world.qps, qp, "queue pair");
    // SAFETY: the caller has one there.
    let group = unsafe { (*gid).raw };
    verbs::errno(called.and_then(|()| match qp.transport {
        transport::UD => {
            if !qp.groups.contains(&group) {
                qp.groups.push(group);
            }
            Ok(())
        }
        _ => Err(libc::EINVAL),
    }))
}

/// # Safety
///
/// As C's: `gid` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    let mut world = world();
    let called = world.call(Verb::DetachMcast);
    let qp = there(&mut world.qps, qp, "queue pair");
    // SAFETY: the caller has one there.
    let group = unsafe { (*gid).raw };
    verbs::errno(called.and_then(|()| {
        let at = qp.groups.iter().position(|there| *there == group).ok_or(libc::EINVAL)?;
        qp.groups.remove(at);
        Ok(())
    }))
}
