//! Who is asked: the kernel, or in tests a script.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use crate::error::{Errno, Result};
use crate::net::{Asker, Neighbour, News, Prober, Reading, Route, RouteQuestion, Told};

/// What a resolver needs of a host: a trait, so that changes between two questions are unit tests.
pub(super) trait Host: Send + Sync {
    /// The route there, or the errno that stands for it.
    fn route(&self, question: &RouteQuestion) -> Result<Result<Route, Errno>>;

    /// What is known of a neighbour.
    fn neighbour(&self, ifindex: u32, ip: IpAddr) -> Result<Option<Neighbour>>;

    /// Makes the host look for a neighbour.
    fn probe(&self, ifindex: u32, ip: IpAddr) -> Result<()>;

    /// Takes notifications in, without waiting.
    fn drain(&self, reading: &mut Reading, tell: &mut dyn FnMut(Told)) -> Result<()>;

    /// Readable when there are notifications.
    fn news(&self) -> BorrowedFd<'_>;
}

/// This thread's network namespace.
pub(super) struct Kernel {
    news: News,
    asker: Asker,
    prober: Prober,
}

impl Kernel {
    /// Listening comes first, so that no change goes past the first question.
    pub(super) fn open() -> Result<Kernel> {
        Ok(Kernel { news: News::open()?, asker: Asker::open()?, prober: Prober::open()? })
    }
}

impl Host for Kernel {
    fn route(&self, question: &RouteQuestion) -> Result<Result<Route, Errno>> {
        self.asker.route(question)
    }

    fn neighbour(&self, ifindex: u32, ip: IpAddr) -> Result<Option<Neighbour>> {
        self.asker.neighbour(ifindex, ip)
    }

    fn probe(&self, ifindex: u32, ip: IpAddr) -> Result<()> {
        self.prober.probe(ifindex, ip)
    }

    fn drain(&self, reading: &mut Reading, tell: &mut dyn FnMut(Told)) -> Result<()> {
        self.news.drain(reading, tell)
    }

    fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}
