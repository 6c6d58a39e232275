//! Queue pairs of the reliable connected transport, on rxe.

use std::time::{Duration, Instant};

use rdma_verbs::wr::{CompareSwap, FetchAdd, Inline, Read, Receive, Send, Write};
use rdma_verbs::{
    Buffer, Calls, Completion, CompletionQueue, ConnectOptions, Context, Exposed, GidEntry, Init,
    InitOptions, Memory, Pool, ProtectionDomain, QueuePair, RemoteAccess, Rts, WcOpcode, WcStatus,
};

use super::rig::Rig;

/// What a peer may do in these tests.
pub(crate) fn everything() -> RemoteAccess {
    RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC
}

/// A row that rxe can send from: an IPv4 address of the rig's own.
pub(crate) fn row(rig: &Rig, context: &Context) -> GidEntry {
    rig.add_addresses(context, 1);
    let snapshot = context.gids().fresh().expect("the table can be read");
    *snapshot.rows().iter().find(|row| row.ipv4().is_some()).expect("the address is there")
}

/// What the queue pairs of a test are made on: one device, opened, and a row to send from.
pub(crate) struct Ground {
    pub(crate) context: Context,
    pub(crate) row: GidEntry,
    pub(crate) pd: ProtectionDomain,
}

impl Ground {
    pub(crate) fn new(rig: &Rig) -> Ground {
        let context = rig.open();
        let row = row(rig, &context);
        let pd = ProtectionDomain::new(&context).expect("a PD");
        Ground { context, row, pd }
    }

    pub(crate) fn cq(&self, size: u32) -> CompletionQueue {
        CompletionQueue::new(&self.context, size).expect("a CQ")
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        ConnectOptions::new(&self.row).reads(4).answers(4)
    }

    /// In INIT, of this depth on either queue; its peer may do everything.
    pub(crate) fn queue_pair(&self, cq: &CompletionQueue, depth: u32) -> QueuePair<Init> {
        self.queue_pair_by(cq, depth, Calls::Classic, 4)
    }

    /// The same, posted on by these calls, with so many entries of a send.
    pub(crate) fn queue_pair_by(
        &self,
        cq: &CompletionQueue,
        depth: u32,
        calls: Calls,
        entries: u32,
    ) -> QueuePair<Init> {
        let builder = QueuePair::rc(&self.pd, cq, cq).send_depth(depth).recv_depth(depth);
        let builder = builder.max_send_sge(entries).max_recv_sge(4).max_inline(64);
        let made = builder.calls(calls).build();
        let init = InitOptions::new(self.row.port()).access(everything());
        made.expect("a queue pair").init(&init).expect("to INIT")
    }
}

/// Connects two queue pairs of one device to each other.
pub(crate) fn join(
    a: QueuePair<Init>,
    b: QueuePair<Init>,
    options: &ConnectOptions,
) -> (QueuePair<Rts>, QueuePair<Rts>) {
    let at_a = a.endpoint(options).expect("an address");
    let at_b = b.endpoint(options).expect("an address");
    let a = a.connect(&at_b, options).expect("connected");
    let b = b.connect(&at_a, options).expect("connected");
    (a, b)
}

/// Two queue pairs of one device, connected to each other, and what they complete on.
pub(crate) struct Pair {
    pub(crate) a: QueuePair<Rts>,
    pub(crate) b: QueuePair<Rts>,
    pub(crate) cq: CompletionQueue,
    pub(crate) pool: Pool,
    pub(crate) pd: ProtectionDomain,
}

impl Pair {
    pub(crate) fn new(rig: &Rig) -> Pair {
        Pair::by(rig, Calls::Classic, Calls::Classic, 4)
    }

    /// Polled and posted on by these calls, with so many entries of a send.
    pub(crate) fn by(rig: &Rig, polled: Calls, posted: Calls, entries: u32) -> Pair {
        let ground = Ground::new(rig);
        let cq = CompletionQueue::builder(&ground.context, 256).calls(polled).build();
        let cq = cq.expect("a CQ");
        let pool = Pool::new(&ground.pd, 4096, 64).expect("a pool");
        let queue_pair = || ground.queue_pair_by(&cq, 16, posted, entries);
        let (a, b) = join(queue_pair(), queue_pair(), &ground.options());
        Pair { a, b, cq, pool, pd: ground.pd }
    }

    pub(crate) fn filled(&self, text: &[u8]) -> Buffer {
        let mut buffer = self.pool.take().expect("a buffer");
        buffer.fill_from(text).expect("it fits");
        buffer
    }
}

/// What one completion was.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
    pub(crate) status: WcStatus,
    pub(crate) imm: Option<u32>,
    pub(crate) byte_len: u32,
    pub(crate) silent: bool,
    pub(crate) memory: Vec<Memory>,
}

impl Seen {
    pub(crate) fn of(mut completion: Completion<'_>) -> Seen {
        Seen {
            wr_id: completion.wr_id(),
            opcode: completion.opcode(),
            status: completion.status(),
            imm: completion.imm(),
            byte_len: completion.byte_len(),
            silent: completion.is_silent(),
            memory: std::iter::from_fn(|| completion.take()).collect(),
        }
    }
}

/// What can be seen now; does not wait.
pub(crate) fn polled(cq: &mut CompletionQueue, seen: &mut Vec<Seen>) {
    let mut drain = cq.poll().expect("the queue can be polled");
    while let Some(completion) = drain.next() {
        seen.push(Seen::of(completion));
    }
}

/// Polls until so many completions came.
pub(crate) fn completions(cq: &mut CompletionQueue, count: usize) -> Vec<Seen> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut seen = Vec::new();
    while seen.len() < count {
        assert!(Instant::now() < deadline, "{count} completions, but there are {seen:?}");
        polled(cq, &mut seen);
    }
    seen.sort_by_key(|seen| seen.wr_id);
    seen
}

pub(crate) fn bytes(memory: &Memory) -> &[u8] {
    match memory {
        Memory::Buffer(buffer) => buffer,
        Memory::Shared(buffer) => buffer,
        other => panic!("no bytes in {other:?}"),
    }
}

#[test]
fn messages_with_all_there_is() {
    let rig = Rig::new();
    messages(Pair::new(&rig));
}

/// Sends of one entry and of several, as far as the queue pairs have them, inline and of no bytes.
pub(crate) fn messages(mut pair: Pair) {
    let several = pair.a.limits().max_send_sge > 1;
    for wr_id in 10..13 {
        let receive = Receive::new(pair.pool.take().expect("a buffer")).wr_id(wr_id);
        pair.b.recv_queue().post(receive).expect("room");
    }
    let two = [pair.pool.take().expect("a buffer"), pair.pool.take().expect("a buffer")];
    pair.b.recv_queue().post(Receive::new(two).wr_id(13)).expect("room");
    let hello = pair.filled(b"hello");
    let shared = pair.filled(b"0123456789").freeze();
    let part = shared.slice(2..5).expect("inside");
    let sends = pair.a.send_queue();
    sends.post(Send::new(hello).wr_id(1)).expect("room");
    sends.post(Send::new(Inline(b"inline")).wr_id(2).imm(0xdead_beef)).expect("room");
    if several {
        sends.post(Send::new((part, shared.clone())).wr_id(3).solicited()).expect("room");
    } else {
        drop(part);
        sends.post(Send::new(shared.clone()).wr_id(3).solicited()).expect("room");
    }
    sends.post(Send::new(()).wr_id(4).signaled()).expect("room");
    let seen = completions(&mut pair.cq, 8);
    assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{seen:?}");
    let silent: Vec<_> = seen.iter().map(|seen| (seen.wr_id, seen.silent)).collect();
    let expected = [
        (1, true),
        (2, true),
        (3, true),
        (4, false),
        (10, false),
        (11, false),
        (12, false),
        (13, false),
    ];
    assert_eq!(silent, expected);
    assert_eq!(bytes(&seen[4].memory[0]), b"hello");
    assert_eq!((bytes(&seen[5].memory[0]), seen[5].imm), (&b"inline"[..], Some(0xdead_beef)));
    let third: &[u8] = if several { b"2340123456789" } else { b"0123456789" };
    assert_eq!(bytes(&seen[6].memory[0]), third);
    assert_eq!(seen[7].memory.len(), 2);
    assert!(seen[7].memory.iter().all(|memory| bytes(memory).is_empty()));
    drop(seen);
    assert_eq!(pair.pool.available(), 63, "all but the shared one");
    drop(shared);
    assert_eq!(pair.pool.available(), 64);
    assert_eq!(pair.cq.strays(), 0);
}

#[test]
fn memory_of_the_peer() {
    let rig = Rig::new();
    reads_writes_and_atomics(Pair::new(&rig));
}

pub(crate) fn reads_writes_and_atomics(mut pair: Pair) {
    let exposed = Exposed::new(&pair.pd, 4096, everything()).expect("memory");
    let remote = exposed.remote();
    let text = pair.filled(b"written");
    let mut into = pair.pool.take().expect("a buffer");
    into.set_len(7).expect("it fits");
    let word = || {
        let mut buffer = pair.pool.take().expect("a buffer");
        buffer.set_len(8).expect("it fits");
        buffer
    };
    let (one, two) = (word(), word());
    exposed.atomic_u64(64).expect("inside").store(40, std::sync::atomic::Ordering::Relaxed);
    let at = remote.slice(64, 8).expect("inside");
    let sends = pair.a.send_queue();
    sends.post(Write::new(text, remote).wr_id(1)).expect("room");
    sends.post(Read::new(into, remote).wr_id(2)).expect("room");
    sends.post(FetchAdd::new(one, at, 2).wr_id(3)).expect("room");
    sends.post(CompareSwap::new(two, at, 42, 77).wr_id(4)).expect("room");
    sends
        .post(Write::new(Inline(b"last"), remote.slice(100, 4).expect("inside")).wr_id(5))
        .expect("room");
    assert!(sends.flush().expect("the peer allows writes"));
    assert!(!sends.flush().expect("nothing to flush"));
    let seen = completions(&mut pair.cq, 5);
    assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{seen:?}");
    assert_eq!(bytes(&seen[1].memory[0]), b"written");
    assert_eq!(bytes(&seen[2].memory[0]), 40_u64.to_ne_bytes());
    assert_eq!(bytes(&seen[3].memory[0]), 42_u64.to_ne_bytes());
    assert_eq!(
        exposed.atomic_u64(64).expect("inside").load(std::sync::atomic::Ordering::Acquire),
        77
    );
    let mut there = [0; 4];
    exposed.read(100, &mut there).expect("inside");
    assert_eq!(&there, b"last");
    assert_eq!(seen.iter().filter(|seen| seen.opcode == WcOpcode::RDMA_WRITE).count(), 2);
    let plain = exposed.revoke().expect("nothing of it is in flight");
    assert_eq!(&plain[..7], b"written");
}
