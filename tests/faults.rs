//! What no device at hand does, on one in memory: the crate's public calls with the interposer of
//! `tests/interposer` preloaded. Runs on any machine.

mod interposed;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use interposed::{faults, interposed};
use rdma_verbs::{
    Context, DeviceList, Errno, Error, EventSubject, EventType, GidDirectory, GidType, LinkLayer,
    Mtu, PKey, PortNum, PortState,
};

fn open(name: &str) -> Context {
    let list = DeviceList::new().expect("a list");
    list.find(name).expect("it is listed").open().expect("it can be opened")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// The events there are, in a queue made before `raise`.
fn events_of(context: &Context, raise: impl FnOnce()) -> Vec<(EventType, EventSubject)> {
    let queue = context.subscribe().expect("a queue");
    raise();
    let _ = context.process_events();
    std::iter::from_fn(|| queue.next_event()).map(|event| (event.kind, event.subject)).collect()
}

/// The verb and the errno of an error that is one of a verb.
fn verb_of(error: &Error) -> (&'static str, Errno) {
    match error {
        Error::Verb { verb, errno, .. } => (*verb, *errno),
        error => panic!("{error:?}"),
    }
}

interposed! {
    fn both_devices_are_listed_and_tell_of_themselves() {
        let list = DeviceList::new().expect("a list");
        let names: Vec<&str> = list.iter().map(|device| device.name()).collect();
        assert_eq!(names, ["loop0", "empty0"]);
        assert_eq!(list.absence(), None);
        for (device, index) in list.iter().zip(1..) {
            assert_eq!(device.index(), Some(index));
            let context = device.open().expect("it can be opened");
            let limits = context.limits();
            assert_eq!(limits.node_guid, device.guid());
            assert_eq!((limits.ports, limits.max_sge, limits.completion_vectors), (1, 32, 4));
            let port = context.port(PortNum::FIRST).expect("it has a port");
            assert_eq!(port.state, PortState::ACTIVE);
            assert_eq!(port.link_layer, LinkLayer::ETHERNET);
            assert_eq!((port.active_mtu, port.gid_table_len), (Mtu::B4096, 16));
            let pkeys = context.pkeys().expect("a table").cached();
            assert_eq!(pkeys.ports()[0].rows(), [PKey::new(0xffff)]);
        }
        drop(list);
        assert_eq!(faults::all_live(), []);
    }

    fn gids_are_found_and_followed() {
        let context = open("loop0");
        let gids = context.gids();
        let snapshot = gids.fresh().expect("a table");
        let row = *snapshot.by_ip(ip("192.0.2.10")).next().expect("it is there");
        assert_eq!((row.index(), row.gid_type()), (1, GidType::ROCE_V2));
        assert_eq!(row.ifindex(), Some(1));
        drop(snapshot);
        faults::gid_move(1, 9);
        let events = events_of(&context, || ());
        let change = |port| (EventType::GID_CHANGE, EventSubject::Port(port));
        assert_eq!(events, [change(Some(PortNum::FIRST)); 2]);
        let moved = gids.cached();
        assert_eq!(moved.by_ip(ip("192.0.2.10")).next().map(|row| row.index()), Some(9));
        drop(moved);
        let asked = context.query_row(PortNum::FIRST, 1).expect("a row");
        assert_eq!(asked, None);
        // Gone at all, and the lookup that checks sees it.
        faults::gid_move(9, 16);
        let checked = gids.checked().expect("a table");
        assert!(checked.by_ip(ip("192.0.2.10")).next().is_none());
    }

    fn a_directory_has_both_devices() {
        let directory = GidDirectory::open().expect("a directory");
        let snapshot = directory.cached();
        for (address, device) in [("192.0.2.10", "loop0"), ("192.0.2.20", "empty0")] {
            let mut rows = snapshot.by_ip(ip(address));
            let found = rows.next().and_then(|row| snapshot.device_of(row)).map(|d| d.name());
            assert_eq!(found, Some(device));
        }
        drop((snapshot, directory));
        assert_eq!(faults::all_live(), []);
    }

    fn events_of_any_number_and_of_any_port_are_typed() {
        let context = open("loop0");
        let raise = |kind, element| assert_eq!(faults::raise(Some("loop0"), kind, element), 1);
        let events = events_of(&context, || {
            raise(4711, u64::MAX);
            raise(-5, 0);
            raise(9, 300);
            raise(10, 0);
            raise(17, 1);
            raise(1, 0xdead_beef);
            raise(0, 0);
        });
        let event = |kind, subject| (EventType::from_raw(kind), subject);
        assert_eq!(
            events,
            [
                event(4711, EventSubject::Unknown),
                event(-5, EventSubject::Unknown),
                event(9, EventSubject::Port(None)),
                event(10, EventSubject::Port(None)),
                event(17, EventSubject::Port(Some(PortNum::FIRST))),
                event(1, EventSubject::Object(None)),
                event(0, EventSubject::Object(None)),
            ]
        );
        assert_eq!(faults::count("ibv_ack_async_event"), 7);
        // Another device's context saw nothing of it.
        let other = open("empty0");
        assert_eq!(other.process_events().expect("none"), 0);
    }

    fn a_device_that_failed_says_so_ever_after() {
        let context = open("loop0");
        let events = events_of(&context, || {
            faults::raise(None, 8, 0);
        });
        assert_eq!(events, [(EventType::DEVICE_FATAL, EventSubject::Device)]);
        for _ in 0..2 {
            let error = context.process_events().expect_err("the device has failed");
            assert!(matches!(error, Error::DeviceFatal { .. }), "{error:?}");
        }
        drop(context);
        assert_eq!(faults::all_live(), []);
    }

    fn what_fails_while_opening_is_told_and_nothing_is_left() {
        let list = DeviceList::new().expect("a list");
        let device = list.find("loop0").expect("it is listed");
        for (fault, verb) in [
            ("ibv_open_device", "ibv_open_device"),
            ("ibv_query_device_ex", "ibv_query_device_ex"),
            ("ibv_query_port", "ibv_query_port"),
            ("ibv_query_gid_table", "ibv_query_gid_table"),
        ] {
            for errno in [libc::ENOMEM, libc::EIO, 4711] {
                faults::fail(fault, errno);
                let error = device.open().expect_err(fault);
                assert_eq!(verb_of(&error), (verb, Errno::from_raw(errno)));
                assert_eq!(faults::live("context"), 0, "{fault}");
            }
        }
        for errno in [libc::EACCES, libc::EPERM] {
            faults::fail("ibv_open_device", errno);
            let error = device.open().expect_err("no permission");
            assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
        }
        assert_eq!(faults::count("ibv_close_device"), 9, "what was opened was closed");
        device.open().expect("it can be opened after all");
    }

    fn an_old_kernel_and_an_old_provider_are_served() {
        // No extended query, then no table call: the old ones serve.
        faults::fail_every("ibv_query_device_ex", libc::EOPNOTSUPP, 1, None);
        faults::fail_every("ibv_query_gid_table", libc::EOPNOTSUPP, 1, None);
        let context = open("loop0");
        assert_eq!(context.limits().ports, 1);
        assert_eq!(context.gids().cached().rows().len(), 3);
        assert!(faults::count("ibv_query_device") > 0 && faults::count("ibv_query_gid_ex") > 0);
    }

    fn a_list_that_cannot_be_had_is_an_error_and_no_subsystem_is_none() {
        faults::fail("ibv_get_device_list", libc::ENOMEM);
        let error = DeviceList::new().expect_err("no memory");
        assert!(matches!(error, Error::DeviceList { errno: Errno::ENOMEM }), "{error:?}");
        faults::fail("ibv_get_device_list", libc::ENOSYS);
        assert!(DeviceList::new().expect("an empty list").is_empty());
    }

    fn a_reader_that_fails_loses_no_event() {
        let context = open("loop0");
        faults::raise(Some("loop0"), 9, 1);
        faults::fail("ibv_get_async_event", libc::EIO);
        let queue = context.subscribe().expect("a queue");
        let error = context.process_events().expect_err("it cannot be read");
        assert_eq!(verb_of(&error), ("ibv_get_async_event", Errno::EIO));
        assert_eq!(context.process_events().expect("it can be"), 1);
        assert_eq!(queue.next_event().map(|event| event.kind), Some(EventType::PORT_ACTIVE));
    }

    fn a_flood_of_events_does_not_hold_a_lookup() {
        let context = open("loop0");
        for _ in 0..10_000 {
            faults::raise(Some("loop0"), 18, 1);
        }
        let begin = Instant::now();
        context.gids().checked().expect("a table");
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
        let mut taken = 4096;
        while let Ok(count @ 1..) = context.process_events() {
            taken += count;
        }
        assert_eq!(taken, 10_000);
    }
}

/// A test of a name that does not exist must not pass for one.
#[test]
#[should_panic(expected = "there is no test")]
fn a_name_without_a_test_is_told() {
    interposed::inner("preloaded::no_such_test");
}
