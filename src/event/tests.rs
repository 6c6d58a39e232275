//! Events made by hand: those that rxe does not raise, second ports, numbers of tomorrow.

use std::collections::VecDeque;

use super::*;

/// Events waiting to be taken, and what was acknowledged, in order.
#[derive(Default)]
struct Fake {
    waiting: Mutex<VecDeque<Result<RawEvent, Errno>>>,
    endless: AtomicBool,
}

impl Fake {
    /// An event of a port.
    fn raise(&self, kind: EventType, port: i32) {
        // The library writes 4 of the 8 bytes: the rest is whatever was there.
        let mut element = [0xef; 8];
        element[..4].copy_from_slice(&port.to_ne_bytes());
        lock(&self.waiting).push_back(Ok(RawEvent { kind: kind.raw(), element }));
    }

    /// An event of an object at this address.
    fn raise_at(&self, kind: EventType, address: u64) {
        let element = address.to_ne_bytes();
        lock(&self.waiting).push_back(Ok(RawEvent { kind: kind.raw(), element }));
    }
}

impl EventSource for Fake {
    fn next_event(&self, show: &mut dyn FnMut(RawEvent)) -> Result<bool, Errno> {
        let next = lock(&self.waiting).pop_front();
        match next {
            Some(Ok(raw)) => {
                show(raw);
                if self.endless.load(Ordering::Relaxed) {
                    lock(&self.waiting).push_back(Ok(raw));
                }
                Ok(true)
            }
            Some(Err(errno)) => Err(errno),
            None => Ok(false),
        }
    }
}

type Table = Arc<Kept<u32>>;

/// A reader with a kept GID table and a kept P_Key table, both read already.
fn events() -> (Arc<Fake>, Events<Fake>, Table, Table) {
    let fake = Arc::new(Fake::default());
    let events = Events::new("fake0".into(), Arc::clone(&fake));
    let (gids, pkeys) = (Arc::new(Kept::new(0)), Arc::new(Kept::new(0)));
    events.announce_gids_to(&gids);
    events.announce_pkeys_to(&pkeys);
    for kept in [&gids, &pkeys] {
        kept.refresh(|_| Ok(None)).expect("a read");
    }
    (fake, events, gids, pkeys)
}

fn register(events: &Events<Fake>, address: u64) -> Arc<ObjectEvents> {
    events.register(|| Ok((address, ()))).expect("it is made").0
}

#[test]
fn nothing_there_is_no_error() {
    let (_, events, gids, _) = events();
    assert_eq!(events.drain().expect("no event is no error"), 0);
    assert!(gids.is_current());
}

#[test]
fn each_event_concerns_its_own_tables() {
    for (kind, changes_gids, changes_pkeys) in [
        (EventType::GID_CHANGE, true, false),
        (EventType::PKEY_CHANGE, false, true),
        (EventType::PORT_ACTIVE, true, true),
        (EventType::PORT_ERR, true, true),
        (EventType::LID_CHANGE, true, true),
        (EventType::SM_CHANGE, true, true),
        (EventType::CLIENT_REREGISTER, true, true),
        (EventType::CQ_ERR, false, false),
        (EventType::QP_FATAL, false, false),
        (EventType::from_raw(4711), false, false),
    ] {
        let (fake, events, gids, pkeys) = events();
        fake.raise(kind, 1);
        assert_eq!(events.drain().expect("one event"), 1);
        assert_eq!(!gids.is_current(), changes_gids, "{kind}");
        assert_eq!(!pkeys.is_current(), changes_pkeys, "{kind}");
    }
}

/// The event names the port; whoever else drained it, a subscriber is told the right one.
#[test]
fn ports_are_told_apart_and_odd_ones_are_none() {
    let (fake, events, gids, _) = events();
    let queue = events.subscribe().expect("a queue");
    for port in [2, 1, 0, 77_000, -1] {
        fake.raise(EventType::GID_CHANGE, port);
    }
    assert_eq!(events.drain().expect("five events"), 5);
    let told: Vec<_> = std::iter::from_fn(|| queue.next_event()).map(|e| e.subject).collect();
    let port = |number| EventSubject::Port(PortNum::new(number));
    assert_eq!(told, [port(2), port(1), port(0), port(0), port(0)]);
    assert_eq!(gids.stats().events, 5, "an odd port is still a change");
}

/// A pointer is never read as a port, whatever its low bits are.
#[test]
fn object_events_reach_their_owner_whoever_drained() {
    let (fake, events, gids, _) = events();
    let queue = events.subscribe().expect("a queue");
    let (one, two) = (register(&events, 0x1000), register(&events, 0x2001));
    assert_ne!(one.id(), two.id());
    fake.raise_at(EventType::QP_LAST_WQE_REACHED, 0x2001);
    fake.raise_at(EventType::QP_FATAL, 0x2001);
    fake.raise_at(EventType::QP_FATAL, 0x2001);
    fake.raise_at(EventType::SRQ_LIMIT_REACHED, 0x3000);
    assert_eq!(events.drain().expect("four events"), 4);
    assert_eq!(one.take(), 0);
    assert_eq!(two.take(), 1 << 16 | 1 << 1);
    assert_eq!(two.take(), 0, "taken once");
    assert!(gids.is_current());
    let told: Vec<_> = std::iter::from_fn(|| queue.next_event()).map(|e| e.subject).collect();
    let two_s = EventSubject::Object(Some(two.id()));
    assert_eq!(told, [two_s, two_s, two_s, EventSubject::Object(None)]);
}

/// An address may be another object's by the time the first is unregistered.
#[test]
fn an_address_used_again_is_the_new_objects() {
    let (fake, events, ..) = events();
    let old = register(&events, 0x1000);
    let new = register(&events, 0x1000);
    events.unregister(0x1000, &old);
    fake.raise_at(EventType::CQ_ERR, 0x1000);
    events.drain().expect("one event");
    assert_eq!((old.take(), new.take()), (0, 1));
    events.unregister(0x1000, &new);
    fake.raise_at(EventType::CQ_ERR, 0x1000);
    events.drain().expect("one event");
    assert_eq!(new.take(), 0);
}

#[test]
fn thousands_of_events_are_one_change_and_bounded() {
    let (fake, events, gids, _) = events();
    let queue = events.subscribe().expect("a queue");
    for _ in 0..3000 {
        fake.raise(EventType::GID_CHANGE, 1);
    }
    assert_eq!(events.drain().expect("a burst"), 3000);
    let mut reads = 0;
    gids.check(|_| {
        reads += 1;
        Ok(None)
    })
    .expect("a read");
    assert!(gids.is_current());
    assert_eq!((reads, gids.stats().events), (1, 3000));
    assert_eq!(queue.lost(), 3000 - 1024);
    assert_eq!(std::iter::from_fn(|| queue.next_event()).count(), 1024);
}

/// A source that never runs dry holds nobody for ever, and what may wait behind is not missed.
#[test]
fn a_flood_ends_and_counts_as_a_change() {
    let (fake, events, gids, _) = events();
    fake.endless.store(true, Ordering::Relaxed);
    fake.raise_at(EventType::COMM_EST, 0x1000);
    assert_eq!(events.drain().expect("a flood"), MOST_AT_ONCE);
    assert!(!gids.is_current(), "a GID_CHANGE may be behind what was taken");
}

#[test]
fn a_device_that_failed_says_so_from_then_on() {
    let (fake, events, ..) = events();
    let queue = events.subscribe().expect("a queue");
    fake.raise(EventType::DEVICE_FATAL, 0);
    for _ in 0..2 {
        let error = events.drain().expect_err("the device has failed");
        assert!(matches!(error, Error::DeviceFatal { .. }), "{error}");
    }
    assert_eq!(queue.next_event().map(|e| e.subject), Some(EventSubject::Device));
}

#[test]
fn a_failed_read_is_told_and_the_next_goes_on() {
    let (fake, events, gids, _) = events();
    lock(&fake.waiting).push_back(Err(Errno::EIO));
    fake.raise(EventType::GID_CHANGE, 1);
    let error = events.drain().expect_err("the descriptor fails").to_string();
    assert!(error.starts_with("ibv_get_async_event on fake0: EIO"), "{error}");
    assert_eq!(events.drain().expect("one event"), 1);
    assert!(!gids.is_current());
}

/// Also on a device where nothing ever happens.
#[test]
fn a_subscriber_that_went_is_forgotten() {
    let (fake, events, ..) = events();
    for _ in 0..100 {
        drop(events.subscribe().expect("a queue"));
    }
    assert_eq!(events.state().subscribers.len(), 1);
    let kept = events.subscribe().expect("a queue");
    fake.raise(EventType::GID_CHANGE, 1);
    events.drain().expect("one event");
    assert_eq!(events.state().subscribers.len(), 1);
    assert_eq!(kept.next_event().map(|e| e.to_string()).as_deref(), Some("GID_CHANGE port 1"));
    assert!(kept.next_event().is_none());
}

/// A value that went is not announced to any more, and not held.
#[test]
fn a_listener_that_went_is_forgotten() {
    let (fake, events, gids, pkeys) = events();
    drop(pkeys);
    assert_eq!(Arc::weak_count(&gids), 1);
    fake.raise(EventType::PORT_ERR, 1);
    events.drain().expect("one event");
    assert_eq!(events.state().listeners.len(), 1);
    assert!(!gids.is_current());
}

/// A queue's descriptor is readable exactly while there are events.
#[test]
fn a_queue_wakes_whoever_waits_on_it() {
    use rustix::event::{PollFd, PollFlags, poll};
    let (fake, events, ..) = events();
    let queue = events.subscribe().expect("a queue");
    let readable = || {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&queue, PollFlags::IN)], Some(&now)).expect("poll") == 1
    };
    assert!(!readable());
    for _ in 0..2 {
        fake.raise(EventType::GID_CHANGE, 1);
    }
    events.drain().expect("two events");
    for left in [true, false] {
        assert!(readable());
        queue.next_event().expect("an event");
        assert_eq!(readable(), left);
    }
}
