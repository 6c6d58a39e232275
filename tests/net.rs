//! The host's side on a real kernel: each test in a network namespace of its own.
//!
//! A test starts this program once more, with only that test, under `unshare`: so it may do what
//! it likes, and needs root or a kernel that gives namespaces to everybody. Where it gets none, it
//! fails.

#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use rdma_verbs::{AddressScope, CacheStats, HostNet, Interface, NetSnapshot, Uevents};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};

/// Set in the program that runs inside.
const INSIDE: &str = "RDMA_VERBS_TEST_INSIDE";
/// How long the kernel may take to tell of what a command did.
const PATIENCE: Duration = Duration::from_secs(10);

/// Root may make a network namespace as it is; another user is root in a user namespace of his own,
/// which the kernel lets nobody make in a chroot.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs the body of the test of this name in a fresh network namespace.
fn in_namespace(test: &str, body: impl FnOnce()) {
    let as_root: &[&str] = &["--net"];
    inside(test, if is_root() { as_root } else { &["--user", "--map-root-user", "--net"] }, body);
}

/// Runs the body of the test of this name under `unshare` with these arguments.
fn inside(test: &str, arguments: &[&str], body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some_and(|name| name == test) {
        return body();
    }
    let output = Command::new("unshare")
        .args(arguments)
        .arg(std::env::current_exe().expect("own path"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, test)
        .output()
        .expect("unshare (util-linux) is needed");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "unshare {arguments:?}: {}; this test needs namespaces: root, or user namespaces for \
         everybody\n{stdout}{stderr}",
        output.status
    );
}

/// `ip` (iproute2) with these words.
fn ip(words: &str) {
    let output = Command::new("ip")
        .args(words.split_whitespace())
        .output()
        .or_else(|_| Command::new("/usr/sbin/ip").args(words.split_whitespace()).output())
        .expect("ip (iproute2) is needed");
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn open() -> HostNet {
    HostNet::open().expect("netlink")
}

fn stats(host: &HostNet) -> CacheStats {
    host.interfaces().stats()
}

/// Checks until the snapshot is as wanted.
fn until(host: &HostNet, wanted: &str, is_so: impl Fn(&NetSnapshot) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        let net = host.interfaces().checked().expect("checked");
        if is_so(&net) {
            return;
        }
        assert!(Instant::now() < end, "no {wanted}: {net:#?}");
        readable(host, Duration::from_millis(100));
    }
}

/// Whether it is readable, or becomes so in this time.
fn readable(socket: &impl AsFd, patience: Duration) -> bool {
    let timeout = Timespec::try_from(patience).expect("a short time");
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).expect("poll") == 1
}

/// Takes in what is still being told of earlier commands: a namespace takes a while to settle.
fn settle(host: &HostNet) {
    while readable(host, Duration::from_millis(200)) {
        host.interfaces().checked().expect("checked");
    }
    host.interfaces().checked().expect("checked");
}

#[test]
fn addresses_come_and_go() {
    in_namespace("addresses_come_and_go", || {
        let host = open();
        let before = host.interfaces().cached().to_arc();
        let lo = before.by_name("lo").expect("lo");
        assert!(lo.is_loopback() && !lo.is_up());
        let ifindex = lo.ifindex();
        assert!(before.addresses().is_empty());

        // A command that has returned has been told of.
        ip("address add 192.0.2.1/24 dev lo");
        assert!(!host.interfaces().cached().is_local(ifindex, address("192.0.2.1")));
        let after = host.interfaces().checked().expect("checked").to_arc();
        assert_eq!(after.local_prefix(ifindex, address("192.0.2.1")), Some(24));
        assert_eq!(after.generation(), before.generation() + 1);
        assert!(before.addresses().is_empty(), "a snapshot stays as it is");
        assert_eq!(after.by_ip(address("192.0.2.1")).count(), 1);
        assert_eq!(host.interfaces().cached().generation(), after.generation());

        ip("address add 2001:db8::1/64 dev lo");
        until(&host, "IPv6 address", |net| {
            let local = net.local(ifindex, address("2001:db8::1"));
            local.is_some_and(|a| a.scope() == AddressScope::UNIVERSE && a.prefix_len() == 64)
        });
        ip("address add 10.0.0.1 peer 10.0.0.2/30 dev lo");
        let net = host.interfaces().checked().expect("checked");
        assert!(net.is_local(ifindex, address("10.0.0.1")));
        assert!(!net.is_local(ifindex, address("10.0.0.2")), "that is the far end");

        ip("address del 192.0.2.1/24 dev lo");
        assert!(host.interfaces().cached().is_local(ifindex, address("192.0.2.1")));
        let net = host.interfaces().checked().expect("checked");
        assert!(!net.is_local(ifindex, address("192.0.2.1")));

        ip("link set lo up");
        until(&host, "lo that is up", |net| {
            let up = net.by_ifindex(ifindex).is_some_and(|lo| lo.is_up() && lo.is_running());
            up && net.is_local(ifindex, address("127.0.0.1"))
                && net.local_prefix(ifindex, address("::1")) == Some(128)
        });
        // Down and up again: the kernel takes the IPv6 addresses away with the first.
        ip("link set lo down");
        until(&host, "lo that is down", |net| net.by_ifindex(ifindex).is_some_and(|l| !l.is_up()));
    });
}

#[test]
fn interfaces_come_go_and_change() {
    in_namespace("interfaces_come_go_and_change", || {
        let host = open();
        ip("link add left address 52:54:00:12:34:56 type veth peer name right");
        until(&host, "pair", |net| net.by_name("left").is_some() && net.by_name("right").is_some());
        let net = host.interfaces().cached();
        let left = net.by_name("left").expect("it is there");
        let ifindex = left.ifindex();
        assert_eq!(left.hw_addr().map(|a| a.to_string()).as_deref(), Some("52:54:00:12:34:56"));
        assert_eq!((left.kind(), left.mtu(), left.is_up()), (Some("veth"), 1500, false));
        assert_eq!(left.lower(), None, "the other end is not below");

        ip("link add over link left type macvlan");
        ip("link add bridge0 type bridge");
        ip("link set right master bridge0");
        until(&host, "links between them", |net| {
            let master = net.by_name("right").and_then(Interface::master);
            net.by_name("over").and_then(Interface::lower) == Some(ifindex)
                && master.is_some()
                && master == net.by_name("bridge0").map(Interface::ifindex)
        });

        ip("link set left mtu 9000");
        ip("link property add dev left altname a-name-longer-than-fifteen-bytes");
        until(&host, "MTU and alternative name", |net| {
            net.by_name("a-name-longer-than-fifteen-bytes").map(Interface::mtu) == Some(9000)
        });
        ip("link set left name port0");
        until(&host, "renamed interface", |net| {
            net.by_name("left").is_none()
                && net.by_name("port0").map(Interface::ifindex) == Some(ifindex)
        });

        ip("link set port0 up");
        ip("link set right up");
        // Its link-local address is tentative at first: told of, and told of again.
        until(&host, "usable link-local address", |net| {
            let running =
                net.by_ifindex(ifindex).is_some_and(|port| port.is_up() && port.is_running());
            let of = net.addresses_of(ifindex);
            running && of.iter().any(|a| a.scope() == AddressScope::LINK && a.is_usable())
        });

        ip("link del port0");
        until(&host, "interface gone", |net| {
            net.by_ifindex(ifindex).is_none()
                && net.by_name("over").is_none()
                && net.by_name("right").is_none()
                && net.addresses_of(ifindex).is_empty()
        });
    });
}

/// Another host on the link has the address: it cannot be used.
#[test]
fn a_duplicate_address_is_told() {
    in_namespace("a_duplicate_address_is_told", || {
        let host = open();
        ip("link add left type veth peer name right");
        ip("link set right up");
        ip("link set left up");
        ip("address add 2001:db8::7/64 dev right nodad");
        ip("address add 2001:db8::7/64 dev left");
        until(&host, "duplicate", |net| {
            net.by_ip(address("2001:db8::7")).any(|a| a.is_duplicate() && !a.is_usable())
        });
        ip("address add 2001:db8::8/64 dev right preferred_lft 0");
        until(&host, "deprecated address", |net| {
            net.by_ip(address("2001:db8::8")).any(|a| a.is_deprecated())
        });
    });
}

#[test]
fn a_burst_is_one_read() {
    in_namespace("a_burst_is_one_read", || {
        let host = open();
        settle(&host);
        let before = stats(&host);
        for last in 1..=100 {
            ip(&format!("address add 198.51.100.{last}/32 dev lo"));
        }
        assert!(host.interfaces().cached().addresses().is_empty());
        assert!(readable(&host, PATIENCE));
        assert_eq!(host.process_events().expect("events"), 100);
        assert!(!readable(&host, Duration::ZERO));
        assert_eq!(host.interfaces().cached().addresses().len(), 100);
        let after = stats(&host);
        assert_eq!(after.refreshes, before.refreshes + 1);
        assert_eq!(after.events, before.events + 100);
        assert_eq!(host.lost(), 0);
        // Nothing new: from memory.
        let hits = after.hits;
        host.interfaces().checked().expect("checked");
        assert_eq!(stats(&host).refreshes, after.refreshes);
        assert_eq!(stats(&host).hits, hits + 1);
    });
}

/// Of more notifications than there is room for the kernel drops the rest.
#[test]
fn an_overflow_is_recovered() {
    in_namespace("an_overflow_is_recovered", || {
        let host = open();
        settle(&host);
        sockopt::set_socket_recv_buffer_size(&host, 1).expect("SO_RCVBUF");
        let before = stats(&host);
        for last in 1..=100 {
            ip(&format!("address add 198.51.100.{last}/32 dev lo"));
        }
        assert_eq!(host.interfaces().checked().expect("checked").addresses().len(), 100);
        assert!(host.lost() > 0, "the buffer was too large for this test");
        let after = stats(&host);
        assert!(after.events - before.events < 100, "{after:?}");
        assert_eq!(after.refreshes, before.refreshes + 1);
        // And what comes then is told again.
        ip("address del 198.51.100.100/32 dev lo");
        assert_eq!(host.interfaces().checked().expect("checked").addresses().len(), 99);
    });
}

/// More than one part of a dump, while another thread changes what is dumped: whatever `checked`
/// says after a command returned includes what it did.
#[test]
fn a_large_table_that_changes_while_it_is_read() {
    in_namespace("a_large_table_that_changes_while_it_is_read", || {
        let batch: String = (0..4000)
            .map(|n| format!("address add 10.1.{}.{}/32 dev lo\n", n / 250, n % 250 + 1))
            .collect();
        let file = std::env::temp_dir().join(format!("rdma-verbs-net-{}", std::process::id()));
        std::fs::write(&file, batch).expect("a temporary file");
        ip(&format!("-batch {}", file.display()));
        std::fs::remove_file(&file).expect("the temporary file");
        let host = open();
        assert_eq!(host.interfaces().cached().addresses().len(), 4000);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for _ in 0..200 {
                    let fresh = host.interfaces().fresh().expect("a read");
                    // One at most is on its way.
                    assert!((4000..=4001).contains(&fresh.addresses().len()));
                }
            });
            let mut changes = 0;
            while !reader.is_finished() || changes < 20 {
                ip("address add 192.0.2.1/24 dev lo");
                let there = host.interfaces().checked().expect("checked");
                assert!(there.is_local(1, address("192.0.2.1")));
                ip("address del 192.0.2.1/24 dev lo");
                let gone = host.interfaces().checked().expect("checked");
                assert!(!gone.is_local(1, address("192.0.2.1")));
                changes += 1;
            }
            reader.join().expect("every read was whole");
        });
    });
}

/// A user without any rights, who may not even enlarge the buffer.
#[test]
fn an_ordinary_user_may() {
    let as_root: &[&str] = &["--net"];
    let arguments = if is_root() { as_root } else { &["--user", "--net"] };
    inside("an_ordinary_user_may", arguments, || {
        if is_root() {
            // This thread only, and for good: root's rights go with root's number.
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
        }
        let host = open();
        assert!(host.interfaces().checked().expect("checked").by_name("lo").is_some());
        assert_eq!(Uevents::open().expect("uevents").process_events().expect("drained"), 0);
        let refused = Command::new("ip").args(["link", "set", "lo", "up"]).output();
        assert!(!refused.expect("ip").status.success(), "this user has rights after all");
    });
}

/// Messages of processes, and the kernel's about other devices, are taken and passed over.
#[test]
fn uevents_of_no_concern() {
    inside("uevents_of_no_concern", &["--net"], || {
        let uevents = Uevents::open().expect("uevents");
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::KOBJECT_UEVENT),
        )
        .expect("a socket");
        let forged = b"add@/devices/x/infiniband/rxe7\0ACTION=add\0\
            DEVPATH=/devices/x/infiniband/rxe7\0SUBSYSTEM=infiniband\0";
        let everybody = SocketAddrNetlink::new(0, 1);
        rustix::net::sendto(&socket, forged, SendFlags::empty(), &everybody).expect("root may");
        assert!(readable(&uevents, PATIENCE), "it did not arrive");
        assert_eq!(uevents.process_events().expect("drained"), 0);
        assert!(!readable(&uevents, Duration::ZERO));

        // The kernel's own, of an interface here.
        ip("link add left type veth peer name right");
        assert!(readable(&uevents, PATIENCE), "the kernel tells of interfaces");
        assert_eq!(uevents.process_events().expect("drained"), 0);

        // Of more than there is room for, what was dropped may have been an RDMA device.
        sockopt::set_socket_recv_buffer_size(&uevents, 1).expect("SO_RCVBUF");
        for _ in 0..20 {
            ip("link add more type veth peer name less");
            ip("link del more");
        }
        assert!(uevents.process_events().expect("drained") > 0);
        assert!(uevents.lost() > 0);
    });
}
