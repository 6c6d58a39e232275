//! What has happened to one id and was not asked for yet.

#![deny(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use super::channel::lock;
use super::data::PrivateData;
use crate::sys::cm::{Bound, Group, Offer};
use crate::sys::{CmEvent as RawEvent, CmId};
use crate::tasks::Tasks;
use crate::types::CmEventType;

/// Something that happened to an id, acknowledged already.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CmEvent {
    /// What happened.
    pub kind: CmEventType,
    /// 0; of a failure an errno, negative; of [`CmEventType::REJECTED`] the
    /// [reason](crate::RejectReason).
    pub status: i32,
    /// What the peer sent along, padded; empty where there is none.
    pub private_data: PrivateData,
    /// When it was taken in.
    pub at: Instant,
}

/// An event in its slot, with what else it brings.
pub(super) struct Arrived {
    pub(super) event: CmEvent,
    pub(super) offer: Option<Offer>,
    pub(super) bound: Option<Bound>,
    pub(super) group: Option<Group>,
    pub(super) child: Option<CmId>,
}

/// The events of one id that nobody has asked for yet.
#[derive(Default)]
pub(super) struct Slot {
    events: Mutex<VecDeque<Arrived>>,
    /// The most requests that it holds; 0 unless it is a listener's.
    requests: AtomicUsize,
    dropped: AtomicU64,
    ended: AtomicBool,
    /// Those who wait for one as tasks do.
    pub(super) tasks: Tasks,
}

/// What one id can hold besides requests: more than a connection ever has.
const MOST: usize = 64;

impl Slot {
    /// One more. Beyond what there is room for it is dropped, and with it the id of a request, which so is
    /// refused: a peer cannot fill our memory. Nor can he keep other news out: that has room of its own. Those who
    /// wait are woken by the caller, once it holds no lock.
    pub(super) fn push(&self, raw: RawEvent) {
        let kind = CmEventType::from_raw(raw.kind);
        if matches!(
            kind,
            CmEventType::DISCONNECTED | CmEventType::DEVICE_REMOVAL | CmEventType::TIMEWAIT_EXIT
        ) {
            self.ended.store(true, Ordering::Release);
        }
        let data = raw.connection.as_ref().map(|offer| offer.private_data.clone());
        let arrived = Arrived {
            event: CmEvent {
                kind,
                status: raw.status,
                private_data: PrivateData::received(data.unwrap_or_default()),
                at: Instant::now(),
            },
            offer: raw.connection,
            bound: raw.bound,
            group: raw.group,
            child: raw.child,
        };
        let requests = self.requests.load(Ordering::Relaxed);
        let most = match kind {
            CmEventType::CONNECT_REQUEST => requests,
            _ => requests + MOST,
        };
        let mut events = lock(&self.events);
        if events.len() < most {
            events.push_back(arrived);
            drop(events);
        } else {
            drop(events);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many requests it is to hold.
    pub(super) fn hold(&self, most: usize) {
        self.requests.store(most.max(1), Ordering::Relaxed);
    }

    /// How many there was no room for.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The connection has ended, or the device is to be removed.
    pub(super) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The oldest event that is wanted; the others stay.
    pub(super) fn take(&self, wanted: impl Fn(CmEventType) -> bool) -> Option<Arrived> {
        let mut events = lock(&self.events);
        let at = events.iter().position(|arrived| wanted(arrived.event.kind))?;
        events.remove(at)
    }

    /// Whether such an event is there.
    pub(super) fn has(&self, wanted: impl Fn(CmEventType) -> bool) -> bool {
        lock(&self.events).iter().any(|arrived| wanted(arrived.event.kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: CmEventType) -> RawEvent {
        let (status, connection, child, bound, group) = (0, None, None, None, None);
        RawEvent { key: 1, kind: kind.raw(), status, connection, child, bound, group }
    }

    #[test]
    fn events_are_found_in_any_order_and_others_stay() {
        let slot = Slot::default();
        let kinds = [
            CmEventType::from_raw(77),
            CmEventType::ESTABLISHED,
            CmEventType::DISCONNECTED,
            CmEventType::ESTABLISHED,
        ];
        kinds.into_iter().for_each(|kind| slot.push(event(kind)));
        assert!(slot.ended());
        assert!(!slot.has(|kind| kind == CmEventType::REJECTED));
        let take = |wanted| slot.take(|kind| kind == wanted).map(|arrived| arrived.event.kind);
        assert_eq!(take(CmEventType::DISCONNECTED), Some(CmEventType::DISCONNECTED));
        assert_eq!(take(CmEventType::DISCONNECTED), None);
        let left: Vec<_> =
            std::iter::from_fn(|| slot.take(|_| true)).map(|arrived| arrived.event.kind).collect();
        assert_eq!(left, [kinds[0], kinds[1], kinds[3]]);
    }

    #[test]
    fn more_than_there_is_room_for_is_dropped_and_counted() {
        let slot = Slot::default();
        slot.hold(2);
        (0..5).for_each(|_| slot.push(event(CmEventType::CONNECT_REQUEST)));
        assert_eq!(slot.dropped(), 3);
        slot.push(event(CmEventType::DEVICE_REMOVAL));
        assert!(
            slot.has(|kind| kind == CmEventType::DEVICE_REMOVAL),
            "though it is full of requests"
        );
        assert_eq!(std::iter::from_fn(|| slot.take(|_| true)).count(), 3);
        (0..100).for_each(|_| slot.push(event(CmEventType::from_raw(77))));
        assert_eq!(slot.dropped(), 3 + 100 - (2 + MOST) as u64);
    }
}
