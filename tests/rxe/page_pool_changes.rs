//! Streams into a page pool while their device goes away, their interface goes down and up, and their queue
//! pairs fail one after the other.

use std::fs;
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rdma_verbs::wr::{Inline, Send};
use rdma_verbs::{
    CompletionQueue, GidDirectory, PagePool, PortNum, PortState, Qpn, QueuePair, Refill,
    RefillStop, Rts, Uevents, WcStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::limits::memory::regions;
use super::page_pool::ours;
use super::rc::{Ground, join};
use super::rig::{Rig, alone, ip, wait_until};

const STREAMS: usize = 16;

/// How many packets the device has received.
fn packets(device: &str) -> u64 {
    let file = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/rcvd_pkts");
    let text = fs::read_to_string(&file).expect("rxe counts");
    text.trim().parse().expect("a number")
}

/// Waits until the example measures: before that it sends two thousand messages.
fn wait_for_traffic(device: &str) {
    let before = packets(device);
    wait_until("messages flow", || packets(device) > before + 10_000);
}

/// Whether `rdma link` lists the device.
fn is_listed(device: &str) -> bool {
    let output = Command::new("/bin/rdma").arg("link").output().expect("/bin/rdma");
    String::from_utf8_lossy(&output.stdout).contains(&format!("link {device}/"))
}

/// Waits until this is readable, or for a moment.
fn readable(source: &impl AsFd) {
    let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&wait)).expect("poll");
}

/// When the kernel tells for the first time that an RDMA device comes or goes.
fn kernel_tells(uevents: &Uevents) -> Instant {
    let begun = Instant::now();
    while uevents.process_events().expect("they can be read") == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the kernel tells nothing");
        readable(uevents);
    }
    Instant::now()
}

/// When the directory has been told that the device goes.
fn directory_tells(directory: &GidDirectory, device: &str) -> Instant {
    let begun = Instant::now();
    while directory.checked().expect("a checked lookup").device(device).is_some() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{device} is never told to go");
        readable(directory);
    }
    Instant::now()
}

fn wait_for(mut removal: Child) {
    wait_until("the removal ends", || removal.try_wait().expect("a child").is_some());
    let status = removal.wait().expect("a child");
    assert!(status.success(), "{status}");
}

/// Whichever command takes it away waits for the example, which ends as it should.
#[test]
fn a_device_that_is_removed_under_traffic() {
    let _alone = alone();
    for (streams, by_rdma) in [("1", true), ("16", true), ("4", false), ("16", false)] {
        let rig = Rig::within_alone();
        rig.add_addresses(&rig.open(), 1);
        let (device, netdev) = (rig.device.clone(), rig.netdev.clone());
        let _number = rig.leave();
        let directory = GidDirectory::open().expect("a directory");
        let uevents = Uevents::open().expect("a socket");
        uevents.process_events().expect("those of the new device");
        let place = ["--both", "-d", &device, "-n", streams, "-t", "60", "-s", "64"];
        std::thread::scope(|scope| {
            let example = scope.spawn(|| ours(&place));
            wait_for_traffic(&device);
            let kernel = scope.spawn(|| kernel_tells(&uevents));
            let removal = if by_rdma {
                Command::new("/bin/rdma").args(["link", "del", &device]).spawn()
            } else {
                Command::new("/bin/ip").args(["link", "del", &netdev]).spawn()
            };
            let told = directory_tells(&directory, &device);
            let after = told.saturating_duration_since(kernel.join().expect("no panic"));
            assert!(after < Duration::from_secs(1), "{device} was told to go after {after:?}");
            let rows = example.join().expect("no panic").expect("no error");
            for row in &rows {
                assert_eq!(row["device_gone"], true, "{row}");
                assert_eq!(row["fragments_lost"], 0, "{row}");
            }
            assert!(!rows.is_empty(), "what was measured is told");
            wait_for(removal.expect("it starts"));
        });
        assert!(!is_listed(&device));
        if by_rdma {
            ip(&["link", "del", &netdev]);
        }
    }
}

/// Streams of the example whose interface goes down: those that fail end, the others go on, and all is given
/// back; if none is left, that is an error that says why.
#[test]
fn an_interface_that_goes_down_and_up() {
    let rig = Rig::new();
    let context = rig.open();
    rig.add_addresses(&context, 1);
    let place = ["--both", "-d", &rig.device, "-n", "16", "-t", "2", "-m", "pages", "-s", "64"];
    std::thread::scope(|scope| {
        let example = scope.spawn(|| ours(&[&place[..], &["--timeout", "20"]].concat()));
        wait_for_traffic(&rig.device);
        let state = || context.port(PortNum::FIRST).expect("it can be asked").state;
        ip(&["link", "set", &rig.netdev, "down"]);
        wait_until("the port is down", || state() != PortState::ACTIVE);
        ip(&["link", "set", &rig.netdev, "up"]);
        wait_until("the port is up", || state() == PortState::ACTIVE);
        match example.join().expect("no panic") {
            Ok(rows) => {
                assert_eq!(rows.len(), 1);
                assert_eq!(
                    (&rows[0]["fragments_lost"], &rows[0]["device_gone"]),
                    (&0.into(), &false.into())
                );
                assert!(rows[0]["streams_left"].as_u64().is_some_and(|left| left > 0));
            }
            Err(error) => {
                assert!(error.contains("all 16 streams have ended, the first: "), "{error}");
                assert!(!error.contains('\n'), "{error}");
            }
        }
    });
    assert_eq!(regions(&rig), 0, "nothing is left behind");
}

/// One direction, from `a` to `b`.
struct Stream {
    /// `None` when it has ended.
    ends: Option<(QueuePair<Rts>, QueuePair<Rts>)>,
    numbers: [Qpn; 2],
    got: u64,
    /// Sends that are not complete.
    sends: u32,
    failed: Option<WcStatus>,
    /// Whether it sends.
    goes: bool,
}

/// Many of them into one pool, played by one thread.
struct Streams {
    list: Vec<Stream>,
    cq: CompletionQueue,
    pages: PagePool,
}

impl Streams {
    fn new(ground: &Ground) -> Streams {
        let cq = ground.cq(64 * STREAMS as u32);
        let builder = PagePool::builder(&ground.pd, 1024).slab_bytes(64 << 10);
        let pages = builder.floor(2).build().expect("a pool");
        let stream = |_| {
            let (a, b) = (ground.queue_pair(&cq, 16), ground.queue_pair(&cq, 16));
            let ends = join(a, b, &ground.options());
            let numbers = [ends.0.qpn(), ends.1.qpn()];
            Stream { ends: Some(ends), numbers, got: 0, sends: 0, failed: None, goes: true }
        };
        let list = (0..STREAMS).map(stream).collect();
        Streams { list, cq, pages }
    }

    /// Fills all queues, and takes in what is complete. Who failed ends.
    fn turn(&mut self) {
        let Streams { list, cq, pages } = self;
        for stream in &mut *list {
            let Some((a, b)) = &mut stream.ends else { continue };
            let Refill { stopped, .. } = b.recv_queue().refill(pages, 1, 7);
            match stopped {
                RefillStop::Full | RefillStop::NoFragments => {}
                // It was closed: it ends when all that was posted has come back.
                RefillStop::Refused(_) => {
                    if b.recv_queue().in_flight() == 0 {
                        stream.failed = Some(WcStatus::WR_FLUSH_ERR);
                    }
                    continue;
                }
                other => panic!("{other:?}: {:?}", pages.growth_failure()),
            }
            let room = b.recv_queue().in_flight().min(16);
            while stream.goes && stream.sends < room {
                let number = stream.got.to_ne_bytes();
                let send = Send::new(Inline(&number)).signaled();
                if a.send_queue().post(send).is_err() {
                    if a.send_queue().in_flight() == 0 {
                        stream.failed = Some(WcStatus::WR_FLUSH_ERR);
                    }
                    break;
                }
                stream.sends += 1;
            }
        }
        let mut drain = cq.poll().expect("it can be polled");
        while let Some(mut completion) = drain.next() {
            let (qpn, status) = (completion.qpn(), completion.status());
            let stream = list.iter_mut().find(|stream| stream.numbers.contains(&qpn));
            let stream = stream.expect("it is of one of them");
            match (completion.take_fragment(), completion.is_success()) {
                (Some(fragment), true) => {
                    assert_eq!(fragment.len(), 8);
                    stream.got += 1;
                }
                (None, true) => stream.sends -= 1,
                (_, false) => stream.failed = stream.failed.or(Some(status)),
            }
        }
        for stream in list {
            if stream.failed.is_some() {
                stream.ends = None;
            }
        }
    }

    /// Turns until it is so.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&[Stream]) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so(&self.list) {
            let got: Vec<_> = self.list.iter().map(|stream| (stream.got, stream.failed)).collect();
            assert!(Instant::now() < deadline, "in vain until {what}: {got:?}");
            self.turn();
        }
    }

    /// Until each that has not ended, and goes, has so many messages more.
    fn go_on(&mut self, more: u64) {
        let before: Vec<u64> = self.list.iter().map(|stream| stream.got).collect();
        self.until("the others go on", |list| {
            list.iter().zip(&before).all(|(stream, before)| {
                stream.failed.is_some() || !stream.goes || stream.got >= before + more
            })
        });
    }

    fn live(&self) -> usize {
        self.list.iter().filter(|stream| stream.ends.is_some()).count()
    }

    /// Ends all that is left; every fragment is back then.
    fn end(mut self, rig: &Rig, ground: &Ground) {
        for stream in &mut self.list {
            (stream.ends, stream.goes) = (None, false);
        }
        self.turn();
        let Streams { list, mut cq, mut pages } = self;
        wait_until("all is complete", || {
            let mut drain = cq.poll().expect("it can be polled");
            while drain.next().is_some() {}
            cq.room() == cq.size()
        });
        assert_eq!(pages.stats().fragments_out, 0, "every fragment came back");
        pages.shrink();
        assert_eq!((pages.stats().slabs, regions(rig)), (2, 2));
        drop((list, cq, pages));
        assert_eq!((regions(rig), ground.context.leaks()), (0, 0));
    }
}

/// To the error state one after the other, by either end: the others do not notice.
#[test]
fn queue_pairs_that_fail_one_after_the_other() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut streams = Streams::new(&ground);
    streams.go_on(20);
    for number in 0..STREAMS {
        let (a, b) = streams.list[number].ends.as_ref().expect("it goes on");
        let end = if number % 2 == 0 { b } else { a };
        end.close().expect("to ERR");
        streams.until("it has ended", |list| list[number].failed.is_some());
        assert_eq!(streams.live(), STREAMS - number - 1, "just this one");
        streams.go_on(20);
    }
    streams.end(&rig, &ground);
}

/// Those that send while the interface is down fail, as the device has it; those that do not go on when it is
/// up again.
#[test]
fn streams_whose_interface_goes_down_and_up() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut streams = Streams::new(&ground);
    streams.go_on(20);
    for stream in streams.list.iter_mut().step_by(2) {
        stream.goes = false;
    }
    streams.until("half of them have sent all", |list| {
        list.iter().step_by(2).all(|stream| stream.sends == 0)
    });
    let state = || ground.context.port(PortNum::FIRST).expect("it can be asked").state;
    ip(&["link", "set", &rig.netdev, "down"]);
    streams.until("the port is down", |_| state() != PortState::ACTIVE);
    ip(&["link", "set", &rig.netdev, "up"]);
    streams.until("the port is up", |_| state() == PortState::ACTIVE);
    let idle = || (0..STREAMS).step_by(2);
    let ended = STREAMS - streams.live();
    assert!(idle().all(|number| streams.list[number].failed.is_none()), "{ended} have ended");
    streams.list.iter_mut().for_each(|stream| stream.goes = true);
    streams.go_on(50);
    assert!(idle().all(|number| streams.list[number].ends.is_some()));
    streams.end(&rig, &ground);
}
