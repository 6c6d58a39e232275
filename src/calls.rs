//! Which of libibverbs' two kinds of calls queues are used by, and of whose extended ones it is known that they are
//! right.

#![deny(unsafe_code)]

use crate::context::Context;
use crate::doorbell::provider_of;
use crate::error::{Error, Result};
use crate::sys;

/// By which of libibverbs' calls a queue is polled, or posted on. What a program sees is the same.
///
/// The extended calls came later, and tell more (the time of a completion) or are a little shorter in some providers;
/// in others they were wrong for years. What is known of each provider, from rdma-core's history, is decided by at run
/// time, by the provider's name and the version of the libibverbs in use; where that cannot be told, nothing is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Calls {
    /// `ibv_poll_cq`, `ibv_post_send`: one call for many. The default.
    #[default]
    Classic,
    /// The extended ones where they are known to be right, else the classic ones.
    WhereKnownGood,
    /// `ibv_start_poll`, `ibv_next_poll`, `ibv_wc_read_*`; `ibv_wr_start`, `ibv_wr_*`, `ibv_wr_complete`: several calls
    /// for each. An error where they are known to be wrong, or not there.
    Extended,
}

/// What is known of a provider's extended calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    Good,
    Bad,
    Nothing,
}

/// What a queue is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// A completion queue.
    Polling,
    /// A send queue, with at most so many entries of a gather list.
    Posting { max_sge: u32 },
}

impl Use {
    fn wrong(self) -> &'static str {
        match self {
            Use::Polling => {
                "extended calls to poll by that are right in this version of its provider"
            }
            Use::Posting { .. } => {
                "extended calls to post by that are right in this version of its provider"
            }
        }
    }
}

/// Whether a queue of this context is used by the extended calls.
///
/// # Errors
///
/// [`Error::NotSupported`] where they are asked for, and known to be wrong.
pub(crate) fn extended(context: &Context, asked: Calls, for_use: Use) -> Result<bool> {
    if asked == Calls::Classic {
        return Ok(false);
    }
    let provider = provider_of(context).unwrap_or_default();
    match (asked, known(&provider, sys::rdma_core_version(), for_use)) {
        (Calls::Extended, Known::Bad) => {
            let device = context.device().name().into();
            Err(Error::NotSupported { device, what: for_use.wrong() })
        }
        (Calls::Extended, _) | (_, Known::Good) => Ok(true),
        _ => Ok(false),
    }
}

/// By rdma-core's sources and their history. Versions are rdma-core's, and the first of each that has all of it.
fn known(provider: &str, rdma_core: Option<u32>, for_use: Use) -> Known {
    let Some(version) = rdma_core else { return Known::Nothing };
    let from = |good| if version >= good { Known::Good } else { Known::Bad };
    match (provider, for_use) {
        // A poll that came to the end moved on one place too far. Before 59 a lock is unlocked twice, which is
        // nothing where one thread polls, as here.
        ("rxe", Use::Polling) => from(55),
        // The length of a list of several entries is wrong, and inline it is not looked at.
        ("rxe", Use::Posting { max_sge: 2.. }) => from(64),
        ("rxe", Use::Posting { .. }) => from(34),
        // Later faults are of what is not used here: wall clock times (until 65), queues without locks.
        ("mlx5", Use::Polling) => from(19),
        // Binds of windows looked for room in the wrong place.
        ("mlx5", Use::Posting { .. }) => from(41),
        ("mlx4", Use::Polling) => from(19),
        // Wrong descriptors where the ring comes round, and of datagrams without bytes.
        ("hns", Use::Posting { .. }) => from(64),
        ("efa", Use::Posting { .. }) => from(31),
        _ => Known::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_goes_by_provider_version_and_use() {
        let one = Use::Posting { max_sge: 1 };
        let several = Use::Posting { max_sge: 4 };
        for (provider, version, for_use, expected) in [
            ("rxe", 44, Use::Polling, Known::Bad),
            ("rxe", 55, Use::Polling, Known::Good),
            ("rxe", 44, one, Known::Good),
            ("rxe", 63, several, Known::Bad),
            ("rxe", 64, several, Known::Good),
            ("mlx5", 18, Use::Polling, Known::Bad),
            ("mlx5", 56, Use::Polling, Known::Good),
            ("mlx5", 40, several, Known::Bad),
            ("mlx5", 44, several, Known::Good),
            ("siw", 56, Use::Polling, Known::Nothing),
            ("irdma", 56, one, Known::Nothing),
        ] {
            assert_eq!(known(provider, Some(version), for_use), expected, "{provider} {version}");
        }
        assert_eq!(known("mlx5", None, one), Known::Nothing);
    }
}
