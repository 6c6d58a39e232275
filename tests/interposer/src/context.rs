//! Open devices, and what they say of themselves.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::{offset_of, zeroed};

use crate::abi::{
    ibv_context, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_port_attr, verbs_context,
};
use crate::bytes::{self, Readable};
use crate::device::{Kind, array};
use crate::event::Pending;
use crate::given::Given;
use crate::numbers::limit;
use crate::verbs::{self, Verb};
use crate::world::{World, there, world};
use crate::{clock, cq, empty, post, qp, window};

/// An open device.
pub(crate) struct Context {
    given: Given<verbs_context>,
    pub(crate) kind: Kind,
    pub(crate) serial: u32,
    /// Events that nobody took yet, the oldest first.
    pub(crate) events: VecDeque<Pending>,
    /// Readable while there are some.
    pub(crate) readable: Readable,
}

impl Context {
    /// What C has of it.
    pub(crate) fn pointer(&self) -> *mut ibv_context {
        // SAFETY: the struct is never freed; only the address of a field is taken.
        unsafe { &raw mut (*self.given.as_ptr()).context }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let kind = Kind::of(device);
    let mut world = world();
    if let Err(errno) = world.call(Verb::OpenDevice) {
        return verbs::pointer(Err(errno));
    }
    let readable = match Readable::new() {
        Ok(readable) => readable,
        Err(errno) => return verbs::pointer(Err(errno)),
    };
    // SAFETY: all zero is a value of this struct of integers, pointers and optional functions.
    let mut extended: verbs_context = unsafe { zeroed() };
    extended.query_port = Some(query_port);
    extended.query_device_ex = Some(query_device_ex);
    extended.create_cq_ex = Some(cq::extended::create);
    extended.create_qp_ex = Some(qp::extended::create);
    extended.query_rt_values = Some(match kind {
        Kind::Loop => clock::query_rt_values,
        Kind::Empty => empty::polling::query_rt_values,
    });
    extended.sz = size_of::<verbs_context>();
    let context = &mut extended.context;
    context.device = device;
    context.async_fd = readable.fd();
    context.cmd_fd = -1;
    context.num_comp_vectors = limit::VECTORS;
    context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    let ops = &mut context.ops;
    match kind {
        Kind::Loop => {
            ops.poll_cq = Some(cq::poll);
            ops.req_notify_cq = Some(cq::req_notify);
            ops.post_send = Some(post::send);
            ops.post_recv = Some(post::recv);
            ops.post_srq_recv = Some(post::srq_recv);
            ops.alloc_mw = Some(window::alloc);
            ops.bind_mw = Some(window::bind);
            ops.dealloc_mw = Some(window::dealloc);
        }
        Kind::Empty => {
            ops.poll_cq = Some(empty::poll);
            ops.req_notify_cq = Some(empty::req_notify);
            ops.post_send = Some(empty::send);
            ops.post_recv = Some(empty::recv);
            ops.post_srq_recv = Some(empty::srq_recv);
        }
    }
    let serial = world.serial();
    let given = Given::lasting(extended);
    let context = Context { given, kind, serial, events: VecDeque::new(), readable };
    let pointer = context.pointer();
    world.contexts.insert(pointer.addr(), context);
    pointer
}

/// Like the kernel, takes along whatever is left on the context: after it the device touches none
/// of its memory.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let mut world = world();
    if let Err(errno) = world.call(Verb::CloseDevice) {
        return verbs::minus_one(Err(errno));
    }
    let id = context.addr();
    there(&mut world.contexts, context, "context");
    world.orphan(id);
    world.contexts.remove(&id);
    0
}

impl World {
    /// Lets go of everything on a context.
    fn orphan(&mut self, context: usize) {
        let on = |of: usize| of == context;
        let mut orphans = 0;
        let ids: Vec<usize> =
            self.qps.iter().filter(|(_, qp)| on(qp.context)).map(|(id, _)| *id).collect();
        orphans += ids.len();
        for id in ids {
            self.remove_qp(id);
        }
        let mut count = |gone: bool| {
            orphans += usize::from(gone);
            !gone
        };
        self.srqs.retain(|_, srq| count(on(srq.context)));
        self.cqs.retain(|_, cq| count(on(cq.context)));
        self.channels.retain(|_, channel| count(on(channel.context)));
        let pds = &self.pds;
        let of_pd = |pd: usize| pds.get(&pd).is_some_and(|pd| on(pd.context));
        self.ahs.retain(|_, ah| count(of_pd(ah.pd)));
        self.mws.retain(|_, mw| count(of_pd(mw.pd)));
        let keys = &mut self.keys;
        self.mrs.retain(|_, mr| {
            let gone = of_pd(mr.pd);
            if gone {
                keys.remove(&mr.index());
            }
            count(gone)
        });
        self.pds.retain(|_, pd| count(on(pd.context)));
        self.orphans += orphans as u64;
    }
}

fn device_attr(kind: Kind, no_atomics: bool) -> ibv_device_attr {
    // SAFETY: all zero is a value of this struct of integers and arrays of them.
    let mut attr: ibv_device_attr = unsafe { zeroed() };
    attr.fw_ver = array(c"1.0");
    attr.node_guid = kind.guid().to_be();
    attr.sys_image_guid = kind.guid().to_be();
    attr.max_mr_size = 1 << 40;
    attr.page_size_cap = 0xffff_f000;
    attr.max_qp = 65_536;
    attr.max_qp_wr = limit::QP_WR as c_int;
    attr.max_sge = limit::SGE as c_int;
    attr.max_sge_rd = limit::SGE as c_int;
    attr.max_cq = 65_536;
    attr.max_cqe = limit::CQE as c_int;
    attr.max_mr = 1 << 20;
    attr.max_pd = 65_536;
    attr.max_qp_rd_atom = limit::READS.into();
    attr.max_qp_init_rd_atom = limit::READS.into();
    attr.max_res_rd_atom = 1 << 20;
    attr.atomic_cap = u32::from(!no_atomics);
    if kind == Kind::Loop {
        // Windows of types 1 and 2B, and invalidation.
        attr.device_cap_flags = 1 << 17 | 1 << 21 | 1 << 24;
        attr.max_mw = 1 << 20;
    }
    attr.max_ah = 65_536;
    attr.max_srq = 65_536;
    attr.max_srq_wr = limit::QP_WR as c_int;
    attr.max_srq_sge = limit::SGE as c_int;
    attr.max_pkeys = 1;
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = 1;
    attr
}

/// # Safety
///
/// As C's: `attr` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    let mut world = world();
    if let Err(errno) = world.call(Verb::QueryDevice) {
        return errno;
    }
    let kind = there(&mut world.contexts, context, "context").kind;
    // SAFETY: the caller has room for one.
    unsafe { attr.write(device_attr(kind, world.faults.no_atomics)) };
    0
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _input: *const std::ffi::c_void,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    let mut world = world();
    if let Err(errno) = world.call(Verb::QueryDeviceEx) {
        return errno;
    }
    let kind = there(&mut world.contexts, context, "context").kind;
    if size < size_of::<ibv_device_attr>() {
        return libc::EINVAL;
    }
    // SAFETY: all zero is a value of this struct of integers and arrays of them.
    let mut whole: ibv_device_attr_ex = unsafe { zeroed() };
    whole.orig_attr = device_attr(kind, world.faults.no_atomics);
    whole.phys_port_cnt_ex = 1;
    if !world.faults.no_clock {
        (whole.completion_timestamp_mask, whole.hca_core_clock) = (clock::MASK, clock::KHZ);
    }
    // SAFETY: the caller has room for `size` bytes.
    unsafe { bytes::write_front(attr, &whole, size) };
    0
}

fn port_attr() -> ibv_port_attr {
    ibv_port_attr {
        state: 4,
        max_mtu: 5,
        active_mtu: 5,
        gid_tbl_len: limit::GIDS as c_int,
        port_cap_flags: 0x0001_0000,
        max_msg_sz: limit::MESSAGE as u32,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: 2,
        active_speed: 32,
        phys_state: 5,
        link_layer: 2,
        flags: 0,
        port_cap_flags2: 0,
    }
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    let mut world = world();
    if let Err(errno) = world.call(Verb::QueryPort) {
        return errno;
    }
    there(&mut world.contexts, context, "context");
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller has room for `size` bytes.
    unsafe { bytes::write_front(attr, &port_attr(), size) };
    0
}

/// # Safety
///
/// As C's: the front of `attr`, which old programs know, can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the old struct ends before these fields.
    unsafe { query_port(context, port, attr, offset_of!(ibv_port_attr, flags)) }
}

/// # Safety
///
/// As C's: `pkey` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    let mut world = world();
    let called = world.call(Verb::QueryPkey);
    there(&mut world.contexts, context, "context");
    if let Err(errno) = called {
        return verbs::minus_one(Err(errno));
    }
    if (port, index) != (1, 0) {
        return verbs::minus_one(Err(libc::EINVAL));
    }
    // SAFETY: the caller has room for one.
    unsafe { pkey.write(u16::MAX) };
    0
}
