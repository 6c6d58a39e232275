//! Exposed memory that others have too, on rxe: a shared mapping of a file that two look into, and what is no
//! dma-buf to it.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Read as _, Seek, SeekFrom, Write as _};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_verbs::wr::{Inline, Read, Write};
use rdma_verbs::{Errno, Error, Exposed, RemoteAccess, WcStatus};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::rc::{Pair, completions, everything};
use super::rig::Rig;

const LEN: usize = 8192;

/// A shared mapping of a file, which says when it is unmapped.
struct Shared {
    start: NonNull<u8>,
    gone: Arc<AtomicBool>,
}

// SAFETY: the mapping is owned, and reached by nobody through this.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped below with this length, once.
        unsafe { munmap(self.start.as_ptr().cast(), LEN) }.expect("it was mapped");
        self.gone.store(true, Ordering::Relaxed);
    }
}

/// A file in memory, and a mapping of it.
fn shared() -> (File, Shared) {
    let file = File::from(memfd_create("shared", MemfdFlags::CLOEXEC).expect("a file"));
    file.set_len(LEN as u64).expect("its length");
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping anew, where the kernel chooses.
    let start =
        unsafe { mmap(std::ptr::null_mut(), LEN, rights, MapFlags::SHARED, file.as_fd(), 0) };
    let start = NonNull::new(start.expect("it can be mapped").cast()).expect("not NULL");
    (file, Shared { start, gone: Arc::default() })
}

#[test]
fn a_shared_mapping() {
    let rig = Rig::new();
    let mut pair = Pair::new(&rig);
    let (mut file, mapping) = shared();
    let (start, gone) = (mapping.start, Arc::clone(&mapping.gone));
    // SAFETY: the file stays as long as it is, and nobody has a reference to the mapping.
    let exposed = unsafe { Exposed::from_raw(&pair.pd, start, LEN, everything(), mapping) };
    let exposed = exposed.expect("memory");
    assert_eq!(exposed.len(), LEN);
    let at = exposed.remote().slice(5000, 7).expect("inside");
    pair.a.send_queue().post(Write::new(Inline(b"written"), at).signaled()).expect("room");
    assert_eq!(completions(&mut pair.cq, 1)[0].status, WcStatus::SUCCESS);
    let mut text = [0; 7];
    file.seek(SeekFrom::Start(5000)).expect("inside");
    file.read_exact(&mut text).expect("it is there");
    assert_eq!(&text, b"written", "the file has what the peer wrote");
    file.seek(SeekFrom::Start(5000)).expect("inside");
    file.write_all(b"changed").expect("the file takes it");
    exposed.read(5000, &mut text).expect("inside");
    assert_eq!(&text, b"changed", "and the memory what the file was given");
    // As local memory of a work request too.
    let range = exposed.range(0, 7).expect("inside");
    pair.a.send_queue().post(Read::new(range, at)).expect("room");
    let seen = completions(&mut pair.cq, 1);
    assert_eq!(seen[0].status, WcStatus::SUCCESS);
    let Err(failed) = exposed.release() else { panic!("a range of it is held") };
    assert!(matches!(failed.error, Error::InUse { .. }), "{failed}");
    drop(seen);
    let Err(failed) = failed.exposed.revoke() else { panic!("it is not ours alone") };
    assert!(matches!(failed.error, Error::NotSupported { .. }), "{failed}");
    assert!(!gone.load(Ordering::Relaxed));
    failed.exposed.release().expect("nobody has it");
    assert!(gone.load(Ordering::Relaxed), "unmapped when it was deregistered");
    assert_eq!(pair.pd.context().leaks(), 0);
}

#[test]
fn what_cannot_be_registered_is_let_go_of() {
    let rig = Rig::new();
    let pair = Pair::new(&rig);
    let try_it = |offset: usize, len: usize| {
        let (_, mapping) = shared();
        let gone = Arc::clone(&mapping.gone);
        // SAFETY: as above; the start is inside the mapping.
        let start = unsafe { mapping.start.add(offset) };
        // SAFETY: as above; nothing is registered of what is not mapped.
        let made =
            unsafe { Exposed::from_raw(&pair.pd, start, len, RemoteAccess::default(), mapping) };
        let error = made.expect_err("it cannot be");
        assert!(gone.load(Ordering::Relaxed), "{error}");
        error
    };
    let error = try_it(4, 8);
    assert!(matches!(error, Error::Unaligned { to: 8, .. }), "{error}");
    let error = try_it(0, 0);
    assert!(matches!(error, Error::OutOfRange { asked: 0, least: 1, .. }), "{error}");
    // Beyond the mapping, where nothing is.
    let error = try_it(0, 1 << 40);
    assert!(
        matches!(
            error,
            Error::Verb { verb: "ibv_reg_mr", .. }
                | Error::NoMemory { .. }
                | Error::OutOfRange { .. }
        ),
        "{error}"
    );
}

/// rxe of these kernels has no dma-bufs, and says so; nor is a file one.
#[test]
fn a_file_is_no_dma_buf() {
    let rig = Rig::new();
    let pair = Pair::new(&rig);
    let (file, _mapping) = shared();
    let register = |part: (u64, usize), iova| {
        // SAFETY: nothing rests on what is in the file.
        unsafe { Exposed::from_dma_buf(&pair.pd, file.as_fd(), part, iova, everything()) }
    };
    let error = register((0, LEN), 0).expect_err("it is none");
    assert!(
        matches!(
            error,
            Error::NotSupported { .. } | Error::Verb { errno: Errno::EBADF | Errno::EINVAL, .. }
        ),
        "{error}"
    );
    let error = register((0, 0), 0).expect_err("nothing");
    assert!(matches!(error, Error::OutOfRange { asked: 0, least: 1, .. }), "{error}");
    let error = register((0, LEN), u64::MAX - 100).expect_err("beyond the last address");
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
}
