//! The memory that messages come into, and what is in a message.

use rdma_verbs::{Buffer, Error, Pool, ProtectionDomain, RecvQueue, Result, wr::Receive};

use super::Options;
use super::end::HEADER;

/// The memory that messages come into.
pub(crate) struct Receives {
    pool: Pool,
    /// How many are posted when they are posted anew.
    pub(crate) depth: u32,
    posted: u32,
    /// Whether to leave nothing in it that could be taken for a message.
    wipe: bool,
}

/// Receives may take so much memory; a message that is under way needs one of them.
const ROOM: u64 = 4 << 20;

impl Receives {
    /// As many as are asked for, or fit.
    pub(crate) fn new(options: &Options, pd: &ProtectionDomain) -> Result<Receives> {
        let size = options.size.saturating_add(HEADER as u64);
        let depth = (ROOM / size.max(64)).max(2).min(options.rx_depth.into()) as u32;
        // One is sent, and one has come and waits for that.
        let count = depth as usize + 2;
        let pool = Pool::new(pd, usize::try_from(size).unwrap_or(usize::MAX), count)?;
        Ok(Receives { pool, depth, posted: 0, wipe: options.chk })
    }

    /// A buffer with what the client sends: what C's sends with `-c`, and takes for right.
    pub(crate) fn first_message(&self) -> Result<Buffer> {
        let mut buffer = self.take()?;
        let message = buffer.get_mut(HEADER..).unwrap_or_default();
        message.iter_mut().enumerate().for_each(|(at, byte)| *byte = expected(at));
        Ok(buffer)
    }

    /// One has come; when few are left, as many as there were are posted again.
    pub(crate) fn one_came(&mut self, queue: &mut RecvQueue) -> Result<()> {
        self.posted -= 1;
        if self.posted <= 1 { self.refill(queue) } else { Ok(()) }
    }

    pub(crate) fn refill(&mut self, queue: &mut RecvQueue) -> Result<()> {
        while self.posted < self.depth {
            let mut buffer = self.take()?;
            if self.wipe {
                buffer.fill(0xff);
            }
            queue.post(Receive::new(buffer))?;
            self.posted += 1;
        }
        Ok(())
    }

    fn take(&self) -> Result<Buffer> {
        // There are as many as can be posted and under way at a time.
        let count = self.pool.count() as u64;
        let what = "the number of buffers under way";
        self.pool.take().ok_or(Error::OutOfRange { what, asked: count + 1, least: 0, most: count })
    }
}

/// The byte at a place of a message.
pub(crate) fn expected(at: usize) -> u8 {
    if at % rustix::param::page_size() == 0 { 0 } else { 0x7b }
}
