//! Posting on `loop0` call by call. What is told is kept until the end, and is then a chain like any other.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::{take, zeroed};
use std::ptr::null_mut;

use super::send_whole;
use crate::abi::{
    atomic, bind_mw, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_send_wr,
    ibv_sge, rdma, ud,
};
use crate::bytes;
use crate::given::misuse;
use crate::numbers::{flag, transport, wr};
use crate::verbs::Verb;
use crate::world::{World, there, world};

/// What was told of sends that are not posted yet.
#[derive(Default)]
pub(crate) struct Posting {
    /// Between `wr_start` and its end.
    begun: bool,
    requests: Vec<Told>,
}

/// A work request that was told.
struct Told {
    wr: ibv_send_wr,
    sges: Vec<ibv_sge>,
    /// What was copied, instead of a list.
    inline: Option<Box<[u8]>>,
    /// No setter told it yet.
    wants_data: bool,
    wants_address: bool,
}

// SAFETY: its pointers are C's, and the callers'; they are followed by whoever posts only.
unsafe impl Send for Told {}

impl Posting {
    pub(crate) fn is_begun(&self) -> bool {
        self.begun
    }

    /// The last work request is told in full; or the end of the program.
    fn check_last(&self, call: &str) {
        let Some(last) = self.requests.last() else { return };
        if last.wants_data {
            misuse(&format!("{call} after a work request without data: no setter told any"));
        }
        if last.wants_address {
            misuse(&format!("{call} after a datagram without ibv_wr_set_ud_addr"));
        }
    }
}

/// The posting of a queue pair; the end of the program where it has not begun.
fn begun<'a>(world: &'a mut World, qp: *mut ibv_qp_ex, call: &str) -> &'a mut Posting {
    let posting = there(&mut world.qps, qp, "queue pair").posting.as_mut();
    match posting.filter(|posting| posting.begun) {
        Some(posting) => posting,
        None => misuse(&format!("{call} without ibv_wr_start")),
    }
}

pub(crate) unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    let mut world = world();
    // It cannot fail.
    let _ = world.call(Verb::WrStart);
    let qp = there(&mut world.qps, qp, "queue pair");
    // A real one waits, for ever if it is the same thread.
    qp.outside("ibv_wr_start");
    if let Some(posting) = &mut qp.posting {
        posting.begun = true;
    }
}

pub(crate) unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    let mut world = world();
    let _ = world.call(Verb::WrAbort);
    *begun(&mut world, qp, "ibv_wr_abort") = Posting::default();
}

pub(crate) unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let mut world = world();
    let posting = begun(&mut world, qp, "ibv_wr_complete");
    posting.check_last("ibv_wr_complete");
    let mut requests = take(posting).requests;
    let mut first = null_mut();
    for told in requests.iter_mut().rev() {
        if let Some(copy) = &told.inline {
            let (addr, length) = bytes::segment_of(copy);
            // More than that is too long anyway.
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            told.sges = vec![ibv_sge { addr, length, lkey: 0 }];
        }
        told.wr.next = first;
        (told.wr.sg_list, told.wr.num_sge) = (told.sges.as_mut_ptr(), told.sges.len() as c_int);
        first = &raw mut told.wr;
    }
    // SAFETY: just linked; the last has no next.
    unsafe { send_whole(&mut world, qp.addr(), first) }
}

/// Begins a work request.
///
/// # Safety
///
/// The queue pair is there.
unsafe fn begin(
    qp: *mut ibv_qp_ex,
    call: &str,
    opcode: c_uint,
    fill: impl FnOnce(&mut ibv_send_wr),
) {
    let mut world = world();
    let datagram = there(&mut world.qps, qp, "queue pair").transport == transport::UD;
    let posting = begun(&mut world, qp, call);
    posting.check_last(call);
    // SAFETY: all zero is a value of this struct of integers, pointers and a union of them.
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    // SAFETY: it is there; whoever posts wrote both.
    unsafe {
        wr.wr_id = (&raw const (*qp).wr_id).read();
        wr.send_flags = (&raw const (*qp).wr_flags).read();
    }
    wr.opcode = opcode;
    fill(&mut wr);
    let wants_data = !matches!(opcode, wr::LOCAL_INV | wr::BIND_MW);
    let (sges, wants_address) = (Vec::new(), datagram);
    posting.requests.push(Told { wr, sges, inline: None, wants_data, wants_address });
}

/// What is called to begin a work request.
macro_rules! builders {
    ($($name:ident($($arg:ident: $type:ty),*), $opcode:ident, $fill:expr;)*) => {$(
        pub(crate) unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
            let call = concat!("ibv_", stringify!($name));
            // SAFETY: the caller has a queue pair there.
            unsafe { begin(qp, call, wr::$opcode, $fill) }
        }
    )*};
}

builders!(
    wr_send(), SEND, |_| {};
    wr_send_imm(imm: u32), SEND_WITH_IMM, |wr| wr.imm_data = imm;
    wr_send_inv(rkey: u32), SEND_WITH_INV, |wr| wr.imm_data = rkey;
    wr_local_inv(rkey: u32), LOCAL_INV, |wr| wr.imm_data = rkey;
    wr_rdma_read(rkey: u32, remote_addr: u64), RDMA_READ, |wr| {
        wr.wr.rdma = rdma { remote_addr, rkey };
    };
    wr_rdma_write(rkey: u32, remote_addr: u64), RDMA_WRITE, |wr| {
        wr.wr.rdma = rdma { remote_addr, rkey };
    };
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32), RDMA_WRITE_WITH_IMM, |wr| {
        wr.wr.rdma = rdma { remote_addr, rkey };
        wr.imm_data = imm;
    };
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64), CMP_AND_SWP, |wr| {
        wr.wr.atomic = atomic { remote_addr, compare_add: compare, swap, rkey };
    };
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64), FETCH_AND_ADD, |wr| {
        wr.wr.atomic = atomic { remote_addr, compare_add: add, swap: 0, rkey };
    };
    wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info), BIND_MW, |wr| {
        wr.bind_mw = bind_mw { mw, rkey, bind_info: info.read() };
    };
);

/// The work request that a setter is for.
fn last<'a>(world: &'a mut World, qp: *mut ibv_qp_ex, call: &str) -> &'a mut Told {
    match begun(world, qp, call).requests.last_mut() {
        Some(told) => told,
        None => misuse(&format!("{call} before any work request")),
    }
}

/// Tells the data of a work request: where it is, or a copy of it.
fn set(
    qp: *mut ibv_qp_ex,
    call: &str,
    sges: impl FnOnce() -> Vec<ibv_sge>,
    inline: Option<Box<[u8]>>,
) {
    let mut world = world();
    let told = last(&mut world, qp, call);
    if !take(&mut told.wants_data) {
        misuse(&format!("{call} for a work request that has data, or wants none"));
    }
    // The calls say it, too; but rxe goes by the flag.
    if (told.wr.send_flags & flag::INLINE != 0) != inline.is_some() {
        misuse(&format!("{call}, where IBV_SEND_INLINE in wr_flags says otherwise"));
    }
    (told.sges, told.inline) = (sges(), inline);
}

pub(crate) unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    set(qp, "ibv_wr_set_sge", || vec![ibv_sge { addr, length, lkey }], None);
}

/// # Safety
///
/// As C's: there are so many entries.
pub(crate) unsafe extern "C" fn wr_set_sge_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_sge,
) {
    let sges = || match count {
        0 => Vec::new(),
        // SAFETY: the caller has so many there.
        _ => unsafe { std::slice::from_raw_parts(list, count) }.to_vec(),
    };
    set(qp, "ibv_wr_set_sge_list", sges, None);
}

/// # Safety
///
/// As C's: so much can be read.
pub(crate) unsafe extern "C" fn wr_set_inline_data(
    qp: *mut ibv_qp_ex,
    addr: *mut c_void,
    length: usize,
) {
    let segment = (addr.expose_provenance() as u64, length as u64);
    // SAFETY: the caller's memory is there.
    let copy = unsafe { bytes::gather(&[segment]) };
    set(qp, "ibv_wr_set_inline_data", Vec::new, Some(copy));
}

/// # Safety
///
/// As C's: there are so many pieces, and they can be read.
pub(crate) unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let pieces: &[ibv_data_buf] = match count {
        0 => &[],
        // SAFETY: the caller has so many there.
        _ => unsafe { std::slice::from_raw_parts(list, count) },
    };
    let segment =
        |piece: &ibv_data_buf| (piece.addr.expose_provenance() as u64, piece.length as u64);
    let segments: Vec<_> = pieces.iter().map(segment).collect();
    // SAFETY: the caller's memory is there.
    let copy = unsafe { bytes::gather(&segments) };
    set(qp, "ibv_wr_set_inline_data_list", Vec::new, Some(copy));
}

pub(crate) unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    let call = "ibv_wr_set_ud_addr";
    let mut world = world();
    there(&mut world.ahs, ah, "address handle");
    let told = last(&mut world, qp, call);
    if !take(&mut told.wants_address) {
        misuse(&format!("{call} for a work request that has an address"));
    }
    told.wr.wr.ud = ud { ah: ah.cast(), remote_qpn, remote_qkey };
}
