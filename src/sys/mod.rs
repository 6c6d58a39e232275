//! The seam to C: the one place that names a C function or a C struct.
//!
//! Two backends stand behind it, chosen by the feature `rdma-sys`; no type of either is public
//! and nothing above this folder can tell them apart:
//!
//! * `abi` has our own declarations of every struct in use, in both backends. Their numbers are
//!   plain integers: a Rust enum is never read from C.
//! * `calls` lists every C function in use once. With the feature, each call goes through
//!   rdma-sys, whose declarations were made from the headers of the machine that builds, and the
//!   compiler checks argument by argument that ours are of the same kind; a test compares size,
//!   alignment and offsets of the structs. Without it the same list is an `extern` block, linked
//!   to `libibverbs.so.1` by its full name, which needs no -dev package.
//! * `ops` has what C has as inline functions, and what an older libibverbs lacks, looked up at
//!   run time: a program must start on a libibverbs without it.
//! * `conv` names the four ways a verb tells of failure.
//! * `cm_calls` lists the functions of librdmacm, which is looked up at run time, in both backends: a
//!   program that never connects through it starts on a machine without it.
//! * `device`, `context`, `pd`, `cq`, `qp`, `srq` and `cm` own the C objects, so that the layers above call safe
//!   functions; `version` tells which rdma-core it is; `netdev` has the two C functions about network interfaces, `socket` an option that
//!   rustix lacks.
//!
//! # Traps met here
//!
//! | trap | met by |
//! |---|---|
//! | rdma-sys 0.3 compares the marker of an extended context with `u32::MAX`: no extended verb is ever found on 64-bit | our own lookup, [`ops::extended`]; none of rdma-sys's inline functions is used |
//! | its `query_port` and `query_device_ex` fall back without zeroing the struct | every struct handed to C is zeroed first |
//! | its `ibv_create_srq_ex` makes a basic SRQ when XRC is asked for | [`ops::create_srq_ex`] |
//! | its `ibv_inc_rkey` overflows | [`RKey::next_tag`](crate::types::RKey::next_tag) |
//! | it does not declare `_ibv_query_gid_table` and `_ibv_query_gid_ex` | [`ops::Newer`], at run time |
//! | its event type is a Rust enum | [`abi::ibv_async_event`] has an integer |
//! | its `ibv_reg_mr` is the plain symbol, which refuses optional access flags | [`ops::reg_mr`] |
//! | `pthread_mutex_t` stands before the marker and differs by machine | taken from libc |
//! | it does not build with libclang 16 or later | the backend without it |

#![allow(unsafe_code)]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("rdma-verbs runs on 64-bit Linux: its declarations of C structs are of that ABI");

pub(crate) mod abi;
mod ah;
mod calls;
pub(crate) mod cm;
mod cm_calls;
mod cm_id;
mod context;
mod conv;
mod cq;
mod device;
#[cfg(all(test, feature = "rdma-sys"))]
mod layout;
mod mw;
pub(crate) mod netdev;
pub(crate) mod ops;
mod pd;
pub(crate) mod qp;
pub(crate) mod socket;
mod srq;
mod version;

pub(crate) use abi::{ibv_device_attr_ex as DeviceAttrRaw, ibv_port_attr as PortAttrRaw};
pub(crate) use ah::AhHandle;
pub(crate) use cm::{CmChannel, CmEvent};
pub(crate) use cm_id::CmId;
pub(crate) use context::{ContextHandle, RawEvent};
pub(crate) use cq::{ChannelHandle, CqHandle};
pub(crate) use device::{DeviceHandle, list_devices};
pub(crate) use mw::MwHandle;
pub(crate) use pd::{MrHandle, PdHandle};
pub(crate) use qp::QpHandle;
pub(crate) use srq::SrqHandle;
pub(crate) use version::{provider_release, rdma_core as rdma_core_release};

use std::os::fd::RawFd;

/// Reading an event must never wait in a lookup or under a lock.
fn set_nonblocking(fd: RawFd) -> Result<(), crate::error::Errno> {
    // SAFETY: fcntl with these commands touches no memory of ours; a bad descriptor is an error.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(crate::error::Errno::last());
    }
    Ok(())
}
