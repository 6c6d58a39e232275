//! Completion channels.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::bytes::{Readable, wait_readable};
use crate::given::{Given, misuse};
use crate::verbs::{self, Verb};
use crate::world::{World, changed, there, world};

/// A completion channel.
pub(crate) struct Channel {
    given: Given<ibv_comp_channel>,
    pub(crate) context: usize,
    pub(crate) serial: u32,
    /// The completion queues that told something, the oldest first.
    pub(crate) told: VecDeque<usize>,
    /// Readable while there are some.
    pub(crate) readable: Readable,
}

impl World {
    /// A completion queue tells its channel.
    pub(crate) fn tell(&mut self, cq: usize) {
        let channel = self.cqs.get(&cq).and_then(|cq| cq.channel);
        if let Some(channel) = channel.and_then(|channel| self.channels.get_mut(&channel)) {
            channel.told.push_back(cq);
            channel.readable.set(true);
        }
    }

    /// What a completion queue told and nobody took, nobody ever will.
    pub(crate) fn forget_told(&mut self, cq: usize) {
        for channel in self.channels.values_mut() {
            channel.told.retain(|told| *told != cq);
            channel.readable.set(!channel.told.is_empty());
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let mut world = world();
    let called = world.call(Verb::CreateCompChannel);
    there(&mut world.contexts, context, "context");
    verbs::pointer(called.and_then(|()| Readable::new()).map(|readable| {
        let serial = world.serial();
        let given = Given::new(ibv_comp_channel { context, fd: readable.fd(), refcnt: 0 });
        let pointer = given.as_ptr();
        let told = VecDeque::new();
        let channel = Channel { given, context: context.addr(), serial, told, readable };
        world.channels.insert(channel.given.id(), channel);
        pointer
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let mut world = world();
    let called = world.call(Verb::DestroyCompChannel);
    let id = channel.addr();
    there(&mut world.channels, channel, "completion channel");
    verbs::errno(called.and_then(|()| {
        if world.cqs.values().any(|cq| cq.channel == Some(id)) {
            return Err(libc::EBUSY);
        }
        world.channels.remove(&id);
        Ok(())
    }))
}

/// # Safety
///
/// As C's: both pointers can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let called = world().call(Verb::GetCqEvent);
    if let Err(errno) = called {
        return verbs::minus_one(Err(errno));
    }
    loop {
        let mut world = world();
        let there = there(&mut world.channels, channel, "completion channel");
        let Some(told) = there.told.pop_front() else {
            let fd = there.readable.fd();
            drop(world);
            if let Err(errno) = wait_readable(fd) {
                return verbs::minus_one(Err(errno));
            }
            continue;
        };
        let more = !there.told.is_empty();
        there.readable.set(more);
        let Some(teller) = world.cqs.get_mut(&told) else { continue };
        teller.acks.taken += 1;
        let pointer = teller.pointer();
        // SAFETY: the caller has room for both, and the queue is there.
        unsafe {
            cq.write(pointer);
            cq_context.write((*pointer).cq_context);
        }
        return 0;
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    let mut world = world();
    let _ = world.call(Verb::AckCqEvents);
    let acks = &mut there(&mut world.cqs, cq, "completion queue").acks;
    acks.acknowledged += count;
    if acks.acknowledged > acks.taken {
        misuse("more completion events are acknowledged than were taken");
    }
    changed();
}
