//! Notifications of all that the way to an address depends on.
//!
//! # Why no change is lost
//!
//! As for [`Listener`](super::listen): a change is told after it can be read, and a loss is told when
//! the socket has been found empty, behind everything that was dropped. Of a neighbour what it is now is
//! told; of everything else only that it changed.

#![deny(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};

use super::message::Messages;
use super::neighbour::{Neighbour, is_no_neighbour};
use super::route::is_copy;
use super::socket::{ROUTE, Socket, Source};
use crate::error::{Errno, Error, Result};

/// The groups to listen to, a bit each: number n is bit n - 1.
const GROUPS: u32 = group(libc::RTNLGRP_LINK)
    | group(libc::RTNLGRP_NEIGH)
    | group(libc::RTNLGRP_IPV4_IFADDR)
    | group(libc::RTNLGRP_IPV4_ROUTE)
    | group(libc::RTNLGRP_IPV4_RULE)
    | group(libc::RTNLGRP_IPV6_IFADDR)
    | group(libc::RTNLGRP_IPV6_ROUTE)
    | group(libc::RTNLGRP_IPV6_IFINFO)
    | group(libc::RTNLGRP_IPV6_RULE)
    | group(libc::RTNLGRP_IPV4_NETCONF)
    | group(libc::RTNLGRP_IPV6_NETCONF)
    | group(libc::RTNLGRP_NEXTHOP);

const fn group(number: u32) -> u32 {
    1 << (number - 1)
}

/// A thousand notifications or so; when more come before they are taken in, all is asked anew.
const ROOM: usize = 1 << 20;
const NAME: &str = "netlink notifications of routes and neighbours (NETLINK_ROUTE)";
/// More than any message needs that is looked at.
const BUFFER: usize = 16 * 1024;
/// The most messages taken in at once. A source that never runs dry must not hold anybody for ever.
const MOST_AT_ONCE: usize = 4096;

/// What a notification tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// A neighbour changed, to this; its state is 0 when it was removed.
    Neighbour(Neighbour),
    /// An interface, address, rule, route or next hop changed, or nobody knows what.
    Anything,
}

/// The socket that they come from.
pub(crate) struct News<S = Socket> {
    source: S,
}

/// How far it has been read: what whoever reads it holds.
pub(crate) struct Reading {
    buffer: Box<[u8]>,
    /// Messages were lost, and the socket was not found empty since.
    losing: bool,
    /// How often messages were lost.
    pub(crate) lost: u64,
}

impl Reading {
    pub(crate) fn new() -> Reading {
        Reading { buffer: vec![0; BUFFER].into(), losing: false, lost: 0 }
    }
}

impl News {
    /// Listens in this thread's network namespace.
    pub(crate) fn open() -> Result<News> {
        Ok(News::new(Socket::for_groups(ROUTE, GROUPS, ROOM, NAME)?))
    }
}

impl<S: Source> News<S> {
    pub(crate) fn new(source: S) -> News<S> {
        News { source }
    }

    /// Takes in the notifications there are, without waiting.
    pub(crate) fn drain(&self, reading: &mut Reading, mut tell: impl FnMut(Told)) -> Result<()> {
        for _ in 0..MOST_AT_ONCE {
            match self.source.receive(&mut reading.buffer) {
                // Anybody with the right to may send here, and say anything.
                Ok(received) if !received.from_kernel => {}
                Ok(received) => match reading.buffer.get(..received.len) {
                    Some(message) => read(message, &mut tell),
                    None => tell(Told::Anything),
                },
                // The kernel had no room for a message, or no memory to make it.
                Err(Errno::ENOBUFS | Errno::ENOMEM | Errno::EMSGSIZE) => {
                    reading.lost += 1;
                    reading.losing = true;
                }
                Err(Errno::EAGAIN) => {
                    if std::mem::take(&mut reading.losing) {
                        tell(Told::Anything);
                    }
                    return Ok(());
                }
                Err(errno) => {
                    tell(Told::Anything);
                    return Err(Error::Host { call: NAME, errno });
                }
            }
        }
        // What is still in the socket may be what somebody waits for.
        tell(Told::Anything);
        Ok(())
    }
}

/// Tells what the messages of one notification tell.
fn read(notification: &[u8], tell: &mut impl FnMut(Told)) {
    let mut messages = Messages::new(notification);
    for message in messages.by_ref() {
        let payload = message.payload;
        let told = match message.kind {
            libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH if is_no_neighbour(payload) => continue,
            libc::RTM_NEWNEIGH => Neighbour::parse(payload).map(Told::Neighbour),
            libc::RTM_DELNEIGH => Neighbour::parse(payload)
                .map(|neighbour| Told::Neighbour(Neighbour { state: 0, ..neighbour })),
            // A program is asked to look for a neighbour.
            libc::RTM_GETNEIGH => continue,
            libc::RTM_NEWROUTE | libc::RTM_DELROUTE if is_copy(payload) => continue,
            // A bridge's own word of its ports.
            libc::RTM_NEWLINK | libc::RTM_DELLINK if is_of_bridge(payload) => continue,
            _ => None,
        };
        tell(told.unwrap_or(Told::Anything));
    }
    if !messages.is_at_end() {
        tell(Told::Anything);
    }
}

fn is_of_bridge(payload: &[u8]) -> bool {
    payload.first().is_some_and(|family| i32::from(*family) == libc::AF_BRIDGE)
}

impl AsFd for News {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use proptest::prelude::*;

    use super::super::fixture::{address_message, attributes, link_message, neighbour};
    use super::super::message::{NLMSG_OVERRUN, message};
    use super::super::socket::Received;
    use super::*;

    /// A message, and whether the kernel sent it.
    type Said = Result<(Vec<u8>, bool), Errno>;

    /// Gives what it was told to, then `EAGAIN`.
    struct Script(Mutex<VecDeque<Said>>);

    impl Source for Script {
        fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
            let next = self.0.lock().expect("one test").pop_front();
            let (bytes, from_kernel) = next.unwrap_or(Err(Errno::EAGAIN))?;
            let len = bytes.len().min(buffer.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
            Ok(Received { len: bytes.len(), from_kernel })
        }
    }

    /// What is told of these, and how often it was lost.
    fn told(script: Vec<Said>) -> (Vec<Told>, u64) {
        let news = News::new(Script(Mutex::new(script.into())));
        let (mut reading, mut told) = (Reading::new(), Vec::new());
        news.drain(&mut reading, |what| told.push(what)).expect("drained");
        (told, reading.lost)
    }

    fn kernel(bytes: Vec<u8>) -> Said {
        Ok((bytes, true))
    }

    fn of_neighbour(kind: u16, family: i32, state: u16) -> Vec<u8> {
        let list: [(u16, &[u8]); 2] = [(1, &[192, 0, 2, 9]), (2, &[2, 0, 0, 0, 0, 9])];
        message(kind, 0, 0, &neighbour(family, 5, state, 0, &attributes(&list)))
    }

    fn of_route(flags: u32) -> Vec<u8> {
        let mut payload = vec![libc::AF_INET as u8, 24, 0, 0, 254, 4, 0, 1];
        payload.extend(flags.to_ne_bytes());
        message(libc::RTM_NEWROUTE, 0, 0, &payload)
    }

    #[test]
    fn neighbours_are_told_as_they_are() {
        let state = |kind, state| match told(vec![kernel(of_neighbour(kind, libc::AF_INET, state))])
            .0
            .as_slice()
        {
            [Told::Neighbour(neighbour)] => {
                assert_eq!((neighbour.ifindex, neighbour.ip), (5, [192, 0, 2, 9].into()));
                neighbour.state
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(state(libc::RTM_NEWNEIGH, libc::NUD_FAILED), libc::NUD_FAILED);
        assert_eq!(state(libc::RTM_DELNEIGH, libc::NUD_STALE), 0);
        let both =
            [of_neighbour(28, libc::AF_INET, 2), of_neighbour(28, libc::AF_INET, 4)].concat();
        assert_eq!(told(vec![kernel(both)]).0.len(), 2);
    }

    #[test]
    fn all_else_may_be_anything() {
        for kind in [24, 25, 32, 33, 16, 17, 20, 21, 80, 104, 105, 116, 4711, NLMSG_OVERRUN] {
            let mut payload = [0; 16];
            payload[0] = libc::AF_INET as u8;
            let message = message(kind, 0, 0, &payload);
            assert_eq!(told(vec![kernel(message)]).0, [Told::Anything], "{kind}");
        }
        for message in [
            link_message(0, 0, 2, "e0"),
            address_message(0, 0, 2, [192, 0, 2, 1]),
            of_route(0),
            message(libc::RTM_NEWNEIGH, 0, 0, &[libc::AF_INET as u8; 5]),
            of_route(0)[..9].to_vec(),
            vec![0; BUFFER + 1],
        ] {
            assert_eq!(told(vec![kernel(message)]).0, [Told::Anything]);
        }
    }

    #[test]
    fn what_concerns_no_route() {
        let bridge = message(libc::RTM_NEWLINK, 0, 0, &[libc::AF_BRIDGE as u8; 16]);
        for message in [
            of_neighbour(libc::RTM_NEWNEIGH, libc::AF_BRIDGE, 2),
            of_neighbour(libc::RTM_GETNEIGH, libc::AF_INET, 2),
            of_route(0x200),
            bridge,
            Vec::new(),
        ] {
            assert_eq!(told(vec![kernel(message)]).0, []);
        }
        assert_eq!(told(vec![Ok((of_route(0), false))]).0, [], "forged");
    }

    /// After the word of it the kernel drops in silence, until the socket is empty.
    #[test]
    fn a_loss_is_told_when_the_socket_is_empty() {
        for errno in [Errno::ENOBUFS, Errno::ENOMEM, Errno::EMSGSIZE] {
            let neighbour = of_neighbour(libc::RTM_NEWNEIGH, libc::AF_INET, 2);
            let (told, lost) = told(vec![Err(errno), kernel(neighbour)]);
            assert!(matches!(told[..], [Told::Neighbour(_), Told::Anything]), "{told:?}");
            assert_eq!(lost, 1);
        }
        // However many calls that takes.
        let mut script = vec![kernel(Vec::new()); MOST_AT_ONCE];
        script.insert(0, Err(Errno::ENOBUFS));
        let news = News::new(Script(Mutex::new(script.into())));
        let (mut reading, mut told) = (Reading::new(), 0);
        for expected in [1, 2, 2] {
            news.drain(&mut reading, |_| told += 1).expect("drained");
            assert_eq!(told, expected);
        }
    }

    #[test]
    fn a_failure_is_an_error_and_anything() {
        let news = News::new(Script(Mutex::new(vec![Err(Errno::EBADF)].into())));
        let mut told = Vec::new();
        let outcome = news.drain(&mut Reading::new(), |what| told.push(what));
        assert!(
            outcome.expect_err("a failure").to_string().ends_with("EBADF (9): Bad file descriptor")
        );
        assert_eq!(told, [Told::Anything]);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, kind in 0_u16..120) {
            read(&bytes, &mut |_| {});
            let mut count = 0;
            read(&message(kind, 0, 0, &bytes), &mut |_| count += 1);
            prop_assert!(count <= 1);
        }
    }
}
