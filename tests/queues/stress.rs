//! Eight queue pairs and many messages, with failures: every buffer is accounted for, and every request
//! that was accepted completes once, under its number.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use rdma_verbs::wr::{CompareSwap, FetchAdd, Inline, Read, Receive, Send, Write};
use rdma_verbs::{
    Completion, CompletionQueue, ConnectOptions, Context, Exposed, GidEntry, InitOptions, Pool,
    PostError, ProtectionDomain, QueuePair, Refusal, RemoteSlice, Rts, SendBatch, SendQueue,
    SendRequest, SharedBuffer, WcOpcode, WcStatus,
};

use crate::interposed::faults::Post;
use crate::interposed::rig::{Random, assert_nothing_is_left, descriptors, everything, open, row};
use crate::interposed::{faults, interposed};

const LINKS: usize = 4;
const BUFFERS: usize = 2048;
const SIZE: usize = 512;
const DEPTH: u32 = 64;
/// In front of a message: the number of its request, and how many bytes there are before those of the
/// shared buffer.
const HEADER: usize = 12;

/// How many messages each queue pair sends: `RDMA_TEST_MESSAGES`.
fn messages() -> u64 {
    let asked = std::env::var("RDMA_TEST_MESSAGES").ok();
    asked.map_or(20_000, |asked| asked.parse().expect("RDMA_TEST_MESSAGES is a number"))
}

/// What was posted under a number.
#[derive(Clone, Copy, Debug)]
struct Posted {
    opcode: WcOpcode,
    pieces: usize,
}

/// What is in flight, and what came of the rest.
#[derive(Default)]
struct Book {
    next: u64,
    in_flight: HashMap<u64, Posted>,
    /// By the number of a queue pair: the last message that it received.
    last: HashMap<u32, u64>,
    succeeded: u64,
    flushed: u64,
    failed: u64,
    silent: u64,
}

impl Book {
    fn enter(&mut self, opcode: WcOpcode, pieces: usize) -> u64 {
        self.next += 1;
        self.in_flight.insert(self.next, Posted { opcode, pieces });
        self.next
    }

    /// It was not accepted.
    fn strike(&mut self, wr_id: u64) {
        self.in_flight.remove(&wr_id).expect("it was entered");
    }

    fn complete(&mut self, mut completion: Completion<'_>) {
        let wr_id = completion.wr_id();
        let Some(posted) = self.in_flight.remove(&wr_id) else {
            panic!("{completion:?} is of nothing that is in flight");
        };
        assert_eq!(completion.opcode(), posted.opcode, "{completion:?}");
        let received = posted.opcode == WcOpcode::RECV && completion.is_success();
        match completion.status() {
            WcStatus::SUCCESS => self.succeeded += 1,
            WcStatus::WR_FLUSH_ERR => self.flushed += 1,
            _ => self.failed += 1,
        }
        self.silent += u64::from(completion.is_silent());
        let (qpn, length) = (completion.qpn().get(), completion.byte_len() as usize);
        let mut pieces = 0;
        let mut bytes = Vec::new();
        while let Some(memory) = completion.take() {
            pieces += 1;
            if let (true, rdma_verbs::Memory::Buffer(buffer)) = (received, memory) {
                bytes.extend_from_slice(&buffer);
            }
        }
        assert_eq!(pieces, posted.pieces, "{completion:?}");
        if received {
            assert_eq!(bytes.len(), length);
            self.check(qpn, &bytes);
        }
    }

    /// A message is what was sent, and comes after those that were sent before.
    fn check(&mut self, qpn: u32, bytes: &[u8]) {
        let Some((header, rest)) = bytes.split_at_checked(HEADER) else {
            return assert!(bytes.is_empty(), "{bytes:?}");
        };
        let number = u64::from_ne_bytes(header[..8].try_into().expect("eight"));
        let own = u32::from_ne_bytes(header[8..].try_into().expect("four")) as usize;
        let (own, shared) = rest.split_at(own);
        assert!(own.iter().all(|byte| *byte == number as u8), "{number}: {own:?}");
        assert!(shared.iter().all(|byte| *byte == 0xee), "{number}: {shared:?}");
        let before = self.last.insert(qpn, number).unwrap_or(0);
        assert!(before < number, "{number} came after {before}");
    }
}

/// Takes requests: a queue, or a batch of it.
trait Sink<'a> {
    fn put<R: SendRequest + Debug + 'a>(&mut self, request: R) -> Result<(), PostError<R>>;
}

impl<'a> Sink<'a> for &mut SendQueue {
    fn put<R: SendRequest + Debug + 'a>(&mut self, request: R) -> Result<(), PostError<R>> {
        self.post(request)
    }
}

impl<'a, const N: usize, const E: usize> Sink<'a> for SendBatch<'a, N, E> {
    fn put<R: SendRequest + Debug + 'a>(&mut self, request: R) -> Result<(), PostError<R>> {
        self.push(request)
    }
}

/// One queue pair.
struct End {
    qp: QueuePair<Rts>,
    raw: *mut c_void,
    /// It broke, and nobody has seen to it yet.
    broken: bool,
    /// What came to this place was accepted, in all the queue pairs that were here.
    accepted: u64,
}

struct Stress {
    book: Book,
    random: Random,
    links: Vec<[End; 2]>,
    shared: SharedBuffer,
    remote: RemoteSlice,
    exposed: Exposed,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    pool: Pool,
    pd: ProtectionDomain,
    row: GidEntry,
    context: Context,
    refusals: u64,
    replaced: u64,
}

impl Stress {
    fn new(seed: u64) -> Stress {
        let context = open("loop0");
        let row = row(&context);
        let pd = ProtectionDomain::new(&context).expect("a PD");
        let cq = || CompletionQueue::new(&context, 2 * 8 * DEPTH).expect("a CQ");
        let (send_cq, recv_cq) = (cq(), cq());
        let pool = Pool::new(&pd, SIZE, BUFFERS).expect("a pool");
        let exposed = Exposed::new(&pd, 4096, everything()).expect("memory");
        let remote = exposed.remote();
        let mut shared = pool.take().expect("a buffer");
        shared.fill(0xee);
        let shared = shared.freeze();
        let (book, random) = (Book::default(), Random::new(seed));
        let mut stress = Stress {
            book,
            random,
            links: Vec::new(),
            shared,
            remote,
            exposed,
            send_cq,
            recv_cq,
            pool,
            pd,
            row,
            context,
            refusals: 0,
            replaced: 0,
        };
        stress.links = (0..LINKS).map(|_| stress.link()).collect();
        stress
    }

    fn link(&self) -> [End; 2] {
        let init = InitOptions::new(self.row.port()).access(everything());
        let options = ConnectOptions::new(&self.row).reads(4).answers(4);
        let make = || {
            let made = QueuePair::rc(&self.pd, &self.send_cq, &self.recv_cq);
            let made = made.send_depth(DEPTH).recv_depth(DEPTH).max_inline(64);
            let made = made.max_send_sge(3).max_recv_sge(2).build().expect("a queue pair");
            let raw = faults::nth("qp", faults::live("qp") as u32 - 1);
            (made.init(&init).expect("to INIT"), raw)
        };
        let ((a, raw_a), (b, raw_b)) = (make(), make());
        let at_a = a.endpoint(&options).expect("an address");
        let at_b = b.endpoint(&options).expect("an address");
        let a = a.connect(&at_b, &options).expect("connected");
        let b = b.connect(&at_a, &options).expect("connected");
        [
            End { qp: a, raw: raw_a, broken: false, accepted: 0 },
            End { qp: b, raw: raw_b, broken: false, accepted: 0 },
        ]
    }

    /// Polls both, and gives the number of completions.
    fn poll(&mut self) -> usize {
        let mut count = 0;
        for cq in [&mut self.recv_cq, &mut self.send_cq] {
            let mut drain = cq.poll().expect("it can be polled");
            while let Some(completion) = drain.next() {
                count += 1;
                self.book.complete(completion);
            }
        }
        count
    }

    fn post_receives(&mut self, link: usize, end: usize) -> Result<(), Refusal> {
        let Stress { book, random, links, pool, .. } = self;
        let recvs = links[link][end].qp.recv_queue();
        let mut batch = recvs.batch_of::<8, 16>();
        for _ in 0..random.below(9) {
            // Sends need some too.
            if pool.available() < BUFFERS / 4 {
                break;
            }
            let take = || pool.take().expect("there are enough");
            let pushed = if random.once_in(2) {
                let wr_id = book.enter(WcOpcode::RECV, 1);
                batch
                    .push(Receive::new(take()).wr_id(wr_id))
                    .map_err(|failed| (wr_id, failed.refusal))
            } else {
                let wr_id = book.enter(WcOpcode::RECV, 2);
                let two = [take(), take()];
                batch.push(Receive::new(two).wr_id(wr_id)).map_err(|failed| (wr_id, failed.refusal))
            };
            if let Err((wr_id, refusal)) = pushed {
                book.strike(wr_id);
                if !matches!(refusal, Refusal::Full { .. }) {
                    return Err(refusal);
                }
                break;
            }
        }
        let Err(mut failed) = batch.post() else { return Ok(()) };
        self.refusals += 1;
        while let Some(refused) = failed.next_refused() {
            book.strike(refused.wr_id());
        }
        match failed.refusal {
            Refusal::Device { .. } => Ok(()),
            refusal => Err(refusal),
        }
    }

    /// One message of some kind.
    fn put<'a>(
        sink: &mut impl Sink<'a>,
        book: &mut Book,
        random: &mut Random,
        (pool, shared, remote): (&Pool, &SharedBuffer, RemoteSlice),
        scratch: &'a mut [u8; 64],
    ) -> Result<(), Refusal> {
        let signaled = random.once_in(4);
        let buffer = |len: usize| {
            let mut buffer = pool.take().expect("there are enough");
            buffer.set_len(len).expect("it fits");
            buffer
        };
        // A message of these lengths: of its own bytes, in one or two buffers.
        let fill = |bytes: &mut [u8], wr_id: u64, own: usize| {
            bytes[..8].copy_from_slice(&wr_id.to_ne_bytes());
            bytes[8..HEADER].copy_from_slice(&(own as u32).to_ne_bytes());
            bytes[HEADER..].fill(wr_id as u8);
        };
        macro_rules! put {
            ($opcode:ident, $pieces:expr, |$wr_id:ident| $request:expr) => {{
                let $wr_id = book.enter(WcOpcode::$opcode, $pieces);
                let request = $request.wr_id($wr_id);
                let put = sink.put(if signaled { request.signaled() } else { request });
                put.map_err(|failed| {
                    if failed.request.is_some() {
                        book.strike($wr_id);
                    }
                    failed.refusal
                })
            }};
        }
        let len = HEADER + random.below(SIZE - HEADER + 1);
        match random.below(12) {
            0 => put!(SEND, 0, |_wr_id| Send::new(())),
            1 | 2 => {
                let len = HEADER + random.below(64 - HEADER + 1);
                put!(SEND, 0, |wr_id| {
                    fill(&mut scratch[..len], wr_id, len - HEADER);
                    let scratch: &'a [u8; 64] = scratch;
                    Send::new(Inline(&scratch[..len]))
                })
            }
            3 => {
                let second = random.below(SIZE - len + 1);
                put!(SEND, 2, |wr_id| {
                    let (mut one, mut two) = (buffer(len), buffer(second));
                    fill(&mut one, wr_id, len - HEADER + second);
                    two.fill(wr_id as u8);
                    Send::new([one, two])
                })
            }
            4 | 5 => {
                let part = random.below(SIZE - len + 1);
                put!(SEND, 2, |wr_id| {
                    let mut one = buffer(len);
                    fill(&mut one, wr_id, len - HEADER);
                    Send::new((one, shared.slice(SIZE - part..).expect("inside")))
                })
            }
            6 => put!(RDMA_WRITE, 1, |_wr_id| Write::new(buffer(len), remote)),
            7 => put!(RDMA_READ, 1, |_wr_id| Read::new(buffer(len), remote)),
            8 => put!(FETCH_ADD, 1, |_wr_id| FetchAdd::new(
                buffer(8),
                remote.slice(1024, 8).expect("inside"),
                1
            )),
            9 => put!(COMP_SWAP, 1, |_wr_id| CompareSwap::new(
                buffer(8),
                remote.slice(1032, 8).expect("inside"),
                0,
                1
            )),
            _ => put!(SEND, 1, |wr_id| {
                let mut one = buffer(len);
                fill(&mut one, wr_id, len - HEADER);
                Send::new(one)
            }),
        }
    }

    /// Some messages, alone or in a batch. An error when the queue pair can take no more.
    fn send(&mut self, link: usize, end: usize) -> Result<(), Refusal> {
        let Stress { book, random, links, pool, shared, remote, .. } = self;
        let End { qp, accepted, .. } = &mut links[link][end];
        let sends = qp.send_queue();
        let of = (&*pool, &*shared, *remote);
        if pool.available() < 2 * 8 {
            return Ok(());
        }
        if random.once_in(64) {
            let places = random.below(4) as u32;
            faults::fail_post("ibv_post_send", Post::RefuseAt(places), libc::ENOMEM, 1);
        }
        if random.once_in(2000) {
            let how = if random.once_in(2) { Post::TakenUnnamed } else { Post::LostUnnamed };
            faults::fail_post("ibv_post_send", how, libc::EIO, 1);
        }
        if random.once_in(8) {
            match sends.flush() {
                Ok(_) => {}
                Err(rdma_verbs::Error::Refused(Refusal::Device { .. } | Refusal::Full { .. })) => {
                    self.refusals += 1;
                }
                Err(rdma_verbs::Error::Refused(refusal)) => return Err(refusal),
                Err(error) => panic!("{error:?}"),
            }
        }
        let mut scratch = [[0; 64]; 8];
        let count = 1 + random.below(8);
        if random.once_in(3) {
            for scratch in &mut scratch[..count] {
                match Stress::put(&mut &mut *sends, book, random, of, scratch) {
                    Ok(()) => *accepted += 1,
                    Err(Refusal::Full { .. }) => break,
                    Err(Refusal::Device { .. }) => self.refusals += 1,
                    Err(refusal) => return Err(refusal),
                }
            }
            return Ok(());
        }
        let mut batch = sends.batch_of::<8, 24>();
        for scratch in &mut scratch[..count] {
            match Stress::put(&mut batch, book, random, of, scratch) {
                Ok(()) => {}
                Err(Refusal::Full { .. }) => break,
                Err(refusal) => {
                    // What is in the batch is dropped with it: none is accepted.
                    assert_eq!(batch.len(), 0, "{refusal}");
                    return Err(refusal);
                }
            }
        }
        let count = batch.len() as u64;
        let Err(mut failed) = batch.post() else {
            *accepted += count;
            return Ok(());
        };
        self.refusals += 1;
        *accepted += failed.taken as u64;
        let mut back = 0;
        while let Some(refused) = failed.next_refused() {
            book.strike(refused.wr_id());
            back += 1;
        }
        assert_eq!(failed.taken as u64 + back, count);
        match failed.refusal {
            Refusal::Device { .. } => Ok(()),
            refusal => Err(refusal),
        }
    }

    /// A link goes, in one of several ways, and another takes its place.
    fn replace(&mut self, link: usize) {
        self.replaced += 1;
        let [a, b] = self.links.swap_remove(link);
        let accepted = [a.accepted, b.accepted];
        match self.random.below(5) {
            0 => drop((a, b)),
            1 => drop((b, a)),
            2 => {
                let (send, recv) = a.qp.split();
                drop(send);
                drop(b);
                drop(recv);
            }
            3 => {
                let cqs = &mut [&mut self.send_cq, &mut self.recv_cq];
                let book = &mut self.book;
                let done =
                    a.qp.finish_polling(cqs, Duration::from_millis(2), |done| book.complete(done));
                done.expect("the queues can be polled");
                drop(b);
            }
            _ => {
                a.qp.close().expect("it can be closed");
                faults::break_qp(b.raw);
                drop((a, b));
            }
        }
        // Their room comes back when the completion queues were seen empty.
        let begin = Instant::now();
        while self.send_cq.room() < 2 * DEPTH || self.recv_cq.room() < 2 * DEPTH {
            self.poll();
            assert!(begin.elapsed() < Duration::from_secs(10), "there is no room again");
        }
        let mut new = self.link();
        (new[0].accepted, new[1].accepted) = (accepted[0], accepted[1]);
        self.links.push(new);
        let last = self.links.len() - 1;
        self.links.swap(link, last);
    }

    fn run(&mut self, messages: u64) {
        let deadline = Instant::now() + Duration::from_secs(55);
        let mut turns = 0_u64;
        loop {
            turns += 1;
            let link = self.random.below(LINKS);
            let end = self.random.below(2);
            if self.links.iter().flatten().all(|end| end.accepted >= messages) {
                return;
            }
            let mut outcome = self.post_receives(link, 1 - end);
            if outcome.is_ok() && self.links[link][end].accepted < messages {
                outcome = self.send(link, end);
            }
            if self.random.once_in(1500) {
                let end = &mut self.links[link][end];
                faults::break_qp(end.raw);
                end.broken = true;
            }
            let broken = match outcome {
                Ok(()) => false,
                Err(Refusal::Unsure { .. } | Refusal::Poisoned { .. }) => true,
                Err(refusal) => panic!("{refusal:?}"),
            };
            // One that broke by itself takes work and flushes it, until somebody sees to it.
            let broke = self.links[link].iter().any(|end| end.broken);
            if broken || broke && self.random.once_in(32) || self.random.once_in(5000) {
                self.replace(link);
            }
            if self.random.once_in(3) || self.pool.available() < BUFFERS / 3 {
                self.poll();
            }
            if turns % 1024 == 0 {
                assert!(Instant::now() < deadline, "{turns} turns: it does not end");
            }
        }
    }

    fn end(mut self) {
        self.links.clear();
        let begin = Instant::now();
        while !self.book.in_flight.is_empty() {
            self.poll();
            let left = self.book.in_flight.len();
            assert!(begin.elapsed() < Duration::from_secs(10), "{left} never completed");
        }
        assert_eq!(self.poll(), 0);
        assert_eq!(self.send_cq.strays() + self.recv_cq.strays(), 0);
        assert_eq!(self.send_cq.room(), self.send_cq.size());
        assert_eq!(self.recv_cq.room(), self.recv_cq.size());
        assert_eq!(self.pool.available(), BUFFERS - 1, "all but the shared one");
        self.shared.try_unfreeze().expect("nobody else has it");
        assert_eq!(self.pool.available(), BUFFERS);
        self.exposed.revoke().expect("nothing of it is in flight");
        assert_eq!(self.context.leaks(), 0);
        println!(
            "{} requests: {} carried out, {} flushed, {} failed ({} of them silent); {} refusals, {} links replaced",
            self.book.next,
            self.book.succeeded,
            self.book.flushed,
            self.book.failed,
            self.book.silent,
            self.refusals,
            self.replaced,
        );
        assert!(self.book.succeeded > 0 && self.book.flushed > 0 && self.book.silent > 0);
        assert!(self.refusals > 0 && self.replaced > 0);
    }
}

interposed! {
    fn every_buffer_and_every_request_is_accounted_for() {
        let messages = messages();
        let fds = descriptors();
        let begin = Instant::now();
        faults::fail_every("ibv_post_send", libc::ENOMEM, 101, None);
        faults::fail_every("ibv_post_recv", libc::ENOMEM, 89, None);
        let mut stress = Stress::new(0x5eed + messages);
        let registered = faults::live("mr_bytes");
        stress.run(messages);
        assert_eq!(faults::live("mr_bytes"), registered);
        stress.end();
        println!("8 queue pairs of {messages} messages: {:?}", begin.elapsed());
        assert_nothing_is_left();
        assert_eq!(descriptors(), fds);
    }
}
