//! Pools, buffers, shared buffers and exposed memory, on the interposer's device. Runs on any machine.

mod interposed;

use std::sync::atomic::Ordering;
use std::thread;

use interposed::{faults, interposed};
use rdma_verbs::{
    Buffer, DeviceList, Errno, Error, Exposed, PageSize, Pool, ProtectionDomain, RemoteAccess,
};

fn pd() -> ProtectionDomain {
    let list = DeviceList::new().expect("a list");
    let device = list.find("loop0").expect("it is listed");
    ProtectionDomain::new(&device.open().expect("it can be opened")).expect("a protection domain")
}

/// What was asked, and the limits.
fn out_of_range(error: &Error) -> (u64, u64, u64) {
    match error {
        Error::OutOfRange { asked, least, most, .. } => (*asked, *least, *most),
        error => panic!("{error:?}"),
    }
}

interposed! {
    fn buffers_are_taken_and_come_back() {
        let pool = Pool::new(&pd(), 100, 3).expect("a pool");
        assert_eq!((pool.count(), pool.available(), pool.buffer_size()), (3, 3, 100));
        let mut buffers: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((buffers.len(), pool.available()), (3, 0));
        for (buffer, byte) in buffers.iter_mut().zip(1..) {
            assert!(buffer.iter().all(|byte| *byte == 0) && buffer.len() == 100);
            assert_eq!(buffer.as_ptr().addr() % 64, 0);
            buffer.fill(byte);
        }
        for (buffer, byte) in buffers.iter().zip(1..) {
            assert!(buffer.iter().all(|there| *there == byte), "nobody else's");
        }
        buffers[1].set_len(7).expect("less");
        assert_eq!(out_of_range(&buffers[1].set_len(101).expect_err("more")), (101, 0, 100));
        assert_eq!(out_of_range(&buffers[1].fill_from(&[9; 101]).expect_err("more")), (101, 0, 100));
        assert_eq!(buffers[1][..], [2; 7]);
        buffers[1].fill_from(b"").expect("none");
        assert!(buffers[1].is_empty());
        drop(buffers.remove(1));
        let again = pool.take().expect("it came back");
        assert_eq!((again.len(), again.capacity()), (100, 100));
    }

    fn the_pool_goes_with_the_last_of_its_buffers() {
        let pd = pd();
        let pool = Pool::new(&pd, 64, 4).expect("a pool");
        let shared = pool.take().expect("one").freeze();
        let (one, two) = (pool.take().expect("one"), pool.take().expect("one"));
        drop(pool);
        let part = shared.slice(60..).expect("inside");
        drop((one, shared));
        assert_eq!(faults::live("mr"), 1);
        thread::spawn(move || drop(two)).join().expect("it ends");
        assert_eq!((faults::live("mr"), part.len()), (1, 4));
        drop(part);
        assert_eq!((faults::live("mr"), faults::live("mr_bytes")), (0, 0));
        drop(pd);
        assert_eq!(faults::all_live(), []);
    }

    fn many_threads_take_and_drop() {
        let pool = Pool::new(&pd(), 64, 5).expect("a pool");
        thread::scope(|scope| {
            for mark in 1..=4_u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let mut mine: Vec<Buffer> = (0..round % 3).filter_map(|_| pool.take()).collect();
                        mine.iter_mut().for_each(|buffer| buffer.fill(mark));
                        assert!(mine.iter().all(|buffer| buffer.iter().all(|byte| *byte == mark)));
                    }
                });
            }
        });
        assert_eq!(pool.available(), 5);
    }

    fn memory_that_the_user_brings() {
        let pd = pd();
        // A vector with more room than bytes, a boxed slice that ends within the last buffer's stride, pages.
        let mut vector = Vec::with_capacity(1000);
        vector.extend((0..320).map(|at| at as u8));
        let start = vector.as_ptr();
        let pool = Pool::from_memory(&pd, vector, 100).expect("a pool");
        assert_eq!((pool.count(), pool.buffer_size(), faults::live("mr_bytes")), (2, 100, 320));
        let mut buffers: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((buffers[0][99], buffers[1][0], buffers[1].len()), (99, 128, 100));
        buffers.iter_mut().for_each(|buffer| buffer.fill(7));
        let one = buffers.pop().expect("two");
        drop(buffers);
        let failed = pool.into_memory().expect_err("a buffer is out");
        assert!(matches!(failed.error, Error::InUse { .. }), "{failed}");
        assert_eq!((failed.pool.available(), one.len()), (1, 100), "as it was");
        drop(one);
        faults::fail("ibv_dereg_mr", libc::EBUSY);
        let failed = failed.pool.into_memory().expect_err("not deregistered");
        assert!(matches!(failed.error, Error::Verb { errno: Errno::EBUSY, .. }), "{failed}");
        assert_eq!(failed.pool.take().map(|buffer| buffer.len()), Some(100), "it works still");
        let vector = failed.pool.into_memory().expect("all are back").into_vec().expect("a vector");
        assert_eq!((vector.as_ptr(), vector.len(), vector.capacity()), (start, 320, 1000));
        assert_eq!((vector[99], vector[100], vector[228]), (7, 100, 228));
        assert_eq!(faults::live("mr"), 0);
        let pool = Pool::from_memory(&pd, vec![0; 228].into_boxed_slice(), 100).expect("a pool");
        assert_eq!(pool.count(), 2);
        // Dropped as it is: freed by whoever is last.
        let buffer = pool.take().expect("one");
        drop(pool);
        assert_eq!(faults::live("mr"), 1);
        drop(buffer);
        assert_eq!(faults::live("mr"), 0);
        let plain = Exposed::new(&pd, 5000, RemoteAccess::READ).expect("memory");
        let plain = plain.revoke().expect("nobody uses it");
        let pool = Pool::from_memory(&pd, plain, 2500).expect("a pool");
        assert_eq!(pool.count(), 1, "the second would be 60 bytes too long");
        let region = pool.into_memory().expect("none is out").into_vec().expect_err("it is pages");
        assert_eq!(region.into_plain().expect("they are").len(), 5000);
        // Bad input, and a device that does not: the memory comes back.
        for (len, size) in [(0, 1), (10, 0), (10, 11), (0, 0), (10, usize::MAX)] {
            let failed = Pool::from_memory(&pd, vec![3; len], size).expect_err("it cannot be");
            assert_eq!((out_of_range(&failed.error).0, failed.memory.len()), (size as u64, len));
        }
        faults::fail("ibv_reg_mr", libc::EFAULT);
        let failed = Pool::from_memory(&pd, vec![3; 10], 10).expect_err("not registered");
        assert!(matches!(failed.error, Error::Verb { errno: Errno::EFAULT, .. }), "{failed}");
        assert_eq!(failed.memory[..], [3; 10]);
        // Of a pool's own pages, whole ones.
        let pool = Pool::new(&pd, 64, 2).expect("a pool");
        assert_eq!(pool.into_memory().expect("none is out").len(), 4096);
        drop((failed, pd));
        assert_eq!(faults::all_live(), []);
    }

    fn shared_buffers() {
        let pool = Pool::new(&pd(), 64, 1).expect("a pool");
        let mut buffer = pool.take().expect("one");
        buffer.fill_from(b"0123456789").expect("it fits");
        let shared = buffer.freeze();
        assert_eq!(&shared.slice(2..=4).expect("inside")[..], b"234");
        assert_eq!(&shared.slice(..).expect("inside").slice(8..).expect("inside")[..], b"89");
        assert!(shared.slice(10..).expect("its end").is_empty());
        for (from, to) in [(0, 11), (11, 11), (7, 3), (usize::MAX, usize::MAX)] {
            assert!(shared.slice(from..to).is_err(), "{from}..{to}");
        }
        assert!(shared.slice(..=usize::MAX).is_err());
        let part = shared.slice(3..5).expect("inside");
        let both = shared.try_unfreeze().expect_err("there is another owner");
        assert_eq!((pool.available(), &both[..1]), (0, &b"0"[..]));
        drop(both);
        let whole = part.try_unfreeze().expect("the only one");
        assert_eq!(&whole[..], b"0123456789");
        let again = whole.freeze();
        drop((again.clone(), again));
        assert_eq!(pool.available(), 1);
    }

    fn sizes_and_limits() {
        let pd = pd();
        for (size, count) in [(0, 1), (1, 0), ((1 << 31) + 1, 1), (1, 1 << 24), (usize::MAX, usize::MAX)] {
            let error = Pool::new(&pd, size, count).expect_err("it cannot be");
            assert_eq!(out_of_range(&error).1, 1, "{size} {count}");
        }
        let error = Pool::new(&pd, 1 << 31, (1 << 24) - 2).expect_err("more than there is");
        assert!(matches!(error, Error::OutOfRange { .. } | Error::Host { .. }), "{error:?}");
        assert_eq!(out_of_range(&Exposed::new(&pd, 0, RemoteAccess::READ).expect_err("none")).0, 0);
        faults::memory_limit(8192);
        let first = Pool::new(&pd, 64, 64).expect("a page");
        let error = Pool::new(&pd, 4096, 2).expect_err("too much in all");
        assert!(matches!(error, Error::NoMemory { asked: 8192, .. }), "{error:?}");
        let error = Exposed::new(&pd, 5000, RemoteAccess::READ).expect_err("too much in all");
        assert!(matches!(error, Error::NoMemory { asked: 5000, .. }), "{error:?}");
        drop(first);
        Pool::new(&pd, 4096, 2).expect("there is room again");
        faults::fail("ibv_reg_mr", libc::EFAULT);
        let error = Pool::new(&pd, 64, 1).expect_err("it cannot be registered");
        assert!(matches!(error, Error::Verb { errno: Errno::EFAULT, .. }), "{error:?}");
        // Of whichever pages there are.
        let huge = Pool::builder(&pd, 1 << 20, 3).huge_pages(true);
        faults::memory_limit(u64::MAX);
        let huge = huge.build().expect("a pool");
        let mut buffer = huge.take().expect("one");
        buffer[(1 << 20) - 1] = 1;
        assert!(huge.pages() >= PageSize::Base);
        drop((huge, buffer));
        drop(pd);
        assert_eq!(faults::all_live(), []);
    }

    fn exposed_memory_by_copies_and_atomics() {
        let pd = pd();
        let exposed = Exposed::new(&pd, 100, RemoteAccess::WRITE).expect("memory");
        // Every offset and length around the words.
        let all: Vec<u8> = (0..100).collect();
        for offset in 0..24 {
            for len in 0..40 {
                exposed.write(0, &[0xff; 100]).expect("inside");
                exposed.write(offset, &all[..len]).expect("inside");
                let mut there = [0; 100];
                exposed.read(0, &mut there).expect("inside");
                assert_eq!(there[offset..offset + len], all[..len]);
                assert!(there[..offset].iter().chain(&there[offset + len..]).all(|byte| *byte == 0xff));
                let mut part = vec![0; len];
                exposed.read(offset, &mut part).expect("inside");
                assert_eq!(part, all[..len]);
            }
        }
        exposed.atomic_u64(8).expect("inside").store(u64::from_ne_bytes(*b"abcdefgh"), Ordering::Relaxed);
        assert_eq!(exposed.atomic_u8(9).expect("inside").load(Ordering::Acquire), b'b');
        for offset in [93, 96, 100, usize::MAX] {
            assert!(exposed.atomic_u64(offset).is_err() && exposed.range(offset, 8).is_err());
            assert!(exposed.read(offset, &mut [0; 8]).is_err() && exposed.write(offset, &[0; 8]).is_err());
        }
        assert!(matches!(exposed.atomic_u64(4), Err(Error::Unaligned { at: 4, to: 8, .. })));
        assert!(exposed.atomic_u8(99).is_ok() && exposed.atomic_u8(100).is_err());
        let range = exposed.range(100, 0).expect("its end");
        let error = exposed.revoke().expect_err("a range of it is there");
        drop(range);
        faults::fail("ibv_dereg_mr", libc::EBUSY);
        let error = error.exposed.revoke().expect_err("not deregistered");
        assert!(matches!(error.error, Error::Verb { verb: "ibv_dereg_mr", errno: Errno::EBUSY, .. }));
        let mut plain = error.exposed.revoke().expect("deregistered");
        assert_eq!((plain.len(), faults::live("mr")), (100, 0));
        plain.fill(1);
        drop((plain, pd));
        assert_eq!(faults::all_live(), []);
    }
}
