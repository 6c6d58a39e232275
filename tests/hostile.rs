//! The data path at its worst, on the interposer's device: what a program can forget or drop, what a
//! device can answer, and what comes between two threads. Runs on any machine.

mod interposed;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use interposed::{faults, interposed};
use rdma_verbs::wr::{FetchAdd, Inline, Read, Receive, Send, Write};
use rdma_verbs::{
    Buffer, CompletionChannel, CompletionQueue, ConnectOptions, Context, DeviceList, Errno, Error,
    Exposed, GidEntry, InitOptions, Memory, Notify, Pool, ProtectionDomain, QueuePair, Refusal,
    RemoteAccess, Rts, WcStatus,
};

/// Two queue pairs of `loop0`, connected to each other, and all they need.
struct Pair {
    a: QueuePair<Rts>,
    b: QueuePair<Rts>,
    cq: CompletionQueue,
    pool: Pool,
    pd: ProtectionDomain,
    context: Context,
}

const DEPTH: u32 = 8;

fn open() -> Context {
    let list = DeviceList::new().expect("a list");
    list.find("loop0").expect("it is listed").open().expect("it can be opened")
}

fn row(context: &Context) -> GidEntry {
    let gids = context.gids().cached();
    *gids.rows().iter().find(|row| row.ipv4().is_some()).expect("it has an address")
}

fn everything() -> RemoteAccess {
    RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC
}

/// Two queue pairs that complete on one queue.
fn connected(pd: &ProtectionDomain, cq: &CompletionQueue) -> (QueuePair<Rts>, QueuePair<Rts>) {
    let row = row(pd.context());
    let options = ConnectOptions::new(&row).reads(4).answers(4);
    let make = || {
        let builder = QueuePair::rc(pd, cq, cq).send_depth(DEPTH).recv_depth(DEPTH);
        let made = builder.max_send_sge(4).max_recv_sge(4).max_inline(64).build();
        let init = InitOptions::new(row.port()).access(everything());
        made.expect("a queue pair").init(&init).expect("to INIT")
    };
    let (a, b) = (make(), make());
    let at = |qp: &QueuePair<_>| qp.endpoint(&options).expect("an address");
    let (at_a, at_b) = (at(&a), at(&b));
    (a.connect(&at_b, &options).expect("connected"), b.connect(&at_a, &options).expect("connected"))
}

impl Pair {
    fn new() -> Pair {
        let context = open();
        let cq = CompletionQueue::new(&context, 255).expect("a completion queue");
        Pair::on(context, cq)
    }

    fn on(context: Context, cq: CompletionQueue) -> Pair {
        let pd = ProtectionDomain::new(&context).expect("a protection domain");
        let pool = Pool::new(&pd, 64, 64).expect("a pool");
        let (a, b) = connected(&pd, &cq);
        Pair { a, b, cq, pool, pd, context }
    }

    fn filled(&self, text: &[u8]) -> Buffer {
        let mut buffer = self.pool.take().expect("a buffer");
        buffer.fill_from(text).expect("it fits");
        buffer
    }

    fn receive(&mut self, wr_id: u64) {
        let receive = Receive::new(self.pool.take().expect("a buffer")).wr_id(wr_id);
        self.b.recv_queue().post(receive).expect("room");
    }
}

/// Number, status, whether the device told it: of each completion there is.
fn seen(cq: &mut CompletionQueue) -> Vec<(u64, WcStatus, bool)> {
    let mut seen = Vec::new();
    loop {
        let mut drain = cq.poll().expect("it can be polled");
        let before = seen.len();
        while let Some(completion) = drain.next() {
            seen.push((completion.wr_id(), completion.status(), !completion.is_silent()));
        }
        if seen.len() == before {
            return seen;
        }
    }
}

const OK: WcStatus = WcStatus::SUCCESS;
const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

interposed! {
    /// The row moves between the lookup and RTR, twice: what the queue pair is, its type says.
    fn a_row_that_moves_under_a_queue_pair_with_receives() {
        let context = open();
        let mut cq = CompletionQueue::new(&context, 64).expect("a completion queue");
        let pd = ProtectionDomain::new(&context).expect("a protection domain");
        let pool = Pool::new(&pd, 64, 4).expect("a pool");
        // The last of IPv6, so that the first may stand in its place.
        let rows: Vec<GidEntry> = {
            let gids = context.gids().cached();
            gids.rows().iter().filter(|row| row.ipv4().is_none()).copied().collect()
        };
        let (first, row) = (rows[0], rows[rows.len() - 1]);
        let options = ConnectOptions::new(&row);
        let init = InitOptions::new(row.port());
        let made = |cq: &CompletionQueue| {
            let made = QueuePair::rc(&pd, cq, cq).send_depth(4).recv_depth(4).build();
            made.expect("a queue pair").init(&init).expect("to INIT")
        };
        let peer = made(&cq).endpoint(&options).expect("an address");
        // Another address is where it was: RTR goes, and what is read then is not what was asked.
        let stale = row;
        faults::gid_move(row.index(), 9);
        faults::gid_move(first.index(), row.index());
        let moved = made(&cq).ready_to_receive(&peer, &ConnectOptions::new(&stale));
        assert_eq!(moved.expect("tried with the row where it is now").state().expect("a state"),
            rdma_verbs::QpState::RTR);
        let mut with_receives = made(&cq);
        let receive = Receive::new(pool.take().expect("a buffer")).wr_id(7);
        with_receives.recv_queue().post(receive).expect("room");
        let failed = with_receives.ready_to_receive(&peer, &ConnectOptions::new(&stale));
        let failed = failed.expect_err("receives would be lost");
        assert!(matches!(failed.error, Error::GidMoved(_)), "{:?}", failed.error);
        let mut closed = failed.queue_pair;
        assert_eq!(closed.state().expect("a state"), rdma_verbs::QpState::ERR);
        let receive = Receive::new(pool.take().expect("a buffer"));
        let refused = closed.recv_queue().post(receive).expect_err("it is closed");
        assert!(matches!(refused.refusal, Refusal::Closed { .. }), "{:?}", refused.refusal);
        drop(refused);
        assert_eq!(seen(&mut cq), [(7, FLUSHED, true)]);
        assert_eq!(pool.available(), 4);
        // The row cannot be read after RTR: back to INIT, as the type says.
        faults::fail("ibv_query_gid_ex", libc::EIO);
        let gids = context.gids().fresh().expect("a table");
        let row = *gids.by_gid(&row.gid()).next().expect("the row where it is now");
        let failed = made(&cq).ready_to_receive(&peer, &ConnectOptions::new(&row));
        let failed = failed.expect_err("the row cannot be read");
        assert_eq!(failed.queue_pair.state().expect("a state"), rdma_verbs::QpState::INIT);
        failed.queue_pair.ready_to_receive(&peer, &ConnectOptions::new(&row)).expect("RTR");
    }
}
