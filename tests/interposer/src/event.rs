//! Asynchronous events.

use std::ffi::c_int;

use crate::abi::{ibv_async_event, ibv_context};
use crate::bytes::wait_readable;
use crate::verbs::{self, Verb};
use crate::world::{World, changed, there, world};

/// What an event happened to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Element {
    /// A CQ, QP or SRQ, or whatever else.
    Pointer(usize),
    /// C writes these 4 bytes only.
    Port(c_int),
}

/// An event that nobody took yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    kind: c_int,
    element: Element,
}

/// Events of one object that were taken and acknowledged.
#[derive(Clone, Copy, Default)]
pub(crate) struct Acks {
    pub(crate) taken: u32,
    pub(crate) acknowledged: u32,
}

impl Acks {
    pub(crate) fn settled(self) -> bool {
        self.acknowledged >= self.taken
    }
}

impl World {
    /// An event on one context.
    pub(crate) fn raise(&mut self, context: usize, kind: c_int, element: Element) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.events.push_back(Pending { kind, element });
            context.readable.set(true);
        }
    }

    /// Events of an object that is being destroyed and were not taken yet never will be.
    pub(crate) fn forget_events(&mut self, object: usize) {
        for context in self.contexts.values_mut() {
            context.events.retain(|event| event.element != Element::Pointer(object));
            context.readable.set(!context.events.is_empty());
        }
    }

    /// The count of an object's events, if it is an object that is there.
    fn acks(&mut self, object: usize) -> Option<&mut Acks> {
        if let Some(cq) = self.cqs.get_mut(&object) {
            return Some(&mut cq.async_acks);
        }
        if let Some(qp) = self.qps.get_mut(&object) {
            return Some(&mut qp.async_acks);
        }
        self.srqs.get_mut(&object).map(|srq| &mut srq.async_acks)
    }

    /// Whether every event of an object that was taken was acknowledged.
    pub(crate) fn is_settled(&self, object: usize) -> bool {
        let acks = [
            self.cqs.get(&object).map(|cq| cq.async_acks),
            self.qps.get(&object).map(|qp| qp.async_acks),
            self.srqs.get(&object).map(|srq| srq.async_acks),
        ];
        acks.into_iter().flatten().all(Acks::settled)
    }
}

/// # Safety
///
/// As C's: `event` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let failed = world().call(Verb::GetAsyncEvent);
    if let Err(errno) = failed {
        return verbs::minus_one(Err(errno));
    }
    loop {
        let mut world = world();
        let there = there(&mut world.contexts, context, "context");
        let Some(Pending { kind, element }) = there.events.pop_front() else {
            let fd = there.readable.fd();
            drop(world);
            if let Err(errno) = wait_readable(fd) {
                return verbs::minus_one(Err(errno));
            }
            continue;
        };
        let more = !there.events.is_empty();
        there.readable.set(more);
        if let Element::Pointer(object) = element {
            if let Some(acks) = world.acks(object) {
                acks.taken += 1;
            }
        }
        // SAFETY: the caller has room for an event. Only what C writes is written.
        unsafe {
            (&raw mut (*event).event_type).write(kind);
            match element {
                Element::Pointer(object) => {
                    (&raw mut (*event).element).write((object as u64).to_ne_bytes());
                }
                Element::Port(port) => (&raw mut (*event).element).cast::<c_int>().write(port),
            }
        }
        return 0;
    }
}

/// # Safety
///
/// As C's: `event` was given by [`ibv_get_async_event`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    let mut world = world();
    let _ = world.call(Verb::AckAsyncEvent);
    // SAFETY: the caller has an event there.
    let (kind, element) = unsafe { ((*event).event_type, (*event).element) };
    if matches!(kind, 0..=7 | 14..=16) {
        if let Some(acks) = world.acks(u64::from_ne_bytes(element) as usize) {
            acks.acknowledged += 1;
        }
    }
    changed();
}
