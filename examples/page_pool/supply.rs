//! Where the memory that messages come into is from, in each of the modes.

use std::time::Duration;

use rdma_verbs::wr::Receive;
use rdma_verbs::{
    Buffer, Completion, Error, Memory, PagePool, PageSize, Pool, ProtectionDomain, RecvQueue,
    RefillStop, Region, SharedReceiveQueue,
};

use super::options::Mode;
use super::sender::PATTERN;
use super::{memory, text};

/// The memory of all streams.
pub(crate) struct Supply {
    pd: ProtectionDomain,
    size: usize,
    pages: Option<PagePool>,
    fixed: Option<Pool>,
    /// Of the mode with a registration for each buffer: memory that is not registered, and by its number what
    /// is. Vacant places are found by `vacant`.
    plain: Vec<Region>,
    registered: Vec<Option<Pool>>,
    vacant: Vec<usize>,
    /// Registrations of all modes, but for those of the pages, which count their own.
    registrations: u64,
    /// Receives in flight, by mode.
    in_flight: [u32; 3],
}

/// What receives are posted on.
pub(crate) enum Queue<'a> {
    Own(&'a mut RecvQueue),
    Shared(&'a mut SharedReceiveQueue),
}

/// Numbers of work requests; those above count the buffers that are registered one by one.
const OF_PAGES: u64 = 0;
const FIXED: u64 = 1;
const FIRST: u64 = 2;
/// The most receives of one call.
const CHAIN: usize = 32;

/// Which mode a receive is of.
fn mode_of(wr_id: u64) -> Mode {
    match wr_id {
        OF_PAGES => Mode::Pages,
        FIXED => Mode::Static,
        _ => Mode::PerBuffer,
    }
}

impl Supply {
    /// Memory for so many receives at a time in each of the modes.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        modes: &[Mode],
        size: usize,
        receives: u32,
    ) -> Result<Supply, Error> {
        let count = receives as usize;
        let with = |mode| modes.contains(&mode);
        let fixed = if with(Mode::Static) { Some(Pool::new(pd, size, count)?) } else { None };
        let pages = if with(Mode::Pages) { Some(memory::pages(pd, size, count)?) } else { None };
        let few = if with(Mode::PerBuffer) { count } else { 0 };
        Ok(Supply {
            pd: pd.clone(),
            size,
            pages,
            fixed,
            plain: (0..few).map(|_| vec![0; size].into()).collect(),
            registered: (0..few).map(|_| None).collect(),
            vacant: (0..few).rev().collect(),
            registrations: 0,
            in_flight: [0; 3],
        })
    }

    /// Posts so many receives, or fewer if there is no memory; gives their number.
    pub(crate) fn post(
        &mut self,
        mode: Mode,
        queue: &mut Queue<'_>,
        count: u32,
    ) -> Result<u32, String> {
        let posted = match (mode, &mut self.pages) {
            (Mode::Pages, Some(pages)) => {
                let refill = match queue {
                    Queue::Own(queue) => queue.refill(pages, 1, OF_PAGES),
                    Queue::Shared(queue) => queue.refill(pages, 1, OF_PAGES),
                };
                if let RefillStop::Refused(refusal) = refill.stopped {
                    return Err(refusal.to_string());
                }
                refill.posted
            }
            _ => {
                let mut posted = 0;
                while posted < count {
                    let chain = CHAIN.min((count - posted) as usize);
                    let few = match queue {
                        Queue::Own(queue) => {
                            let mut batch = queue.batch::<CHAIN>();
                            while batch.len() < chain {
                                let Some(receive) = self.receive(mode)? else { break };
                                batch.push(receive).map_err(text)?;
                            }
                            let few = batch.len();
                            batch.post().map_err(text)?;
                            few
                        }
                        Queue::Shared(queue) => {
                            let mut batch = queue.batch::<CHAIN>();
                            while batch.len() < chain {
                                let Some(receive) = self.receive(mode)? else { break };
                                batch.push(receive).map_err(text)?;
                            }
                            let few = batch.len();
                            batch.post().map_err(text)?;
                            few
                        }
                    };
                    posted += few as u32;
                    if few < chain {
                        break;
                    }
                }
                posted
            }
        };
        self.in_flight[mode as usize] += posted;
        Ok(posted)
    }

    /// The next receive of the modes that have buffers; `None` when all are in flight.
    fn receive(&mut self, mode: Mode) -> Result<Option<Receive<Buffer>>, String> {
        if mode != Mode::PerBuffer {
            let buffer = self.fixed.as_ref().and_then(Pool::take);
            return Ok(buffer.map(|buffer| Receive::new(buffer).wr_id(FIXED)));
        }
        let (Some(place), Some(memory)) = (self.vacant.pop(), self.plain.pop()) else {
            return Ok(None);
        };
        let pool = Pool::from_memory(&self.pd, memory, self.size).map_err(text)?;
        self.registrations += 1;
        let buffer = pool.take();
        self.registered[place] = Some(pool);
        Ok(buffer.map(|buffer| Receive::new(buffer).wr_id(FIRST + place as u64)))
    }

    /// A receive is complete: what came is looked at, and its memory is there again. Gives its mode.
    pub(crate) fn complete(&mut self, mut completion: Completion<'_>) -> Result<Mode, String> {
        let (wr_id, success) = (completion.wr_id(), completion.is_success());
        let mode = mode_of(wr_id);
        let sound = match mode {
            Mode::Pages => completion.take_fragment().is_some_and(|bytes| self.is_sound(&bytes)),
            _ => completion.take_buffer().is_some_and(|bytes| self.is_sound(&bytes)),
        };
        let came = completion.byte_len();
        drop(completion);
        self.back(wr_id)?;
        if success && !sound {
            return Err(format!("{came} bytes came that are not the sender's {}", self.size));
        }
        Ok(mode)
    }

    fn is_sound(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.size
            && bytes.first() == Some(&PATTERN)
            && bytes.last() == Some(&PATTERN)
    }

    /// A receive did not complete, and its queue gives its memory back.
    pub(crate) fn left(&mut self, wr_id: u64, memory: Vec<Memory>) -> Result<(), String> {
        drop(memory);
        self.back(wr_id)
    }

    /// The buffer of this receive was dropped.
    fn back(&mut self, wr_id: u64) -> Result<(), String> {
        let in_flight = &mut self.in_flight[mode_of(wr_id) as usize];
        *in_flight = in_flight.saturating_sub(1);
        let Some(place) = wr_id.checked_sub(FIRST) else { return Ok(()) };
        let place = usize::try_from(place).map_err(text)?;
        if let Some(pool) = self.registered.get_mut(place).and_then(Option::take) {
            self.plain.push(pool.into_memory().map_err(text)?);
            self.vacant.push(place);
        }
        Ok(())
    }

    /// Whether all that is in flight is of this mode.
    pub(crate) fn is_all(&self, mode: Mode) -> bool {
        Mode::ALL.iter().all(|other| *other == mode || self.in_flight[*other as usize] == 0)
    }

    /// How many registrations were made so far.
    pub(crate) fn registrations(&self) -> u64 {
        self.registrations + self.pages.as_ref().map_or(0, |pages| pages.stats().registrations)
    }

    /// How long it takes to register one buffer and to deregister it.
    pub(crate) fn registration_time(&self) -> Result<Duration, Error> {
        memory::registration_time(&self.pd, self.size)
    }

    /// How much of a mode's memory is out.
    pub(crate) fn out(&self, mode: Mode) -> u64 {
        match mode {
            Mode::Pages => self.pages.as_ref().map_or(0, |pages| pages.stats().fragments_out),
            Mode::Static => {
                self.fixed.as_ref().map_or(0, |pool| pool.count() - pool.available()) as u64
            }
            Mode::PerBuffer => self.registered.iter().flatten().count() as u64,
        }
    }

    /// The size of the pages that a mode's memory is made of, in bytes.
    pub(crate) fn page_size(&self, mode: Mode) -> u64 {
        let pages = match mode {
            Mode::Pages => self.pages.as_ref().map(PagePool::pages),
            Mode::Static => self.fixed.as_ref().map(Pool::pages),
            Mode::PerBuffer => None,
        };
        match pages {
            Some(PageSize::Huge | PageSize::Transparent) => 2 << 20,
            _ => rustix::param::page_size() as u64,
        }
    }
}
