//! Tables that change under the program: events, checked lookups, rows that move.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::time::Duration;

use rdma_verbs::{Context, Error, EventSubject, EventType, Gid, GidEntry, PortNum, Wanted};

use super::raw::Raw;
use super::rig::{Rig, ip, ip_batch, wait_until};

/// The row of an address by a checked lookup.
fn checked(context: &Context, address: IpAddr) -> Option<GidEntry> {
    context.gids().checked().expect("a checked lookup").by_ip(address).next().copied()
}

/// An address of the rig's own range, number `host`.
fn address(rig: &Rig, host: u8) -> IpAddr {
    Ipv4Addr::new(198, 18, rig.number(), host).into()
}

fn add(rig: &Rig, address: IpAddr) {
    ip(&["addr", "add", &format!("{address}/{}", width(address)), "dev", &rig.netdev]);
}

fn delete(rig: &Rig, address: IpAddr) {
    ip(&["addr", "del", &format!("{address}/{}", width(address)), "dev", &rig.netdev]);
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[test]
fn checked_follows_what_changes_and_cached_does_not() {
    let rig = Rig::new();
    let context = rig.open();
    let address = address(&rig, 1);
    assert_eq!(checked(&context, address), None);
    add(&rig, address);
    wait_until("the address is found", || checked(&context, address).is_some());
    assert!(context.gids().cached().find(&Wanted::Ip(address)).is_ok());
    delete(&rig, address);
    assert!(context.gids().cached().find(&Wanted::Ip(address)).is_ok(), "memory only");
    wait_until("the address is gone", || checked(&context, address).is_none());
    assert!(context.gids().stats().events >= 2);
}

/// Without a change `checked` reads no table.
#[test]
fn checked_without_a_change_answers_from_memory() {
    let rig = Rig::new();
    let context = rig.open();
    rig.add_addresses(&context, 1);
    // The events of what was added are still to come in.
    wait_until("all is quiet", || {
        let before = context.gids().stats().refreshes;
        context.gids().checked().expect("a checked lookup");
        context.gids().stats().refreshes == before
    });
    let before = context.gids().stats();
    for _ in 0..1000 {
        context.gids().checked().expect("a checked lookup");
    }
    let after = context.gids().stats();
    assert_eq!((after.refreshes, after.misses), (before.refreshes, before.misses));
    assert_eq!(after.hits, before.hits + 1000);
}

/// Two hundred events are one read, or a few: never two hundred.
#[test]
fn a_burst_is_one_refresh() {
    let rig = Rig::new();
    let context = rig.open();
    let commands: String = (1..=200)
        .map(|host| format!("addr add {}/32 dev {}\n", address(&rig, host), rig.netdev))
        .collect();
    ip_batch(&commands);
    // Beside the crate's own reader, which takes the events in.
    wait_until("all rows are there", || {
        let rows = crate::seam::open(&rig.device);
        let mut buffer = vec![crate::sys::abi::ibv_gid_entry::ZERO; 1024];
        rows.query_gid_table(&mut buffer).expect("the table call") == 201
    });
    let before = context.gids().stats();
    assert_eq!(context.gids().checked().expect("a checked lookup").rows().len(), 201);
    let after = context.gids().stats();
    assert_eq!(after.refreshes, before.refreshes + 1);
    assert!(after.events >= before.events + 200, "{after:?}");
}

/// Events tell the port, and reach a subscriber though a lookup took them in.
#[test]
fn a_subscriber_gets_what_a_lookup_took_in() {
    let rig = Rig::new();
    let context = rig.open();
    let subscribe = || context.subscribe().expect("a queue");
    let (one, two) = (subscribe(), subscribe());
    add(&rig, address(&rig, 1));
    wait_until("the address is found", || checked(&context, address(&rig, 1)).is_some());
    for queue in [&one, &two] {
        let event = queue.next_event().expect("its own copy");
        assert_eq!(event.kind, EventType::GID_CHANGE);
        assert_eq!(event.subject, EventSubject::Port(Some(PortNum::FIRST)));
        assert_eq!(queue.lost(), 0);
    }
}

/// A program's own loop: nothing there never blocks, and what comes makes the descriptor readable.
#[test]
fn a_loop_of_ones_own() {
    use rustix::event::{PollFd, PollFlags, poll};
    let rig = Rig::new();
    let context = rig.open();
    wait_until("all is quiet", || context.process_events().expect("events") == 0);
    let readable = |wait: Duration| {
        let mut fds = [PollFd::from_borrowed_fd(context.as_fd(), PollFlags::IN)];
        let wait = rustix::event::Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: wait.subsec_nanos().into(),
        };
        poll(&mut fds, Some(&wait)).expect("poll") == 1
    };
    assert!(!readable(Duration::ZERO));
    add(&rig, address(&rig, 1));
    assert!(readable(Duration::from_secs(10)));
    assert!(context.process_events().expect("events") >= 1);
    assert!(context.gids().cached().find(&Wanted::Ip(address(&rig, 1))).is_ok());
}

/// A lookup on another thread takes the events in: the loop is woken all the same, and what it did not
/// ask for is true too.
#[test]
fn a_loop_is_woken_by_what_others_took_in() {
    use rustix::event::{PollFd, PollFlags, poll};
    let rig = Rig::new();
    let context = rig.open();
    wait_until("all is quiet", || context.process_events().expect("events") == 0);
    add(&rig, address(&rig, 1));
    // Not of GIDs: so the GID table is not read by it.
    wait_until("the P_Key lookup took the event in", || {
        context.pkeys().expect("P_Keys").checked().expect("a lookup");
        context.gids().stats().events > 0
    });
    assert!(context.gids().cached().find(&Wanted::Ip(address(&rig, 1))).is_err());
    let wait = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
    let woken = poll(&mut [PollFd::new(&context, PollFlags::IN)], Some(&wait)).expect("poll");
    assert_eq!(woken, 1);
    context.process_events().expect("events");
    assert!(context.gids().cached().find(&Wanted::Ip(address(&rig, 1))).is_ok());
}

/// The same address removed and added while a queue pair holds its row: the slot stays taken, and
/// the address comes back elsewhere.
#[test]
fn an_address_comes_back_at_another_index() {
    let rig = Rig::new();
    let context = rig.open();
    let raw = Raw::open(&rig.device);
    let wanted = address(&rig, 1);
    add(&rig, wanted);
    wait_until("the address is found", || checked(&context, wanted).is_some());
    let old = checked(&context, wanted).expect("it was found");
    let held = raw.qp_in_rtr(old.gid_index().expect("a low index"), old.gid()).expect("RTR");
    delete(&rig, wanted);
    wait_until("the address is gone", || checked(&context, wanted).is_none());
    add(&rig, wanted);
    wait_until("the address is back", || checked(&context, wanted).is_some());
    let new = checked(&context, wanted).expect("it was found");
    assert_ne!(new.index(), old.index(), "the queue pair holds the slot");
    assert!(new.generation() > old.generation());

    // The old index is refused, with from and to.
    assert_eq!(context.query_row(PortNum::FIRST, old.index()).expect("a row"), None);
    let Err(Error::GidMoved(moved)) = context.confirm_row(&old) else { panic!("it moved") };
    assert_eq!((moved.row, moved.there, moved.now), (old, None, Some(new)));
    let expected = format!(
        "{}: {old} is no longer there: it moved to index {}, and index {} is empty",
        rig.device,
        new.index(),
        old.index()
    );
    assert_eq!(moved.to_string(), expected);
    assert!(context.confirm_row(&new).is_ok());

    // Using the old row goes on with the new one.
    let mut tried = Vec::new();
    let (second, used) = context
        .with_row(&old, |index| {
            tried.push(u32::from(index.get()));
            raw.qp_in_rtr(index, old.gid()).map_err(|errno| verb("ibv_modify_qp", errno))
        })
        .expect("it is found again");
    assert_eq!((tried, used), (vec![old.index(), new.index()], new));
    drop((held, second));
}

fn verb(verb: &'static str, errno: rdma_verbs::Errno) -> Error {
    Error::Verb { verb, object: rdma_verbs::Object::default(), errno }
}

/// The rows of two addresses swapped between lookup and use: the device takes the old index without
/// a word, and the read after it catches that.
#[test]
fn swapped_rows_are_caught_after_the_use() {
    let rig = Rig::new();
    let context = rig.open();
    let raw = Raw::open(&rig.device);
    let (a, b) = (address(&rig, 1), address(&rig, 2));
    add(&rig, a);
    wait_until("the first is found", || checked(&context, a).is_some());
    add(&rig, b);
    wait_until("the second is found", || checked(&context, b).is_some());
    let (row_a, row_b) =
        (checked(&context, a).expect("found"), checked(&context, b).expect("found"));
    let mut tried = Vec::new();
    let (ah, used) = context
        .with_row(&row_a, |index| {
            if tried.is_empty() {
                // Between lookup and use: both go, and come back the other way round.
                delete(&rig, a);
                delete(&rig, b);
                wait_until("both are gone", || {
                    context.gids().fresh().expect("a read").rows().len() == 1
                });
                add(&rig, b);
                wait_until("b is back", || checked(&context, b).is_some());
                add(&rig, a);
                wait_until("a is back", || checked(&context, a).is_some());
                assert_eq!(checked(&context, b).map(|row| row.index()), Some(row_a.index()));
            }
            tried.push(u32::from(index.get()));
            // Succeeds either way: the index holds a GID.
            raw.ah(index, row_a.gid()).map_err(|errno| verb("ibv_create_ah", errno))
        })
        .expect("it is found again");
    assert_eq!(tried, [row_a.index(), row_b.index()]);
    assert_eq!((used.index(), used.gid()), (row_b.index(), row_a.gid()));
    drop(ah);
}

/// A row that has gone is an error that says so, after a bounded number of attempts.
#[test]
fn a_row_that_has_gone_cannot_be_used() {
    let rig = Rig::new();
    let context = rig.open();
    let raw = Raw::open(&rig.device);
    rig.add_addresses(&context, 1);
    let row = checked(&context, address(&rig, 1)).expect("found");
    delete(&rig, address(&rig, 1));
    wait_until("the address is gone", || checked(&context, address(&rig, 1)).is_none());
    let mut tries = 0;
    let used = context.with_row(&row, |index| {
        tries += 1;
        raw.ah(index, row.gid()).map_err(|errno| verb("ibv_create_ah", errno))
    });
    let Err(Error::GidMoved(moved)) = used else { panic!("it cannot be used") };
    assert_eq!((tries, moved.now), (1, None));
    assert!(moved.to_string().contains("it has gone from the port, and index"), "{moved}");
}

/// A row beyond 255 is seen and found, and using it is refused.
#[test]
fn a_row_beyond_255_cannot_be_used() {
    let rig = Rig::new();
    let context = rig.open();
    rig.add_addresses(&context, 250);
    let more: String = (1..=20)
        .map(|host| format!("addr add 198.19.{}.{host}/32 dev {}\n", rig.number(), rig.netdev))
        .collect();
    ip_batch(&more);
    wait_until("all rows are there", || {
        context.gids().checked().expect("a lookup").rows().len() == 271
    });
    let rows = context.gids().cached();
    let row = rows.row(PortNum::FIRST, 260).expect("a row");
    assert_eq!(row.gid_index(), None);
    let error = context.with_row(row, |_| Ok(())).expect_err("8 bits").to_string();
    let expected =
        format!("{} port 1 index 260 cannot be used: verbs carry an index of 0 to 255", rig.device);
    assert_eq!(error, expected);
}

/// A static IPv6 address goes with the link and does not come back.
#[test]
fn an_ipv6_row_goes_with_the_link() {
    let rig = Rig::new();
    let context = rig.open();
    let wanted: IpAddr = "2001:db8::5".parse().expect("an address");
    add(&rig, wanted);
    wait_until("the address is found", || checked(&context, wanted).is_some());
    let queue = context.subscribe().expect("a queue");
    ip(&["link", "set", &rig.netdev, "down"]);
    wait_until("the row is gone", || checked(&context, wanted).is_none());
    ip(&["link", "set", &rig.netdev, "up"]);
    wait_until("the port is up again", || {
        context.process_events().expect("events");
        std::iter::from_fn(|| queue.next_event()).any(|event| event.kind == EventType::PORT_ACTIVE)
    });
    let error = context.gids().checked().expect("a lookup").find(&Wanted::Ip(wanted)).map(|_| ());
    assert!(matches!(error, Err(Error::GidNotFound { .. })), "{error:?}");
}

/// A new MAC address makes a new default GID. (The interface may keep the old link-local address,
/// which then has a row of its own.)
#[test]
fn a_new_mac_address_is_a_new_default_gid() {
    let rig = Rig::new();
    let context = rig.open();
    rig.add_addresses(&context, 2);
    let mac = format!("02:00:00:00:{:02x}:77", rig.number());
    let eui64 = 0x0000_00ff_fe00_0077 | u64::from(rig.number()) << 8;
    let default = Gid::from_parts(0xfe80 << 48, eui64);
    ip(&["link", "set", &rig.netdev, "address", &mac]);
    wait_until("row 0 is the new default GID", || {
        let rows = context.gids().checked().expect("a lookup");
        rows.row(PortNum::FIRST, 0).is_some_and(|row| row.gid() == default)
    });
    wait_until("the addresses are back", || {
        let rows = context.gids().checked().expect("a lookup");
        [1, 2].iter().all(|host| !rows.by_ip(address(&rig, *host)).is_empty())
    });
    wait_until("all is quiet", || context.process_events().expect("events") == 0);
    let checked: Vec<_> = context.gids().checked().expect("a lookup").rows().to_vec();
    assert_eq!(checked, context.gids().fresh().expect("a read").rows());
}

/// A table that is full: 1024 rows.
#[test]
fn a_full_table() {
    let rig = Rig::new();
    let context = rig.open();
    let commands: String = (0..1100)
        .map(|n| format!("addr add 198.19.{}.{}/32 dev {}\n", 128 + n / 256, n % 256, rig.netdev))
        .collect();
    ip_batch(&commands);
    let len = || context.gids().checked().expect("a lookup").rows().len();
    wait_until("the table is full", || len() == 1024);
    let port = context.gids().cached().ports()[0];
    assert_eq!((port.live(), port.capacity()), (1024, 1024));
}

#[test]
fn the_pkey_table_is_read_once() {
    let rig = Rig::new();
    let context = rig.open();
    let pkeys = context.pkeys().expect("the first read");
    let table = pkeys.cached();
    let table = table.port(PortNum::FIRST).expect("port 1");
    assert_eq!(table.rows(), [rdma_verbs::PKey::DEFAULT]);
    assert_eq!(table.index_of(rdma_verbs::PKey::DEFAULT), Some(0));
    context.pkeys().expect("from memory").checked().expect("a lookup");
    assert_eq!(pkeys.stats().refreshes, 1);
}
