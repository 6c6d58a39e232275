//! Completion queues that are polled entry by entry. On `loop0`: where a call that nothing promises to work, or
//! a look at what means nothing, ends the program.

use std::ffi::{c_int, c_uint};
use std::mem::zeroed;

use super::{Arrived, Asked, Cq};
use crate::abi::{ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr};
use crate::device::Kind;
use crate::empty::polling;
use crate::given::{bury, misuse};
use crate::numbers::{status, tells};
use crate::verbs::{self, Verb};
use crate::world::{World, there, world};

/// The state of polling entry by entry.
#[derive(Default)]
pub(super) struct Walk {
    /// Between the start and the end.
    begun: bool,
    /// Where it is, unless there was nothing more.
    present: Option<Arrived>,
    /// How many entries it came to.
    count: usize,
}

impl Walk {
    pub(super) fn is_begun(&self) -> bool {
        self.begun
    }

    /// The entries whose room is free at its end.
    pub(super) fn used(&self) -> usize {
        self.count
    }
}

/// What C has of a new queue. Only what was asked for has a function.
pub(super) fn front(cq: ibv_cq, kind: Kind, flags: Option<u64>) -> ibv_cq_ex {
    // SAFETY: all zero is a value of this struct of integers, pointers, optional functions, and what C makes
    // a mutex and a condition of.
    let mut ex: ibv_cq_ex = unsafe { zeroed() };
    ex.cq = cq;
    macro_rules! operations {
        ($from:ident) => {{
            ex.start_poll = Some($from::start_poll);
            ex.next_poll = Some($from::next_poll);
            ex.end_poll = Some($from::end_poll);
            if let Some(flags) = flags {
                ex.read_opcode = Some($from::read_opcode);
                ex.read_vendor_err = Some($from::read_vendor_err);
                ex.read_wc_flags = Some($from::read_wc_flags);
                let told = |flag| flags & flag != 0;
                ex.read_byte_len = told(tells::BYTE_LEN).then_some($from::read_byte_len as _);
                ex.read_imm_data = told(tells::IMM).then_some($from::read_imm_data as _);
                ex.read_qp_num = told(tells::QP_NUM).then_some($from::read_qp_num as _);
                ex.read_src_qp = told(tells::SRC_QP).then_some($from::read_src_qp as _);
                ex.read_slid = told(tells::SLID).then_some($from::read_slid as _);
                ex.read_sl = told(tells::SL).then_some($from::read_sl as _);
                ex.read_dlid_path_bits =
                    told(tells::DLID_PATH_BITS).then_some($from::read_dlid_path_bits as _);
                ex.read_completion_ts =
                    told(tells::COMPLETION_TIMESTAMP).then_some($from::read_completion_ts as _);
            }
        }};
    }
    match kind {
        Kind::Loop => {
            // A plain one, too: they tell that it is none of theirs.
            operations!(looped);
            // SAFETY: here it is.
            unsafe { show(&mut ex, NOTHING) };
        }
        Kind::Empty => operations!(polling),
    }
    ex
}

/// # Safety
///
/// `ex` is one of a queue that is destroyed.
pub(super) unsafe fn bury(ex: *mut ibv_cq_ex) {
    // SAFETY: the caller has one there, which is never freed.
    unsafe {
        bury!(ex: ibv_cq_ex, "completion queue";
            start_poll(*mut ibv_poll_cq_attr) -> c_int,
            next_poll() -> c_int,
            end_poll(),
            read_opcode() -> c_uint,
            read_vendor_err() -> u32,
            read_byte_len() -> u32,
            read_imm_data() -> u32,
            read_qp_num() -> u32,
            read_src_qp() -> u32,
            read_wc_flags() -> c_uint,
            read_slid() -> u32,
            read_sl() -> u8,
            read_dlid_path_bits() -> u8,
            read_completion_ts() -> u64,
        );
    }
}

/// `ibv_create_cq_ex`.
///
/// # Safety
///
/// As C's: `attr` can be read.
pub(crate) unsafe extern "C" fn create(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    const FLAGS: u32 = 1 << 0;
    const SINGLE_THREADED: u32 = 1 << 0;
    let mut world = world();
    let called = world.call(Verb::CreateCqEx);
    let kind = there(&mut world.contexts, context, "context").kind;
    // SAFETY: the caller has one there.
    let attr = unsafe { &*attr };
    if !attr.channel.is_null() {
        there(&mut world.channels, attr.channel, "completion channel");
    }
    verbs::pointer(called.and_then(|()| {
        let flags = if attr.comp_mask & FLAGS != 0 { attr.flags } else { 0 };
        let vector = c_int::try_from(attr.comp_vector).map_err(|_| libc::EINVAL)?;
        if attr.comp_mask & !FLAGS != 0 {
            return Err(libc::EINVAL);
        }
        let known = if world.faults.no_clock { tells::STANDARD } else { tells::ALL };
        if attr.wc_flags & !known != 0 || flags & !SINGLE_THREADED != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let asked = Asked {
            cqe: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            vector,
            tells: Some(attr.wc_flags),
        };
        world.create_cq(context, kind, &asked)
    }))
    .cast()
}

/// What is in the two fields that are read without a call when there is no completion.
const NOTHING: (u64, c_uint) = (0x7bad_0bad_7bad_0bad, 0x7bad_0bad);

/// # Safety
///
/// `ex` can be written.
unsafe fn show(ex: *mut ibv_cq_ex, (wr_id, status): (u64, c_uint)) {
    // SAFETY: the caller has one there.
    unsafe {
        (&raw mut (*ex).wr_id).write(wr_id);
        (&raw mut (*ex).status).write(status);
    }
}

impl Cq {
    fn walk(&self, call: &str) -> &Walk {
        match &self.walk {
            Some(walk) => walk,
            None => misuse(&format!(
                "{call} on a completion queue that was not made by ibv_create_cq_ex"
            )),
        }
    }

    /// The same between start and end.
    fn begun(&self, call: &str) -> &Walk {
        let walk = self.walk(call);
        if !walk.begun {
            misuse(&format!("{call} on a completion queue without ibv_start_poll"));
        }
        walk
    }

    /// Leaves the present entry, if there is one.
    fn leave(&mut self) -> Option<Arrived> {
        // SAFETY: the struct is never freed; who polls it reads these fields between calls.
        unsafe { show(self.given.as_ptr().cast(), NOTHING) };
        self.walk.as_mut()?.present.take()
    }

    /// Comes to the next entry; `ENOENT` when there is none.
    fn go_on(&mut self) -> Result<(), c_int> {
        let walk = self.walk.as_mut().ok_or(libc::EINVAL)?;
        let arrived = self.entries.pop_front().ok_or(libc::ENOENT)?;
        let shown = (arrived.wc.wr_id, arrived.wc.status);
        // SAFETY: as in `leave`.
        unsafe { show(self.given.as_ptr().cast(), shown) };
        walk.begun = true;
        walk.count += 1;
        walk.present = Some(arrived);
        Ok(())
    }
}

impl World {
    /// The present entry is consumed.
    fn consume(&mut self, arrived: Option<Arrived>) {
        if let Some(place) = arrived.and_then(|arrived| arrived.place) {
            self.free_place(place);
        }
    }
}

/// What is called on a queue of `loop0`.
mod looped {
    use super::*;

    /// # Safety
    ///
    /// As C's: `attr` can be read.
    pub(super) unsafe extern "C" fn start_poll(
        cq: *mut ibv_cq_ex,
        attr: *mut ibv_poll_cq_attr,
    ) -> c_int {
        let mut world = world();
        let called = world.call(Verb::StartPoll);
        let queue = there(&mut world.cqs, cq, "completion queue");
        if queue.walk("ibv_start_poll").begun {
            misuse("ibv_start_poll before the end of another poll of the completion queue");
        }
        // SAFETY: the caller has one there.
        let mask = unsafe { (*attr).comp_mask };
        verbs::errno(called.and_then(|()| match mask {
            0 => queue.go_on(),
            _ => Err(libc::EINVAL),
        }))
    }

    pub(super) unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
        let mut world = world();
        let called = world.call(Verb::NextPoll);
        let queue = there(&mut world.cqs, cq, "completion queue");
        queue.begun("ibv_next_poll");
        let past = queue.leave();
        // After an error the end of the poll is still to be told, and nothing can be read.
        let gone_on = called.and_then(|()| queue.go_on());
        world.consume(past);
        verbs::errno(gone_on)
    }

    pub(super) unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
        let mut world = world();
        // It cannot fail.
        let _ = world.call(Verb::EndPoll);
        let queue = there(&mut world.cqs, cq, "completion queue");
        queue.begun("ibv_end_poll");
        let past = queue.leave();
        queue.walk = Some(Walk::default());
        world.consume(past);
    }

    /// Looks at the present entry. Of one that failed only what is `always` told means anything.
    fn look<T>(cq: *mut ibv_cq_ex, call: &str, always: bool, at: fn(&Arrived) -> T) -> T {
        let mut world = world();
        let walk = there(&mut world.cqs, cq, "completion queue").begun(call);
        let Some(present) = &walk.present else {
            misuse(&format!("{call} where there is no completion"));
        };
        if present.wc.status != status::SUCCESS && !always {
            misuse(&format!("{call} of a completion that failed"));
        }
        at(present)
    }

    macro_rules! reads {
        ($($name:ident -> $type:ty: $always:literal, $at:expr;)*) => {$(
            pub(super) unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
                look(cq, stringify!($name), $always, $at)
            }
        )*};
    }

    reads!(
        read_opcode -> c_uint: false, |at| at.wc.opcode;
        read_vendor_err -> u32: true, |at| at.wc.vendor_err;
        read_byte_len -> u32: false, |at| at.wc.byte_len;
        read_imm_data -> u32: false, |at| at.wc.imm_data;
        read_qp_num -> u32: true, |at| at.wc.qp_num;
        read_src_qp -> u32: false, |at| at.wc.src_qp;
        read_wc_flags -> c_uint: false, |at| at.wc.wc_flags;
        read_slid -> u32: false, |at| at.wc.slid.into();
        read_sl -> u8: false, |at| at.wc.sl;
        read_dlid_path_bits -> u8: false, |at| at.wc.dlid_path_bits;
        read_completion_ts -> u64: false, |at| at.time;
    );
}
