//! How much memory can be registered, and of which pages it is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rdma_verbs::{PageSize, PoolBuilder};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::rig::alone;
use crate::teardown::cycles::resources;

const NOBODY: u32 = 65534;
const DEVICE: &str = "RDMA_TEST_DEVICE";
const LIMIT: u64 = 64 << 10;

#[test]
fn sizes() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    for (size, count) in [(0, 1), (1, 0), ((1 << 31) + 1, 1), (usize::MAX, 1), (64, 1 << 24)] {
        let error = refused(Pool::new(&ground.pd, size, count));
        let Error::OutOfRange { asked, most, .. } = error else { panic!("{error}") };
        assert!(asked == size as u64 || asked == count as u64, "{asked}");
        assert!(asked == 0 || asked > most, "{asked} of {most}");
    }
    let error = refused(Pool::new(&ground.pd, 1 << 31, 1 << 23));
    assert!(matches!(error, Error::Host { .. } | Error::OutOfRange { .. }), "{error}");
    let error = refused(Exposed::new(&ground.pd, 0, everything()));
    assert!(matches!(error, Error::OutOfRange { asked: 0, least: 1, .. }), "{error}");
    let exposed = Exposed::new(&ground.pd, 100, everything()).expect("memory");
    for (offset, len) in [(100, 1), (0, 101), (usize::MAX, 2), (1, usize::MAX)] {
        let error = refused(exposed.range(offset, len));
        assert!(matches!(error, Error::OutOfRange { most: 100, .. }), "{error}");
    }
}

/// Runs the ignored test of this name as another user, who may open the device; it is told the device's name
/// ([`open_as_another`]).
pub(crate) fn as_another_user(rig: &Rig, test: &str) {
    let node = rig.listed().node();
    fs::set_permissions(&node, fs::Permissions::from_mode(0o666)).expect("chmod");
    let me = std::env::current_exe().expect("own path");
    let output = Command::new(me)
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(DEVICE, &rig.device)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .expect("the child starts");
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}

/// From now on the other user may lock so much. Gives the name of the device that he may open.
pub(crate) fn may_lock(limit: u64) -> String {
    let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
    setrlimit(Resource::Memlock, limit).expect("less can be asked for");
    std::env::var(DEVICE).expect("the parent names a device")
}

/// What the other user opens, who may lock so much from now on.
pub(crate) fn open_as_another(limit: u64) -> ProtectionDomain {
    let device = may_lock(limit);
    let list = rdma_verbs::DeviceList::new().expect("devices can be listed");
    let context = list.find(&device).expect("it is listed").open().expect("it opens");
    ProtectionDomain::new(&context).expect("a PD")
}

/// Another user may lock so much, and what is told names it.
#[test]
fn locked_memory() {
    as_another_user(&Rig::new(), "limits::memory::with_little_to_lock");
}

#[test]
#[ignore = "the other test of this file runs it as another user"]
fn with_little_to_lock() {
    let pd = open_as_another(LIMIT);
    let too_much = |error: Error, bytes: u64| {
        assert!(error.to_string().contains(&LIMIT.to_string()), "{error}");
        assert!(error.to_string().contains(&bytes.to_string()), "{error}");
        let Error::NoMemory { asked, limit, .. } = error else { panic!("{error}") };
        assert_eq!((asked, limit), (bytes, Some(LIMIT)));
    };
    too_much(refused(Pool::new(&pd, 1 << 20, 1)), 1 << 20);
    too_much(refused(Exposed::new(&pd, 1 << 20, everything())), 1 << 20);
    // All together count; what was refused does not; and what goes makes room.
    let pool = || Pool::new(&pd, 32 << 10, 1);
    for _ in 0..3 {
        let (first, second) = (pool().expect("32 KiB of 64"), pool().expect("64 KiB of 64"));
        too_much(refused(pool()), 32 << 10);
        drop(first);
        let third = pool().expect("there is room again");
        let posted = third.take().expect("a buffer");
        drop((second, third));
        too_much(refused(Pool::new(&pd, 64 << 10, 1)), 64 << 10);
        drop(posted);
        Pool::new(&pd, 64 << 10, 1).expect("all of it");
    }
    assert_eq!(getrlimit(Resource::Memlock).current, Some(LIMIT));
}

/// A message through buffers of the pool that begin and end anywhere.
fn assert_works(ground: &Ground, pool: &Pool) {
    let mut cq = ground.cq(16);
    let (a, mut b) = (ground.queue_pair(&cq, 4), ground.queue_pair(&cq, 4));
    let _first = pool.take().expect("a buffer");
    b.recv_queue().post(Receive::new(pool.take().expect("a buffer"))).expect("room");
    let (mut a, _b) = join(a, b, &ground.options());
    let mut buffer = pool.take().expect("a buffer");
    buffer.fill(0xa5);
    a.send_queue().post(Send::new(buffer).signaled()).expect("room");
    let seen = completions(&mut cq, 2);
    assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{seen:?}");
    for seen in &seen {
        assert_eq!(bytes(&seen.memory[0]).len(), pool.buffer_size());
        assert!(bytes(&seen.memory[0]).iter().all(|byte| *byte == 0xa5));
    }
}

/// One line of `/proc/meminfo`, as a number.
pub(crate) fn meminfo(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("it can be read");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel tells it");
    line.split_whitespace().next().expect("a number").parse().expect("a number")
}

/// Sets so many huge pages aside.
pub(crate) fn reserve(count: u64) {
    fs::write("/proc/sys/vm/nr_hugepages", count.to_string()).expect("the kernel takes it");
    assert_eq!(meminfo("HugePages_Total:"), count);
}

#[test]
fn huge_pages() {
    let _alone = alone();
    let rig = Rig::within_alone();
    let ground = Ground::new(&rig);
    // 300 KiB each: 8 of them begin or end in the first huge page and the second.
    let build = |builder: PoolBuilder<'_>| builder.build().expect("a pool");
    let builder = || Pool::builder(&ground.pd, 300 << 10, 8);
    reserve(0);
    let pool = build(builder().huge_pages(true));
    assert_ne!(pool.pages(), PageSize::Huge, "there are none");
    assert_works(&ground, &pool);
    drop(pool);
    reserve(4);
    let pool = build(builder().huge_pages(true));
    assert_eq!(pool.pages(), PageSize::Huge);
    assert_eq!(meminfo("HugePages_Free:"), 2, "2.4 MiB in two of four");
    assert_works(&ground, &pool);
    let rest = build(builder().huge_pages(true));
    assert_eq!((rest.pages(), meminfo("HugePages_Free:")), (PageSize::Huge, 0));
    let more = build(builder().huge_pages(true));
    assert_ne!(more.pages(), PageSize::Huge, "none is left");
    assert_works(&ground, &more);
    drop((pool, rest, more));
    assert_eq!(meminfo("HugePages_Free:"), 4, "all of them are back");
    let plain = build(builder());
    assert_eq!((plain.pages(), meminfo("HugePages_Free:")), (PageSize::Base, 4));
    drop(plain);
    reserve(0);
}

/// How many memory regions `rdma resource` counts.
pub(crate) fn regions(rig: &Rig) -> u32 {
    let text = resources(&rig.device);
    let mut words = text.split_whitespace().skip_while(|word| *word != "mr");
    words.nth(1).expect("it counts them").parse().expect("a number")
}

/// A pool is one registration, however many buffers it has; thousands of regions come and go.
#[test]
fn many_registrations() {
    const MANY: usize = 4000;
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    assert!(ground.context.limits().max_mr as usize > MANY);
    let pool = Pool::new(&ground.pd, 4096, MANY).expect("a pool");
    let buffers: Vec<_> = (0..MANY).map(|_| pool.take().expect("a buffer")).collect();
    assert_eq!(regions(&rig), 1);
    drop((buffers, pool));
    assert_eq!(regions(&rig), 0);
    let exposed: Vec<Exposed> = (0..MANY)
        .map(|number| {
            let made = Exposed::new(&ground.pd, 4096, everything());
            made.unwrap_or_else(|error| panic!("region {number}: {error}"))
        })
        .collect();
    assert_eq!(regions(&rig), MANY as u32);
    drop(exposed);
    assert_eq!(regions(&rig), 0);
    assert_eq!(ground.context.leaks(), 0);
}
