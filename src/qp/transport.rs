//! The transports of queue pairs, as types.

#![deny(unsafe_code)]

use std::ffi::c_uint;

use crate::sys::qp::send_ops;

/// Reliable connected (`IBV_QPT_RC`): messages arrive once and in order, at one peer; writes, reads,
/// atomics.
#[derive(Debug)]
pub struct Rc(());

/// Unreliable connected (`IBV_QPT_UC`): messages and writes to one peer, whole and in order, but some may not
/// arrive, and nobody is told.
#[derive(Debug)]
pub struct Uc(());

/// Unreliable datagram (`IBV_QPT_UD`): messages of up to one MTU, each to a destination of its own, which may
/// be a multicast group.
#[derive(Debug)]
pub struct Ud(());

/// [`Rc`], [`Uc`] or [`Ud`].
pub trait Transport: sealed::Transport {}

/// A transport with one peer: [`Rc`] or [`Uc`].
pub trait Connected: Transport {}

impl Transport for Rc {}
impl Transport for Uc {}
impl Transport for Ud {}
impl Connected for Rc {}
impl Connected for Uc {}

#[allow(unreachable_pub)] // named by public traits, and by nobody else
pub(crate) mod sealed {
    use super::c_uint;

    pub trait Transport {
        /// `enum ibv_qp_type`.
        const TYPE: c_uint;
        /// Whether the peer acknowledges: the transport has the settings of that.
        const RELIABLE: bool = false;
        /// Whether each message names its destination.
        const DATAGRAM: bool = false;
        /// The work requests that can be posted (`enum ibv_qp_create_send_ops_flags`), of a device that has all.
        const SEND_OPS: u64;
    }
}

impl sealed::Transport for Rc {
    const TYPE: c_uint = 2;
    const RELIABLE: bool = true;
    const SEND_OPS: u64 = Uc::SEND_OPS | send_ops::READ | send_ops::ATOMICS;
}

impl sealed::Transport for Uc {
    const TYPE: c_uint = 3;
    const SEND_OPS: u64 =
        send_ops::SENDS | send_ops::WRITES | send_ops::INVALIDATE | send_ops::BIND;
}

impl sealed::Transport for Ud {
    const TYPE: c_uint = 4;
    const DATAGRAM: bool = true;
    const SEND_OPS: u64 = send_ops::SENDS;
}
