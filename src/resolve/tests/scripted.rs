//! A host that does as it is told.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};

use super::super::host::Host;
use crate::error::{Errno, Result};
use crate::net::{HwAddr, Neighbour, Reading, Route, RouteQuestion, Told};

/// What the scripted kernel has, and what was done to it.
#[derive(Default)]
pub(super) struct Script {
    pub(super) routes: HashMap<IpAddr, Route>,
    pub(super) neighbours: HashMap<(u32, IpAddr), Neighbour>,
    pub(super) news: VecDeque<Told>,
    pub(super) probed: Vec<(u32, IpAddr)>,
    pub(super) asked: usize,
    /// Done when the answer to a question is made up and not given yet.
    pub(super) meanwhile: Option<Box<dyn FnOnce() + Send>>,
}

#[derive(Clone)]
pub(super) struct Scripted {
    script: Arc<Mutex<Script>>,
    /// Readable when there is news.
    readable: Arc<OwnedFd>,
}

impl Scripted {
    pub(super) fn new() -> Scripted {
        let readable = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        Scripted { script: Arc::default(), readable: Arc::new(readable.expect("an eventfd")) }
    }

    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Script) -> R) -> R {
        change(&mut self.script.lock().expect("no test panics while it holds this"))
    }

    pub(super) fn tell(&self, told: Told) {
        self.with(|script| script.news.push_back(told));
        rustix::io::write(&*self.readable, &1_u64.to_ne_bytes()).expect("an eventfd");
    }

    /// The neighbour is this now, and the kernel tells of it.
    pub(super) fn neighbour(&self, ifindex: u32, ip: IpAddr, state: u16, last: u8) {
        let hw_addr = HwAddr::new(&mac(last));
        let neighbour = Neighbour { ifindex, ip, hw_addr, state };
        self.with(|script| script.neighbours.insert((ifindex, ip), neighbour));
        self.tell(Told::Neighbour(neighbour));
    }

    pub(super) fn forget(&self, ifindex: u32, ip: IpAddr) {
        self.with(|script| script.neighbours.remove(&(ifindex, ip)));
        self.tell(Told::Neighbour(Neighbour { ifindex, ip, hw_addr: None, state: 0 }));
    }

    pub(super) fn route(&self, to: IpAddr, route: Route) {
        self.with(|script| script.routes.insert(to, route));
    }

    /// An answer, and then what is to happen before it is given.
    fn answer<R>(&self, answer: impl FnOnce(&Script) -> R) -> R {
        let (answer, meanwhile) = self.with(|script| {
            script.asked += 1;
            (answer(script), script.meanwhile.take())
        });
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        answer
    }
}

impl Host for Scripted {
    fn route(&self, question: &RouteQuestion) -> Result<Result<Route, Errno>> {
        Ok(self.answer(|script| script.routes.get(&question.destination).copied()))
            .map(|route| route.ok_or(Errno::ENETUNREACH))
    }

    fn neighbour(&self, ifindex: u32, ip: IpAddr) -> Result<Option<Neighbour>> {
        Ok(self.answer(|script| script.neighbours.get(&(ifindex, ip)).copied()))
    }

    fn probe(&self, ifindex: u32, ip: IpAddr) -> Result<()> {
        self.with(|script| script.probed.push((ifindex, ip)));
        Ok(())
    }

    fn drain(&self, _: &mut Reading, tell: &mut dyn FnMut(Told)) -> Result<()> {
        let _ = rustix::io::read(&*self.readable, &mut [0; 8]);
        let news = self.with(|script| std::mem::take(&mut script.news));
        news.into_iter().for_each(tell);
        Ok(())
    }

    fn news(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

pub(super) fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}
