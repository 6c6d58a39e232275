//! One question, one answer: what the kernel knows of one route or one neighbour.

#![deny(unsafe_code)]

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use super::message::{
    Message, Messages, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, dump_request,
    message,
};
use super::neighbour::Neighbour;
use super::route::{Route, RouteQuestion};
use super::socket::{Peer, ROUTE, Socket};
use crate::error::{Errno, Error, Result};

/// No answer to one question is longer, nor a part of a dump.
const BUFFER: usize = 64 * 1024;
const NEIGHBOUR: &str = "netlink question for a neighbour (RTM_GETNEIGH)";
/// How often all neighbours are asked for while changes interrupt the answer.
const MOST_DUMPS: usize = 100;
/// The most messages taken for one question: answers to earlier ones, whose time was over.
const MOST_STALE: usize = 1024;

/// Asks the kernel, one question at a time.
pub(crate) struct Asker<P = Socket> {
    peer: P,
    state: Mutex<State>,
}

struct State {
    /// Of the last question: an answer to an earlier one is known by it.
    sequence: u32,
    buffer: Box<[u8]>,
}

/// What is asked: a name for errors, the types of question and answer, how an answer is read.
struct Question<T> {
    call: &'static str,
    kind: u16,
    answer: u16,
    body: Vec<u8>,
    parse: fn(&[u8]) -> Option<T>,
}

impl Asker {
    /// Asks in this thread's network namespace, from whichever thread.
    pub(crate) fn open() -> Result<Asker> {
        Ok(Asker::new(Socket::for_requests(ROUTE, "netlink socket (NETLINK_ROUTE)")?))
    }
}

impl<P: Peer> Asker<P> {
    pub(super) fn new(peer: P) -> Asker<P> {
        Asker { peer, state: Mutex::new(State { sequence: 0, buffer: vec![0; BUFFER].into() }) }
    }

    /// The route to an address, or the errno that the kernel answers instead.
    pub(crate) fn route(&self, question: &RouteQuestion) -> Result<Result<Route, Errno>> {
        self.ask(Question {
            call: "netlink question for a route (RTM_GETROUTE)",
            kind: libc::RTM_GETROUTE,
            answer: libc::RTM_NEWROUTE,
            body: question.body(),
            parse: Route::parse,
        })
    }

    /// What the kernel has of a neighbour; `None` when it has nothing.
    pub(crate) fn neighbour(&self, ifindex: u32, ip: IpAddr) -> Result<Option<Neighbour>> {
        let answer = self.ask(Question {
            call: NEIGHBOUR,
            kind: libc::RTM_GETNEIGH,
            answer: libc::RTM_NEWNEIGH,
            body: Neighbour::question(ifindex, ip),
            parse: Neighbour::parse,
        })?;
        match answer {
            Ok(neighbour) => Ok(Some(neighbour)),
            // The interface has gone: so has the neighbour.
            Err(Errno::ENOENT | Errno::ENODEV) => Ok(None),
            Err(Errno::EOPNOTSUPP) => self.neighbour_among_all(ifindex, ip),
            Err(errno) => Err(Error::Host { call: NEIGHBOUR, errno }),
        }
    }

    /// The same of a kernel before 5.0, which tells of all neighbours or of none.
    fn neighbour_among_all(&self, ifindex: u32, ip: IpAddr) -> Result<Option<Neighbour>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let fail = |errno| Error::Host { call: NEIGHBOUR, errno };
        for _ in 0..MOST_DUMPS {
            state.sequence = state.sequence.wrapping_add(1);
            let State { sequence, buffer } = &mut *state;
            let request = dump_request(libc::RTM_GETNEIGH, *sequence, &Neighbour::all_like(ip));
            self.peer.send(&request).map_err(fail)?;
            let (mut found, mut whole) = (None, true);
            loop {
                let received = match self.peer.receive(buffer) {
                    Ok(received) => received,
                    Err(errno) => {
                        // The kernel takes no other dump request while it is at this one.
                        self.peer.discard(buffer);
                        return Err(fail(errno));
                    }
                };
                let bytes = buffer.get(..received.len).filter(|_| received.from_kernel);
                whole &= bytes.is_some() || !received.from_kernel;
                let messages = Messages::new(bytes.unwrap_or_default());
                let mut done = false;
                for message in messages.filter(|message| message.sequence == *sequence) {
                    whole &= message.flags & NLM_F_DUMP_INTR == 0;
                    match message.kind {
                        NLMSG_ERROR => return Err(fail(errno_of(&message))),
                        NLMSG_DONE => done = true,
                        _ => {
                            let there = Neighbour::parse(message.payload);
                            let is_it = |n: &Neighbour| n.ifindex == ifindex && n.ip == ip;
                            found = there.filter(is_it).or(found);
                        }
                    }
                }
                if done {
                    break;
                }
            }
            if whole || found.is_some() {
                return Ok(found);
            }
        }
        Err(fail(Errno::EINTR))
    }

    fn ask<T>(&self, question: Question<T>) -> Result<Result<T, Errno>> {
        // A panic elsewhere leaves an answer in the socket at worst, which is passed over.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let fail = |errno| Error::Host { call: question.call, errno };
        state.sequence = state.sequence.wrapping_add(1);
        let State { sequence, buffer } = &mut *state;
        let request = message(question.kind, NLM_F_REQUEST, *sequence, &question.body);
        self.peer.send(&request).map_err(fail)?;
        for _ in 0..MOST_STALE {
            let received = match self.peer.receive(buffer) {
                Ok(received) => received,
                // What was dropped is told of when an answer is missing.
                Err(Errno::ENOBUFS) => continue,
                Err(Errno::EAGAIN) => return Err(fail(Errno::ETIMEDOUT)),
                Err(errno) => return Err(fail(errno)),
            };
            let bytes = buffer.get(..received.len).unwrap_or(buffer);
            let mut messages = Messages::new(bytes).filter(|m| m.sequence == *sequence);
            let Some(answer) = messages.next().filter(|_| received.from_kernel) else { continue };
            return match answer.kind {
                NLMSG_ERROR => Ok(Err(errno_of(&answer))),
                kind if kind == question.answer => {
                    (question.parse)(answer.payload).map(Ok).ok_or_else(|| fail(Errno::EPROTO))
                }
                _ => Err(fail(Errno::EPROTO)),
            };
        }
        Err(fail(Errno::EPROTO))
    }
}

/// The error that a message tells of; none where there should be an answer makes no sense.
fn errno_of(message: &Message<'_>) -> Errno {
    match message.errno() {
        0 => Errno::EPROTO,
        errno => Errno::from_raw(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::super::fixture::{attributes, neighbour, number};
    use super::super::message::message;
    use super::super::socket::{Received, Source};
    use super::*;

    /// Answers with what it was told to, whatever the question, then with nothing.
    struct Scripted(Mutex<VecDeque<(Vec<u8>, bool)>>);

    impl Source for Scripted {
        fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
            let next = self.0.lock().expect("one test").pop_front();
            let (bytes, from_kernel) = next.ok_or(Errno::EAGAIN)?;
            let len = bytes.len().min(buffer.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
            Ok(Received { len: bytes.len(), from_kernel })
        }
    }

    impl Peer for Scripted {
        fn send(&self, _: &[u8]) -> Result<(), Errno> {
            Ok(())
        }

        fn discard(&self, _: &mut [u8]) {}
    }

    fn asker(script: &[(Vec<u8>, bool)]) -> Asker<Scripted> {
        Asker::new(Scripted(Mutex::new(script.to_vec().into())))
    }

    fn question() -> RouteQuestion {
        RouteQuestion { destination: [192, 0, 2, 1].into(), source: None, ifindex: 0, mark: 0 }
    }

    fn route(sequence: u32, ifindex: u32) -> Vec<u8> {
        let mut payload = vec![libc::AF_INET as u8, 32, 0, 0, 254, 0, 0, libc::RTN_UNICAST];
        payload.extend([0; 4]);
        payload.extend(attributes(&[(4, &number(ifindex))]));
        message(libc::RTM_NEWROUTE, 0, sequence, &payload)
    }

    fn error(sequence: u32, errno: i32) -> Vec<u8> {
        message(NLMSG_ERROR, 0, sequence, &(-errno).to_ne_bytes())
    }

    /// Answers to earlier questions and messages of processes are passed over.
    #[test]
    fn the_answer_is_the_one_to_the_question() {
        let script =
            [(route(0, 7), true), (route(1, 8), false), (vec![1], true), (route(1, 9), true)];
        let route = asker(&script).route(&question()).expect("an answer").expect("a route");
        assert_eq!(route.ifindex, 9);
    }

    #[test]
    fn what_the_kernel_refuses() {
        let answer = asker(&[(error(1, libc::ENETUNREACH), true)]).route(&question());
        assert_eq!(answer.expect("an answer"), Err(Errno::ENETUNREACH));
        let failed = |script: &[(Vec<u8>, bool)]| {
            asker(script).route(&question()).expect_err("no answer").to_string()
        };
        let odd = "netlink question for a route (RTM_GETROUTE): EPROTO";
        assert_eq!(
            asker(&[(error(1, 0), true)]).route(&question()).expect("odd"),
            Err(Errno::EPROTO)
        );
        assert!(failed(&[(message(99, 0, 1, &[]), true)]).starts_with(odd));
        assert!(failed(&[(message(libc::RTM_NEWROUTE, 0, 1, &[]), true)]).starts_with(odd));
        assert!(failed(&[]).contains("ETIMEDOUT"));
        assert!(failed(&vec![(vec![], true); MOST_STALE + 1]).starts_with(odd));
    }

    #[test]
    fn neighbours() {
        let list: [(u16, &[u8]); 1] = [(1, &[192, 0, 2, 1])];
        let payload = neighbour(libc::AF_INET, 5, libc::NUD_STALE, 0, &attributes(&list));
        let there = asker(&[(message(libc::RTM_NEWNEIGH, 0, 1, &payload), true)]);
        let there = there.neighbour(5, [192, 0, 2, 1].into()).expect("an answer");
        assert!(there.expect("a neighbour").is_usable());
        for errno in [libc::ENOENT, libc::ENODEV] {
            let none = asker(&[(error(1, errno), true)]).neighbour(5, [192, 0, 2, 1].into());
            assert_eq!(none.expect("an answer"), None);
        }
        let refused = asker(&[(error(1, libc::EPERM), true)]).neighbour(5, [192, 0, 2, 1].into());
        assert!(refused.expect_err("refused").to_string().contains("RTM_GETNEIGH): EPERM"));
    }

    #[test]
    fn a_kernel_that_tells_of_all_neighbours() {
        let of = |sequence, flags, last, ifindex| {
            let list: [(u16, &[u8]); 1] = [(1, &[192, 0, 2, last])];
            let payload = neighbour(libc::AF_INET, ifindex, libc::NUD_STALE, 0, &attributes(&list));
            message(libc::RTM_NEWNEIGH, flags, sequence, &payload)
        };
        let done = |sequence| message(NLMSG_DONE, 0, sequence, &[0; 4]);
        let refused = (error(1, libc::EOPNOTSUPP), true);
        let ask = |script: &[(Vec<u8>, bool)]| asker(script).neighbour(5, [192, 0, 2, 1].into());
        let others = [of(2, 0, 2, 5), of(2, 0, 1, 6), of(1, 0, 1, 5)].concat();
        let script = [refused.clone(), (others.clone(), true), (done(2), true)];
        assert_eq!(ask(&script).expect("an answer"), None);
        let script = [
            refused.clone(),
            (of(2, 0, 1, 5), false),
            ([others.clone(), of(2, 0, 1, 5)].concat(), true),
            (done(2), true),
        ];
        assert_eq!(ask(&script).expect("an answer").map(|there| there.ifindex), Some(5));
        // Interrupted, and asked for again.
        let script = [
            refused.clone(),
            (of(2, NLM_F_DUMP_INTR, 2, 5), true),
            (done(2), true),
            (of(3, 0, 1, 5), true),
            (done(3), true),
        ];
        assert!(ask(&script).expect("an answer").is_some());
        assert!(ask(&[refused]).is_err());
    }

    /// One by one and all together, the kernel tells the same.
    #[test]
    fn both_ways_of_asking_agree() {
        let asker = Asker::open().expect("an ordinary user may");
        let table = std::fs::read_to_string("/proc/net/arp").unwrap_or_default();
        let known = table.lines().skip(1).filter_map(|line| line.split(' ').next()?.parse().ok());
        for (ip, ifindex) in known.flat_map(|ip: IpAddr| (1..8).map(move |ifindex| (ip, ifindex))) {
            let ask = |all: bool| {
                let answer = match all {
                    true => asker.neighbour_among_all(ifindex, ip),
                    false => asker.neighbour(ifindex, ip),
                };
                answer.expect("an answer").map(|there| (there.ip, there.hw_addr))
            };
            assert_eq!(ask(true), ask(false), "{ip} on {ifindex}");
        }
    }

    /// On whatever machine: the way to loopback is local, and there is no neighbour called so.
    #[test]
    fn this_host() {
        let asker = Asker::open().expect("an ordinary user may");
        let mut question = question();
        question.destination = [127, 0, 0, 1].into();
        let route = asker.route(&question).expect("an answer").expect("a route");
        assert_eq!((route.kind, route.ifindex), (libc::RTN_LOCAL, 1));
        assert_eq!(route.source, Some([127, 0, 0, 1].into()));
        assert_eq!(asker.neighbour(1, [127, 3, 2, 1].into()).expect("an answer"), None);
        assert_eq!(asker.neighbour(i32::MAX as u32, [127, 3, 2, 1].into()).expect("none"), None);
    }
}
