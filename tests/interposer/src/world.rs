//! Everything there is, behind one lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_int;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::address::Ah;
use crate::channel::Channel;
use crate::clock::Clock;
use crate::context::Context;
use crate::cq::Cq;
use crate::faults::{Faults, Held};
use crate::gids::Gids;
use crate::given::misuse;
use crate::memory::{Mr, Pd};
use crate::qp::Qp;
use crate::srq::Srq;
use crate::verbs::{Verb, Verbs};
use crate::window::Mw;

/// All objects, by their addresses.
pub(crate) struct World {
    pub(crate) verbs: Verbs,
    pub(crate) faults: Faults,
    pub(crate) gids: Gids,
    /// Of `loop0`.
    pub(crate) clock: Clock,
    /// Lists of devices that were given out and not freed.
    pub(crate) device_lists: BTreeSet<usize>,
    pub(crate) contexts: BTreeMap<usize, Context>,
    pub(crate) pds: BTreeMap<usize, Pd>,
    pub(crate) mrs: BTreeMap<usize, Mr>,
    /// The memory region of each key's upper 24 bits.
    pub(crate) keys: BTreeMap<u32, usize>,
    pub(crate) channels: BTreeMap<usize, Channel>,
    pub(crate) cqs: BTreeMap<usize, Cq>,
    pub(crate) qps: BTreeMap<usize, Qp>,
    /// The queue pair of each number.
    pub(crate) numbers: BTreeMap<u32, usize>,
    pub(crate) srqs: BTreeMap<usize, Srq>,
    pub(crate) ahs: BTreeMap<usize, Ah>,
    pub(crate) mws: BTreeMap<usize, Mw>,
    /// Queue pairs with sends that were not carried out yet.
    pub(crate) busy: BTreeSet<usize>,
    /// Completions that are held back, the oldest first.
    pub(crate) held: VecDeque<Held>,
    /// Objects that were there when their context was closed.
    pub(crate) orphans: u64,
    next: u32,
}

static WORLD: Mutex<World> = Mutex::new(World::new());

/// Something changed that somebody may wait for.
static CHANGED: Condvar = Condvar::new();

/// How long a destruction waits for acknowledgements. A real one waits for ever.
const PATIENCE: Duration = Duration::from_secs(2);

/// The world, locked.
pub(crate) fn world() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes those in [`wait_until`].
pub(crate) fn changed() {
    CHANGED.notify_all();
}

/// Waits, with the lock let go, until `done`; ends the program when that takes too long.
pub(crate) fn wait_until(
    mut world: MutexGuard<'static, World>,
    what: &str,
    done: impl Fn(&World) -> bool,
) -> MutexGuard<'static, World> {
    let begin = Instant::now();
    while !done(&world) {
        let Some(left) = PATIENCE.checked_sub(begin.elapsed()) else {
            misuse(&format!("{what} waits for events that nobody acknowledges"));
        };
        let waited = CHANGED.wait_timeout(world, left);
        (world, _) = waited.unwrap_or_else(PoisonError::into_inner);
    }
    world
}

impl World {
    const fn new() -> World {
        World {
            verbs: Verbs::new(),
            faults: Faults::new(),
            gids: Gids::new(),
            clock: Clock::new(),
            device_lists: BTreeSet::new(),
            contexts: BTreeMap::new(),
            pds: BTreeMap::new(),
            mrs: BTreeMap::new(),
            keys: BTreeMap::new(),
            channels: BTreeMap::new(),
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            numbers: BTreeMap::new(),
            srqs: BTreeMap::new(),
            ahs: BTreeMap::new(),
            mws: BTreeMap::new(),
            busy: BTreeSet::new(),
            held: VecDeque::new(),
            orphans: 0,
            next: 0,
        }
    }

    /// See [`Verbs::call`].
    pub(crate) fn call(&mut self, verb: Verb) -> Result<(), c_int> {
        self.verbs.call(verb)
    }

    /// A number that no object had yet.
    pub(crate) fn serial(&mut self) -> u32 {
        self.next += 1;
        self.next
    }
}

/// The object at a C pointer, or the end of the program: with a real device it would be undefined.
pub(crate) fn there<'a, O, C>(
    objects: &'a mut BTreeMap<usize, O>,
    pointer: *const C,
    what: &str,
) -> &'a mut O {
    match objects.get_mut(&pointer.addr()) {
        Some(object) => object,
        None => misuse(&format!("a {what} is used that is not there: {pointer:p}")),
    }
}
