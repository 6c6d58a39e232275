//! The receive path's pages: slabs that are registered once and handed out in order.
//!
//! * `slab`: one registered piece of memory, and who owns parts of it. `fragment`: a part, as people have it.
//! * `order`: which slab is handed out of, which waits, and when there is one more or fewer; over a source
//!   of slabs that tests make fail.

#![allow(unsafe_code)]

mod fragment;
mod order;
mod slab;

use std::fmt;
use std::ptr::NonNull;

use super::LOCAL_WRITE;
use super::map::{HUGE, Mapping, PageSize, page_size};
use super::pool::MAX_SIZE;
use super::registered::Registered;
use crate::error::{Error, Result};
use crate::pd::ProtectionDomain;
use order::{Order, Shape, Source};
use slab::Region;

pub use fragment::Fragment;
pub(super) use slab::Place;

/// The receive path's pages: slabs of whole pages, each mapped and registered once (`ibv_reg_mr`, with
/// `IBV_ACCESS_LOCAL_WRITE` only), and fragments of one size carved from them in order.
///
/// Mapping memory for a device costs thousands of times what handing a piece of it out does: a network driver
/// that mapped every fragment it posted reached about 3 Gb/s, where one that mapped whole pages once came to
/// more than 9. It takes two rules: the fragments of a slab are handed out again only after all of them came
/// back, and slabs in the order in which they were handed out before.
///
/// One thread takes; fragments come back on any, without a lock, when they are dropped. When the oldest slab
/// is not complete, the pool grows by one, up to its ceiling; so a fragment that is kept for long holds up the
/// slabs behind it, and is better copied. [`RecvQueue::refill`](crate::RecvQueue::refill) posts them. The
/// memory of each slab goes when the pool and the last of its fragments are gone, in any order, those included
/// that are posted.
pub struct PagePool {
    order: Order<Pages>,
}

/// How a [`PagePool`] is to be. Made by [`PagePool::builder`].
#[derive(Clone, Debug)]
pub struct PagePoolBuilder<'a> {
    pd: &'a ProtectionDomain,
    fragment: usize,
    slab: usize,
    floor: usize,
    ceiling: Option<usize>,
    huge: bool,
}

/// What a [`PagePool`] has and did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PagePoolStats {
    /// How many slabs there are.
    pub slabs: usize,
    /// The most there ever were.
    pub high_water: usize,
    /// How many of the slabs are of each kind of page: base, transparent, huge.
    pub base_slabs: usize,
    /// See [`base_slabs`](PagePoolStats::base_slabs).
    pub transparent_slabs: usize,
    /// See [`base_slabs`](PagePoolStats::base_slabs).
    pub huge_slabs: usize,
    /// How many fragments are out: posted, or somebody's.
    pub fragments_out: u64,
    /// How many registrations were ever made. It does not move while the pool neither grows nor shrinks.
    pub registrations: u64,
    /// How often the pool could not grow, though it is below its ceiling.
    pub growth_failures: u64,
}

/// The most fragments of one slab.
const MOST: usize = 1 << 24;

impl<'a> PagePoolBuilder<'a> {
    /// The size of a slab, in bytes: whole pages, and a multiple of the fragment size; 2 MiB unless asked, or
    /// the fragment size where that is more.
    pub fn slab_bytes(mut self, bytes: usize) -> Self {
        self.slab = bytes;
        self
    }

    /// The fewest slabs, which are there from the beginning to the end; 1 unless asked.
    pub fn floor(mut self, slabs: usize) -> Self {
        self.floor = slabs;
        self
    }

    /// The most slabs; 64 unless asked, or the floor where that is more.
    pub fn ceiling(mut self, slabs: usize) -> Self {
        self.ceiling = Some(slabs);
        self
    }

    /// Whether to use huge pages, of 2 MiB, on unless asked: of those that are set aside, if there are any,
    /// else those that the kernel puts there by itself. A slab that is no multiple of them is of others. Which
    /// a slab got is told by [`PagePool::stats`].
    pub fn huge_pages(mut self, huge: bool) -> Self {
        self.huge = huge;
        self
    }

    /// Maps and registers as many slabs as the floor says.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a fragment of no bytes or larger than a slab, a slab of no bytes or beyond the
    /// device's [`max_mr_size`](crate::DeviceLimits::max_mr_size), a floor of no slabs or above the ceiling;
    /// [`Error::Unaligned`] for a slab that is not of whole pages or of whole fragments.
    /// [`Error::FewerSlabs`] when the floor cannot be had: how many could be made, which are gone again, and
    /// why not more, with the limit where there is one.
    #[doc(alias = "ibv_reg_mr")]
    pub fn build(self) -> Result<PagePool> {
        let PagePoolBuilder { pd, fragment, slab, floor, ceiling, huge } = self;
        let ceiling = ceiling.unwrap_or_else(|| floor.max(64));
        let within = |what, asked: usize, most: usize| {
            let (asked64, most64) = (asked as u64, most as u64);
            let error = Error::OutOfRange { what, asked: asked64, least: 1, most: most64 };
            if asked == 0 || asked > most { Err(error) } else { Ok(()) }
        };
        let multiple = |what, at: usize, to: usize| {
            let error = Error::Unaligned { what, at: at as u64, to: to as u64 };
            if at % to == 0 { Ok(()) } else { Err(error) }
        };
        let most = match usize::try_from(pd.context().limits().max_mr_size) {
            Ok(0) | Err(_) => isize::MAX as usize,
            Ok(limit) => limit.min(isize::MAX as usize),
        };
        within("the size of a slab, in bytes,", slab, most)?;
        within("the size of a fragment, in bytes,", fragment, slab.min(MAX_SIZE))?;
        multiple("the size of a slab, in bytes,", slab, page_size())?;
        multiple("the size of a slab, in bytes,", slab, fragment)?;
        within("the number of fragments of a slab", slab / fragment, MOST)?;
        within("the floor of a page pool, in slabs,", floor, ceiling)?;
        let source = Pages { pd: pd.clone(), bytes: slab, huge: huge && slab % HUGE == 0 };
        // Both were found to be less than 2^32.
        let (each, fragment) = ((slab / fragment) as u32, fragment as u32);
        let shape = Shape { fragment, each, floor, ceiling };
        let order = Order::new(source, shape).map_err(|(made, why)| Error::FewerSlabs {
            made,
            asked: floor,
            bytes: slab as u64,
            why: Box::new(why),
        })?;
        Ok(PagePool { order })
    }
}

impl PagePool {
    /// A pool of fragments of `fragment_size` bytes; the rest is chosen by the builder.
    pub fn builder(pd: &ProtectionDomain, fragment_size: usize) -> PagePoolBuilder<'_> {
        let slab = fragment_size.max(HUGE);
        PagePoolBuilder { pd, fragment: fragment_size, slab, floor: 1, ceiling: None, huge: true }
    }

    /// The next fragment, of its whole capacity and with whatever its last owner left in it (zeros at first).
    ///
    /// At the end of a slab it goes over to the oldest, if all of its fragments came back; else it grows, if it
    /// is below its ceiling, which maps and registers. `None` when neither can be:
    /// [`growth_failure`](PagePool::growth_failure) then tells why not, and the next slabs that come round are
    /// used before growing is tried again. All else is no lock, no system call, no allocation.
    #[inline]
    pub fn take(&mut self) -> Option<Fragment> {
        self.order.take().map(Fragment::new)
    }

    /// Whether so many can be taken now, growing if needed.
    #[inline]
    pub(crate) fn has(&mut self, count: u32) -> bool {
        self.order.has(count)
    }

    /// Takes a fragment back as if it had not been taken, if it was the last that was; else drops it.
    pub(crate) fn put_back(&mut self, fragment: Fragment) {
        self.order.put_back(fragment.into_part());
    }

    /// One slab more (`ibv_reg_mr`), which is the next to be handed out of.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] at the ceiling; [`Error::NoMemory`] when the memory cannot be locked, with the
    /// limit; [`Error::Host`] when it cannot be mapped, [`Error::Verb`] for what else the device answers. The
    /// pool is as it was.
    #[doc(alias = "ibv_reg_mr")]
    pub fn grow(&mut self) -> Result<()> {
        self.order.grow()
    }

    /// Ends (`ibv_dereg_mr`) the slabs above the floor that are complete, the oldest first, up to the first that
    /// is not; gives their number. For when there is less to do.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn shrink(&mut self) -> usize {
        self.order.shrink()
    }

    /// Why the pool could not grow when it last had to; `None` once it could.
    pub fn growth_failure(&self) -> Option<&Error> {
        self.order.failure.as_ref()
    }

    /// The size of a fragment, in bytes.
    pub fn fragment_size(&self) -> usize {
        self.order.shape.fragment as usize
    }

    /// How many fragments a slab has.
    pub fn slab_fragments(&self) -> usize {
        self.order.shape.each as usize
    }

    /// How many slabs there can be.
    pub fn ceiling(&self) -> usize {
        self.order.shape.ceiling
    }

    /// The smallest pages that any of its slabs is made of.
    pub fn pages(&self) -> PageSize {
        let pages = self.order.all().map(|share| share.region().pages());
        pages.min().unwrap_or(PageSize::Base)
    }

    /// What it has and did. Counts the slabs; not for every message.
    pub fn stats(&self) -> PagePoolStats {
        let order = &self.order;
        let of = |pages| order.all().filter(|share| share.region().pages() == pages).count();
        PagePoolStats {
            slabs: order.slabs(),
            high_water: order.high_water,
            base_slabs: of(PageSize::Base),
            transparent_slabs: of(PageSize::Transparent),
            huge_slabs: of(PageSize::Huge),
            fragments_out: order.all().map(|share| u64::from(share.out())).sum(),
            registrations: order.registrations,
            growth_failures: order.failures,
        }
    }

    /// The protection domain that it is of.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        self.order.source().domain()
    }
}

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagePool")
            .field("fragment_size", &self.fragment_size())
            .field("slab_fragments", &self.slab_fragments())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Where its slabs come from.
struct Pages {
    pd: ProtectionDomain,
    bytes: usize,
    huge: bool,
}

impl Pages {
    fn domain(&self) -> &ProtectionDomain {
        &self.pd
    }
}

impl Source for Pages {
    type Memory = Mapping;
    type Region = Registered;

    fn map(&mut self) -> Result<Mapping> {
        Mapping::new(self.bytes, self.huge)
    }

    fn register(&mut self, memory: Mapping) -> Result<Registered> {
        // SAFETY: only the owners of its fragments read or write it, while the device does not.
        let made = unsafe { Registered::new(&self.pd, memory.into(), self.bytes, LOCAL_WRITE) };
        made.map_err(|failed| failed.0)
    }
}

// SAFETY: the kernel's own pages, zero at first, which stay while they are registered; what makes references
// to them are the fragments.
unsafe impl Region for Registered {
    fn memory(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start(), self.len())
    }
}
