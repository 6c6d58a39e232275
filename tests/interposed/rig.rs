//! Queue pairs on the interposer's devices, through the crate's public calls.

use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdma_verbs::{
    Buffer, Calls, Completion, CompletionQueue, ConnectOptions, Context, DeviceList, GidEntry,
    Init, InitOptions, Memory, Pool, ProtectionDomain, QueuePair, QueuePairBuilder, RemoteAccess,
    Reset, Rts, WcOpcode, WcStatus,
};

/// What a peer may do in these tests.
pub(crate) fn everything() -> RemoteAccess {
    RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC
}

/// A device, opened.
pub(crate) fn open(name: &str) -> Context {
    let list = DeviceList::new().expect("a list");
    list.find(name).expect("it is listed").open().expect("it can be opened")
}

/// The row of a device's table with its IPv4 address.
pub(crate) fn row(context: &Context) -> GidEntry {
    let rows = context.gids().cached();
    *rows.rows().iter().find(|row| row.ipv4().is_some()).expect("it has an address")
}

/// An open device, and what queue pairs are made of.
pub(crate) struct Rig {
    pub(crate) cq: CompletionQueue,
    pub(crate) pool: Pool,
    pub(crate) pd: ProtectionDomain,
    pub(crate) context: Context,
    pub(crate) row: GidEntry,
    /// What its queue pairs are posted on by.
    posted: Calls,
}

/// How many work requests fit on a queue of a rig's queue pair.
pub(crate) const DEPTH: u32 = 16;
/// How many buffers a rig's pool has, and their size.
pub(crate) const BUFFERS: usize = 128;
pub(crate) const SIZE: usize = 256;

impl Rig {
    /// On the device that works.
    pub(crate) fn new() -> Rig {
        Rig::on("loop0")
    }

    pub(crate) fn on(device: &str) -> Rig {
        let context = open(device);
        let row = row(&context);
        let pd = ProtectionDomain::new(&context).expect("a PD");
        let cq = CompletionQueue::new(&context, 1023).expect("a CQ");
        let pool = Pool::new(&pd, SIZE, BUFFERS).expect("a pool");
        Rig { cq, pool, pd, context, row, posted: Calls::Classic }
    }

    /// Polled by these calls.
    pub(crate) fn polled(self, calls: Calls) -> Rig {
        let cq = CompletionQueue::builder(&self.context, 1023).calls(calls).build();
        Rig { cq: cq.expect("a CQ"), ..self }
    }

    /// Its queue pairs are posted on by these calls.
    pub(crate) fn posted(self, posted: Calls) -> Rig {
        Rig { posted, ..self }
    }

    /// Its completion queue tells the device's times.
    pub(crate) fn timed(self) -> Rig {
        let cq = CompletionQueue::builder(&self.context, 1023).timestamps(true).build();
        Rig { cq: cq.expect("a CQ"), ..self }
    }

    /// For queue pairs of 16 work requests a queue, of 4 entries, that send 64 bytes inline.
    pub(crate) fn builder(&self) -> QueuePairBuilder<'_> {
        let builder = QueuePair::rc(&self.pd, &self.cq, &self.cq);
        let builder = builder.send_depth(DEPTH).recv_depth(DEPTH).max_inline(64);
        builder.max_send_sge(4).max_recv_sge(4).calls(self.posted)
    }

    pub(crate) fn make(&self) -> QueuePair<Reset> {
        self.builder().build().expect("a queue pair")
    }

    pub(crate) fn init_options(&self) -> InitOptions {
        InitOptions::new(self.row.port()).access(everything())
    }

    pub(crate) fn init(&self) -> QueuePair<Init> {
        self.make().init(&self.init_options()).expect("to INIT")
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        ConnectOptions::new(&self.row).reads(4).answers(4)
    }

    /// Two queue pairs, connected to each other. The first's queues have the first two places on the
    /// completion queue that are free, and its peer's the next.
    pub(crate) fn pair(&self) -> (QueuePair<Rts>, QueuePair<Rts>) {
        let (a, b) = (self.init(), self.init());
        self.connect(a, b)
    }

    pub(crate) fn connect(
        &self,
        a: QueuePair<Init>,
        b: QueuePair<Init>,
    ) -> (QueuePair<Rts>, QueuePair<Rts>) {
        let options = self.options();
        let at_a = a.endpoint(&options).expect("an address");
        let at_b = b.endpoint(&options).expect("an address");
        let a = a.connect(&at_b, &options).expect("connected");
        let b = b.connect(&at_a, &options).expect("connected");
        (a, b)
    }

    pub(crate) fn take(&self) -> Buffer {
        self.pool.take().expect("a buffer")
    }

    pub(crate) fn filled(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.take();
        buffer.fill_from(bytes).expect("it fits");
        buffer
    }

    /// How many buffers are not in the pool.
    pub(crate) fn out(&self) -> usize {
        self.pool.count() - self.pool.available()
    }

    /// So many completions, in the order they come, and no more.
    pub(crate) fn completions(&mut self, count: usize) -> Vec<Seen> {
        let seen = completions(&mut self.cq, count);
        assert_eq!(poll(&mut self.cq), [], "after {seen:?}");
        seen
    }

    /// Ends it all: nothing is left.
    pub(crate) fn end(self) {
        assert_eq!(self.context.leaks(), 0);
        drop(self);
        assert_nothing_is_left();
    }
}

/// Nothing that was made is there any more, and nothing had to be left to the kernel.
#[track_caller]
pub(crate) fn assert_nothing_is_left() {
    assert_eq!(super::faults::all_live(), []);
    assert_eq!(super::faults::live("orphan"), 0, "left to the kernel");
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

impl PartialEq for Seen {
    /// Of the same request, that ended in the same way.
    fn eq(&self, other: &Seen) -> bool {
        (self.wr_id, self.status, self.silent) == (other.wr_id, other.status, other.silent)
    }
}

impl Seen {
    pub(crate) fn of(completion: &mut Completion<'_>) -> Seen {
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

    /// The bytes of its first piece of memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.memory.first() {
            Some(Memory::Buffer(buffer)) => buffer,
            Some(Memory::Shared(buffer)) => buffer,
            other => panic!("no bytes in {other:?}"),
        }
    }
}

/// The numbers and statuses of completions.
pub(crate) fn ends(seen: &[Seen]) -> Vec<(u64, WcStatus)> {
    seen.iter().map(|seen| (seen.wr_id, seen.status)).collect()
}

/// The completions that one poll gives.
pub(crate) fn poll(cq: &mut CompletionQueue) -> Vec<Seen> {
    let mut drain = cq.poll().expect("the queue can be polled");
    let mut seen = Vec::new();
    while let Some(mut completion) = drain.next() {
        seen.push(Seen::of(&mut completion));
    }
    seen
}

/// Polls until there are so many completions.
pub(crate) fn completions(cq: &mut CompletionQueue, count: usize) -> Vec<Seen> {
    let begin = Instant::now();
    let mut seen = Vec::new();
    while seen.len() < count {
        assert!(begin.elapsed() < PATIENCE, "{count} completions, but there are {seen:?}");
        seen.extend(poll(cq));
    }
    seen
}

/// How long what happens at once is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Waits until something is so.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// What the device was told of a work request: the place of its queue on the completion queue, how
/// often that was used, and its number there.
pub(crate) fn word(place: u16, generation: u16, sequence: u32) -> u64 {
    u64::from(place) << 48 | u64::from(generation) << 32 | u64::from(sequence)
}

/// How many descriptors this process has open.
pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("own descriptors").count()
}

/// As `mem::forget`, where a leak checker still finds it: that a test forgets is no leak.
pub(crate) fn forget<T>(value: T) {
    static FORGOTTEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let place = Box::leak(Box::new(std::mem::ManuallyDrop::new(value)));
    let address = (&raw const *place).expose_provenance();
    FORGOTTEN.lock().expect("nobody panics meanwhile").push(address);
}

/// Numbers that look random, the same ones for the same seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    /// Less than `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((number * end as u64) >> 32) as usize
    }

    /// Once in so many times.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
