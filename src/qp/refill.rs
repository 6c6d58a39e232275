//! Receives of a page pool's fragments.

#![allow(unsafe_code)]

use std::ptr::null_mut;

use super::batch::{List, link};
use super::receives::Receives;
use super::recv::RecvQueue;
use crate::error::Refusal;
use crate::mem::{Held, PagePool, Pieces};
use crate::sys::abi::{ibv_recv_wr, ibv_sge};
use crate::types::WcOpcode;
use crate::wq::{Entry, Posting};

/// What a refill did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "it tells whether the queue is full"]
#[non_exhaustive]
pub struct Refill {
    /// How many receives were posted.
    pub posted: u32,
    /// Why there were no more.
    pub stopped: RefillStop,
}

/// Why a refill posted no more receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RefillStop {
    /// The queue is full: all is well.
    Full,
    /// The pool is at its ceiling, and its oldest slab is not complete: the next receive's fragments are not
    /// there. Some come back when what was received is dropped; none does that would help where one receive has more
    /// fragments than the pool at its ceiling.
    NoFragments,
    /// The same below its ceiling, since it could not grow; [`PagePool::growth_failure`] tells why.
    GrowthFailed,
    /// The queue, or the device, did not take the next receives. Their fragments are in the pool again, as if
    /// they had not been taken, unless the device does not say what it took ([`Refusal::Unsure`]).
    Refused(Refusal),
}

/// The most receives of one call.
const CHAIN: usize = 32;
/// The most scatter entries of one call: those of two receives at least.
const ENTRIES: usize = 64;

impl RecvQueue {
    /// Posts receives of `per_receive` fragments each until the queue is full, in chains of up to 32 with one
    /// call each (`ibv_post_recv`). A receive has all of its fragments or is not posted, and then takes none out
    /// of the pool. `wr_id` is the caller's own number, which each of their completions gives back;
    /// [`Completion::take_fragment`](crate::Completion::take_fragment) gives the fragments.
    ///
    /// It allocates nothing, but when the pool grows. Whatever stops it, nothing is lost, and a later call goes on
    /// from there: [`RefillStop::Refused`] has [`Refusal::TooManyEntries`] and [`Refusal::NoEntries`] for a
    /// `per_receive` beyond what the queue pair was made for or of none, [`Refusal::OtherDomain`] for a pool of
    /// another protection domain, and else as [`post`](RecvQueue::post).
    #[doc(alias = "ibv_post_recv")]
    pub fn refill(&mut self, pages: &mut PagePool, per_receive: u32, wr_id: u64) -> Refill {
        refill(self, pages, per_receive, wr_id)
    }
}

/// What can be found wrong before the device sees it, of receives of so many fragments of this pool.
fn check<Q: Receives>(queue: &Q, pages: &PagePool, per_receive: u32) -> Result<(), Refusal> {
    queue.check_state()?;
    let (on, (limit, domain)) = (queue.owner(), queue.caps());
    if per_receive == 0 {
        return Err(Refusal::NoEntries { on });
    }
    if per_receive > limit {
        return Err(Refusal::TooManyEntries { on, asked: per_receive, limit });
    }
    let same = pages.protection_domain().id() == domain;
    if same { Ok(()) } else { Err(Refusal::OtherDomain { what: "a page pool", on }) }
}

/// Fills any queue; see [`RecvQueue::refill`].
pub(crate) fn refill<Q: Receives>(
    queue: &mut Q,
    pages: &mut PagePool,
    per_receive: u32,
    wr_id: u64,
) -> Refill {
    let mut posted = 0;
    if let Err(refusal) = check(queue, pages, per_receive) {
        return Refill { posted, stopped: RefillStop::Refused(refusal) };
    }
    loop {
        let mut requests = List::<ibv_recv_wr, CHAIN>::new();
        let mut entries = List::<ibv_sge, ENTRIES>::new();
        let stopped = loop {
            let count = requests.len();
            if !requests.has_room(1) || !entries.has_room(per_receive as usize) {
                break None;
            }
            if !queue.poster().has_room(count as u32) {
                // Or there is none, of a queue pair that shares another's.
                break Some(match queue.full() {
                    Refusal::Full { .. } => RefillStop::Full,
                    other => RefillStop::Refused(other),
                });
            }
            if !pages.has(per_receive) {
                let failed = pages.growth_failure().is_some();
                break Some(if failed {
                    RefillStop::GrowthFailed
                } else {
                    RefillStop::NoFragments
                });
            }
            let before = entries.len();
            let fragments = (0..per_receive).map_while(|_| {
                let fragment = pages.take()?;
                fragment.for_each(true, &mut |entry, _| entries.push(entry));
                Some(fragment)
            });
            let entry = Entry { wr_id, opcode: WcOpcode::RECV, pieces: 1, internal: false };
            let held = fragments.map(Held::fragment);
            let wr_id = queue.poster().put_each(count as u32, entry, held);
            // The list's address and the next receive are told when all are there.
            let (next, sg_list) = (null_mut(), null_mut());
            let num_sge = (entries.len() - before) as i32;
            requests.push(ibv_recv_wr { wr_id, next, sg_list, num_sge });
        };
        let count = requests.len();
        if count > 0 {
            let chain = requests.start();
            // SAFETY: the receives were written above, with as many entries in all.
            unsafe { link(chain, count, entries.start()) };
            // SAFETY: put above, in this order; the lists stay until the call returned.
            if let Err((refusal, taken)) = unsafe { queue.post_chain(chain, count) } {
                queue.poster().not_all(count as u32, taken as u32);
                put_back(queue, pages);
                let posted = posted + taken as u32;
                return Refill { posted, stopped: RefillStop::Refused(refusal) };
            }
            posted += count as u32;
        }
        if let Some(stopped) = stopped {
            return Refill { posted, stopped };
        }
    }
}

/// What the device refused is the pool's again, from the last on, as if it had not been taken.
#[cold]
fn put_back<Q: Receives>(queue: &mut Q, pages: &mut PagePool) {
    let mut back = [const { None }; ENTRIES];
    let mut places = back.iter_mut();
    // What it completed all the same is its completion's. There is a place for each that was in the chain.
    while let Some(mut claimed) = queue.poster().next_refused() {
        let fragments = std::iter::from_fn(|| claimed.take());
        for fragment in fragments.filter_map(|held| held.into_fragment().ok()) {
            if let Some(place) = places.next() {
                *place = Some(fragment);
            }
        }
    }
    back.into_iter().rev().flatten().for_each(|fragment| pages.put_back(fragment));
}
