//! Which of libibverbs' two kinds of calls queues are used by, and of whose extended ones it is known that they are
//! right.

#![deny(unsafe_code)]

use crate::context::Context;
use crate::doorbell::provider_of;
use crate::error::{Error, Result};
use crate::sys;

/// By which of libibverbs' calls a queue is polled, or posted on. What a program sees is the same, but for the index of a
/// datagram's P_Key ([`DatagramSource::pkey_index`](crate::DatagramSource::pkey_index)), which the extended calls do not
/// tell, and for a post that the provider refuses, of which not every provider says then that nothing was taken
/// ([`QueuePairBuilder::calls`](crate::QueuePairBuilder::calls)).
///
/// The extended calls came later, and tell more (the time of a completion) or are a little shorter in some providers;
/// in others they were wrong for years. It is decided at run time, by what is known of each provider from rdma-core's
/// history: by its name and the release in the name of the mapped file; where these cannot be told, nothing is known.
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
    let release = sys::rdma_core_release().filter(|ours| {
        // A provider of another release may be loaded; some tell theirs.
        let file = context.handle().provider_file();
        let theirs = file.and_then(|file| sys::provider_release(&provider, file));
        theirs.is_none_or(|theirs| theirs == *ours)
    });
    match (asked, known(&provider, release, for_use)) {
        (Calls::Extended, Known::Bad) => {
            let device = context.device().name().into();
            Err(Error::NotSupported { device, what: for_use.wrong() })
        }
        (Calls::Extended, _) | (_, Known::Good) => Ok(true),
        _ => Ok(false),
    }
}

/// Whether a post by the extended calls that fails took nothing, as the man page says. These go back to where they
/// were; rxe has all in its queue when it cannot ring.
pub(crate) fn all_or_nothing(context: &Context) -> bool {
    matches!(provider_of(context).as_deref(), Some("mlx5" | "efa" | "hns" | "ionic"))
}

/// By rdma-core's sources and their history. Releases are rdma-core's, and the first of each that has all of it.
fn known(provider: &str, rdma_core: Option<u32>, for_use: Use) -> Known {
    match (provider, for_use) {
        // Of whatever release so far. What was received is told as sent, on the newer devices.
        ("irdma", Use::Polling) => return Known::Bad,
        // The descriptors of all but the last request of a post are not finished.
        ("bnxt_re", Use::Posting { .. }) => return Known::Bad,
        // Nothing orders the end of the queue before what is read there; on x86-64 the processor does.
        ("rxe", Use::Polling) if cfg!(not(target_arch = "x86_64")) => return Known::Bad,
        _ => {}
    }
    let Some(release) = rdma_core else { return Known::Nothing };
    let from = |good| if release >= good { Known::Good } else { Known::Bad };
    let wrong_before = |right| if release < right { Known::Bad } else { Known::Nothing };
    match (provider, for_use) {
        // A poll that came to the end moved on one place too far. Before 59 a lock is unlocked twice, which is
        // nothing where one thread polls, as here.
        ("rxe", Use::Polling) => from(55),
        // The length of a list of several entries is wrong, and inline it is not looked at.
        ("rxe", Use::Posting { max_sge: 2.. }) => from(64),
        // Inline bytes were not sent, and queues of a depth of 1 were full.
        ("rxe", Use::Posting { .. }) => from(39),
        // Later faults are of what is not used here: wall clock times (until 65), queues without locks.
        ("mlx5", Use::Polling) => from(19),
        ("mlx5", Use::Posting { .. }) => from(24),
        ("mlx4", Use::Polling) => from(19),
        // What was received inline was not copied out.
        ("hns", Use::Polling) => wrong_before(46),
        // Wrong descriptors where the ring comes round, and of datagrams without bytes.
        ("hns", Use::Posting { .. }) => from(64),
        // Two requests could complete by one number.
        ("efa", Use::Polling) => wrong_before(58),
        // Long series were not written out in time.
        ("efa", Use::Posting { .. }) => from(33),
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
        let polling = if cfg!(target_arch = "x86_64") { Known::Good } else { Known::Bad };
        for (provider, release, for_use, expected) in [
            ("rxe", 44, Use::Polling, Known::Bad),
            ("rxe", 55, Use::Polling, polling),
            ("rxe", 38, one, Known::Bad),
            ("rxe", 39, one, Known::Good),
            ("rxe", 63, several, Known::Bad),
            ("rxe", 64, several, Known::Good),
            ("mlx5", 18, Use::Polling, Known::Bad),
            ("mlx5", 56, Use::Polling, Known::Good),
            ("mlx5", 23, several, Known::Bad),
            ("mlx5", 39, several, Known::Good),
            ("hns", 45, Use::Polling, Known::Bad),
            ("hns", 46, Use::Polling, Known::Nothing),
            ("efa", 57, Use::Polling, Known::Bad),
            ("efa", 58, Use::Polling, Known::Nothing),
            ("bnxt_re", 64, one, Known::Bad),
            ("irdma", 64, Use::Polling, Known::Bad),
            ("irdma", 56, one, Known::Nothing),
            ("siw", 56, Use::Polling, Known::Nothing),
        ] {
            assert_eq!(known(provider, Some(release), for_use), expected, "{provider} {release}");
        }
        assert_eq!(known("mlx5", None, one), Known::Nothing);
        assert_eq!(known("irdma", None, Use::Polling), Known::Bad);
    }
}
