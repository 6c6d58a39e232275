//! Steps that were begun, and end by an event.

#![deny(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::core::IdCore;
use super::id::{AddressResolved, Id, RouteResolved};
use super::slot::Arrived;
use crate::error::Result;
use crate::types::CmEventType;

/// A state that an id comes to by an event.
pub trait Awaited: private::Sealed {}

impl Awaited for AddressResolved {}
impl Awaited for RouteResolved {}

mod private {
    use super::{AddressResolved, CmEventType, RouteResolved};

    pub trait Sealed {
        const CALL: &'static str;
        const DONE: CmEventType;
        const FAILED: CmEventType;
    }

    impl Sealed for AddressResolved {
        const CALL: &'static str = "rdma_resolve_addr";
        const DONE: CmEventType = CmEventType::ADDR_RESOLVED;
        const FAILED: CmEventType = CmEventType::ADDR_ERROR;
    }

    impl Sealed for RouteResolved {
        const CALL: &'static str = "rdma_resolve_route";
        const DONE: CmEventType = CmEventType::ROUTE_RESOLVED;
        const FAILED: CmEventType = CmEventType::ROUTE_ERROR;
    }
}

/// A step that was begun: an id on its way to the state `S`. Any number can be under way at a time; whoever
/// waits for one takes in the events of all.
#[must_use = "a step that is dropped is given up, and its id with it"]
pub struct Step<S> {
    pub(super) core: IdCore,
    state: PhantomData<fn() -> S>,
}

impl<S: Awaited> Step<S> {
    pub(super) fn new(core: IdCore) -> Step<S> {
        Step { core, state: PhantomData }
    }

    pub(super) fn ends(kind: CmEventType) -> bool {
        kind == S::DONE || kind == S::FAILED || kind == CmEventType::DEVICE_REMOVAL
    }

    /// Waits until it has ended, well or not, and tells whether it has; [`Duration::ZERO`] only looks.
    ///
    /// # Errors
    ///
    /// [`Error::Cm`](crate::Error::Cm) and [`Error::Host`](crate::Error::Host) when events cannot be had.
    pub fn ready(&self, timeout: Duration) -> Result<bool> {
        self.core.await_any(timeout, Self::ends)
    }

    /// Waits until it has ended, and gives the id in its new state.
    ///
    /// # Errors
    ///
    /// [`Error::NoDeviceForAddress`](crate::Error::NoDeviceForAddress) when the address that packets leave
    /// by has no RDMA device: lists those that have one. [`Error::NoRoute`](crate::Error::NoRoute).
    /// [`Error::Cm`](crate::Error::Cm) with the reason: the neighbour does not answer, the time is over.
    /// The id is gone.
    pub fn wait(self, timeout: Duration) -> Result<Id<S>> {
        let came = self.core.await_event(timeout, Self::ends);
        self.end(came, timeout)
    }

    /// The end, by what came within the time.
    pub(super) fn end(mut self, came: Result<Option<Arrived>>, waited: Duration) -> Result<Id<S>> {
        let Some(mut arrived) = came? else {
            return Err(self.core.timed_out(S::CALL, waited));
        };
        self.core.arrived = Some(arrived.event.at);
        if arrived.event.kind != S::DONE || arrived.event.status != 0 {
            return Err(self.core.failed(S::CALL, &arrived));
        }
        if let Some(bound) = arrived.bound.take() {
            self.core.note(bound);
        }
        // The library looks into the device of an id that has one by its state.
        self.core.bound_device()?;
        Ok(Id::new(self.core))
    }
}

impl<S> fmt::Debug for Step<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("peer", &self.core.peer).finish_non_exhaustive()
    }
}
