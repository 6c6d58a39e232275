use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::fixture::{address_message, link_message};
use super::super::message::{HEADER, message};
use super::super::socket::{Received, Source};
use super::*;

/// What the kernel is to say to a request, told its sequence number: the parts of an answer.
type Answer = Box<dyn Fn(u32) -> Vec<Vec<u8>> + Send>;

/// A kernel that gives prepared answers, one a request, and then an empty one to any.
#[derive(Default)]
struct Kernel(Mutex<Script>);

#[derive(Default)]
struct Script {
    answers: VecDeque<Answer>,
    requests: Vec<u16>,
    queue: VecDeque<Vec<u8>>,
    /// The next message is some process's.
    forged: VecDeque<Vec<u8>>,
    discards: usize,
}

fn done(sequence: u32, flags: u16) -> Vec<u8> {
    message(NLMSG_DONE, flags, sequence, &[0; 4])
}

impl Source for Kernel {
    fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        let mut script = self.0.lock().expect("one test");
        let (bytes, from_kernel) = match script.forged.pop_front() {
            Some(forged) => (forged, false),
            None => (script.queue.pop_front().ok_or(Errno::EAGAIN)?, true),
        };
        let len = bytes.len().min(buffer.len());
        buffer[..len].copy_from_slice(&bytes[..len]);
        Ok(Received { len: bytes.len(), from_kernel })
    }
}

impl Peer for Kernel {
    fn send(&self, request: &[u8]) -> Result<(), Errno> {
        let mut script = self.0.lock().expect("one test");
        assert!(script.queue.is_empty(), "a request in the middle of an answer");
        let request = Messages::new(request).next().expect("a request");
        script.requests.push(request.kind);
        let parts = match script.answers.pop_front() {
            Some(answer) => answer(request.sequence),
            None => vec![done(request.sequence, 0)],
        };
        script.queue.extend(parts);
        Ok(())
    }

    fn discard(&self, _: &mut [u8]) {
        let mut script = self.0.lock().expect("one test");
        script.queue.clear();
        script.discards += 1;
    }
}

fn reader(answers: Vec<Answer>) -> Reader<Kernel> {
    let script = Script { answers: answers.into(), ..Script::default() };
    Reader::new(Kernel(Mutex::new(script)))
}

fn names(read: &(Vec<Interface>, Vec<LocalAddress>)) -> Vec<&str> {
    read.0.iter().filter_map(Interface::name).collect()
}

fn script<T>(reader: &Reader<Kernel>, ask: impl FnOnce(&mut Script) -> T) -> T {
    ask(&mut reader.peer.0.lock().expect("one test"))
}

#[test]
fn an_answer_in_parts() {
    let reader = reader(vec![
        Box::new(|n| {
            vec![
                [link_message(n, 2, 1, "lo"), link_message(n, 2, 2, "e0")].concat(),
                link_message(n, 2, 3, "e1"),
                done(n, 2),
            ]
        }),
        Box::new(|n| vec![[address_message(n, 2, 1, [127, 0, 0, 1]), done(n, 2)].concat()]),
    ]);
    let read = reader.read().expect("both dumps");
    assert_eq!(names(&read), ["lo", "e0", "e1"]);
    assert_eq!(read.1.len(), 1);
    let requests = script(&reader, |script| script.requests.clone());
    assert_eq!(requests, [libc::RTM_GETLINK, libc::RTM_GETADDR]);
}

/// Wherever the flag stands, what was read is not kept.
#[test]
fn an_interrupted_dump_is_read_again() {
    let reader = reader(vec![
        Box::new(|n| vec![link_message(n, NLM_F_DUMP_INTR, 1, "lo"), done(n, 0)]),
        Box::new(|n| vec![link_message(n, 0, 1, "lo"), done(n, NLM_F_DUMP_INTR)]),
        Box::new(|n| vec![message(NLMSG_OVERRUN, 0, n, &[]), done(n, 0)]),
        Box::new(|n| vec![link_message(n, 0, 1, "lo"), link_message(n, 0, 2, "e0"), done(n, 0)]),
    ]);
    assert_eq!(names(&reader.read().expect("the fourth is whole")), ["lo", "e0"]);
}

#[test]
fn interruptions_without_end() {
    let interrupted = || Box::new(|n| vec![done(n, NLM_F_DUMP_INTR)]) as Answer;
    let reader = reader((0..ATTEMPTS).map(|_| interrupted()).collect());
    let error = reader.read().expect_err("none is whole");
    let text = "netlink dump of interfaces (RTM_GETLINK): EINTR";
    assert!(error.to_string().starts_with(text), "{error}");
    assert_eq!(script(&reader, |script| script.requests.len()), ATTEMPTS);
}

#[test]
fn refusals_are_told() {
    let refusal = |kind: u16, errno: i32| {
        Box::new(move |n| vec![message(kind, 0, n, &(-errno).to_ne_bytes())]) as Answer
    };
    for (kind, errno, told) in
        [(NLMSG_ERROR, 1, "EPERM"), (NLMSG_DONE, 12, "ENOMEM"), (NLMSG_ERROR, 0, "EPROTO")]
    {
        let error = reader(vec![refusal(kind, errno)]).read().expect_err("a refusal");
        assert!(error.to_string().contains(told), "{error}");
    }
}

/// Answers that break off: an error, and the next read starts afresh.
#[test]
fn an_answer_that_breaks_off() {
    let reader = reader(vec![
        Box::new(|n| vec![link_message(n, 0, 1, "lo")]),
        Box::new(|n| {
            let mut cut = link_message(n, 0, 1, "lo");
            cut.truncate(HEADER + 4);
            vec![cut, link_message(n, 0, 2, "e0"), done(n, 0)]
        }),
        Box::new(|n| {
            vec![link_message(n - 1, 0, 9, "old"), link_message(n, 0, 1, "lo"), done(n, 0)]
        }),
    ]);
    assert!(reader.read().expect_err("silence").to_string().contains("EAGAIN"));
    assert!(reader.read().expect_err("a cut message").to_string().contains("EPROTO"));
    assert_eq!(names(&reader.read().expect("a whole answer")), ["lo"]);
    assert_eq!(script(&reader, |script| script.discards), 2);
}

/// An object longer than the buffer is read again into a longer one.
#[test]
fn the_buffer_grows() {
    let long = |n| {
        let mut payload = link_message(n, 0, 1, "lo").split_off(HEADER);
        payload.resize(2 * BUFFER, 0);
        vec![message(libc::RTM_NEWLINK, 0, n, &payload), done(n, 0)]
    };
    let reader = reader(vec![Box::new(long), Box::new(long)]);
    assert_eq!(names(&reader.read().expect("the second fits")), ["lo"]);
    assert_eq!(script(&reader, |script| script.requests.len()), 3);
}

#[test]
fn forged_answers_are_passed_over() {
    let reader = reader(vec![Box::new(|n| vec![link_message(n, 0, 1, "lo"), done(n, 0)])]);
    let forged = [link_message(1, 0, 6, "evil0"), done(1, 0)].concat();
    script(&reader, |script| script.forged.push_back(forged));
    assert_eq!(names(&reader.read().expect("the kernel's answer")), ["lo"]);
}

proptest! {
    #[test]
    fn no_bytes_panic(parts: Vec<Vec<u8>>) {
        let _ = reader(vec![Box::new(move |_| parts.clone())]).read();
    }
}
