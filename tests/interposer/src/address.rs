//! Address handles. Nothing here sends to them.

use std::ffi::c_int;

use crate::abi::{ibv_ah_attr, ibv_context, ibv_pd};
use crate::given::{Given, OnContext};
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
}

impl World {
    fn create_ah(&mut self, pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut AhFront, c_int> {
        self.call(Verb::CreateAh)?;
        let context = there(&mut self.pds, pd, "protection domain").context;
        let context = self.contexts.get(&context).ok_or(libc::ENODEV)?;
        states::check_address(Some(context.kind), &self.gids, attr)?;
        let context = context.pointer();
        let serial = self.serial();
        let given = Given::new(AhFront { context, pd, handle: serial });
        let pointer = given.as_ptr();
        self.ahs.insert(given.id(), Ah { given, pd: pd.addr(), serial });
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
