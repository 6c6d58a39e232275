//! Why a queue pair's state could not be changed.

use std::fmt;

use super::Errno;
use crate::types::{QpState, Qpn};

/// A change of a queue pair's state that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransitionFault {
    /// The device.
    pub device: Box<str>,
    /// The queue pair.
    pub qpn: Qpn,
    /// The state it was in.
    pub from: QpState,
    /// The state it should have come to.
    pub to: QpState,
    /// What the device or the kernel answered; `None` when it was found before it was asked.
    pub errno: Option<Errno>,
    /// The attribute that is wrong, or may be, and why.
    pub what: Box<str>,
}

impl fmt::Display for TransitionFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TransitionFault { device, qpn, from, to, errno, what } = self;
        write!(f, "{device} QP {qpn}: {from} to {to}: ")?;
        if let Some(errno) = errno {
            write!(f, "{errno}; ")?;
        }
        f.write_str(what)
    }
}

impl std::error::Error for TransitionFault {}
