//! What one end's failure is to the other.

use crate::error::{Errno, Error, ExchangeProblem, RecordError};
use crate::types::RefuseReason;

/// The text that goes with it. What this host has, which anybody who connects could learn by it, stays here.
pub(super) fn text_for(error: &Error) -> String {
    match reason_for(error) {
        Some(RefuseReason::NO_SOURCE) => "no row of the GID tables can be used for it".into(),
        _ => error.to_string(),
    }
}

/// What the other end is told of an error; nothing of those that it knows of, or cannot be told of.
pub(super) fn reason_for(error: &Error) -> Option<RefuseReason> {
    Some(match error {
        Error::Exchange(fault) => match fault.problem {
            ExchangeProblem::Record(RecordError::Version { .. }) => RefuseReason::VERSION,
            ExchangeProblem::Record(_) => RefuseReason::BAD_RECORD,
            ExchangeProblem::TimedOut { .. } => RefuseReason::TIMED_OUT,
            ExchangeProblem::Unlike { .. } => RefuseReason::UNLIKE,
            ExchangeProblem::Crowded { .. } => RefuseReason::BUSY,
            ExchangeProblem::Abandoned => RefuseReason::ABANDONED,
            _ => return None,
        },
        Error::GidMoved(_)
        | Error::NoDeviceForAddress(_)
        | Error::NoGidFits { .. }
        | Error::GidIndexTooLarge { .. }
        | Error::OtherDevice { .. } => RefuseReason::NO_SOURCE,
        Error::NoRoute { .. } | Error::Unreachable { .. } | Error::ResolveTimeout { .. } => {
            RefuseReason::UNREACHABLE
        }
        Error::Transition(fault) => match fault.errno {
            Some(Errno::ETIMEDOUT | Errno::ENETUNREACH | Errno::EHOSTUNREACH) => {
                RefuseReason::UNREACHABLE
            }
            _ => RefuseReason::DEVICE,
        },
        _ => RefuseReason::DEVICE,
    })
}
