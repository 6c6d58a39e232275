//! Fragments in any order and on any thread, with failures in between: each is in exactly one place, slabs
//! keep their order, and no registration is lost or ended twice.

use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::*;
use crate::error::Errno;

/// What the kernel and the device know of.
#[derive(Default)]
struct World {
    mapped: usize,
    /// By where it begins.
    registered: BTreeMap<usize, ()>,
    /// Could not be deregistered, and stays.
    stays: Vec<Box<[u8]>>,
    maps: usize,
    registers: usize,
    deregisters: usize,
    /// Every so many calls of each kind fail; 0 for none.
    fail: [usize; 3],
    calls: [usize; 3],
    wrong: Option<&'static str>,
}

impl World {
    fn fails(&mut self, kind: usize) -> bool {
        self.calls[kind] += 1;
        self.fail[kind] != 0 && self.calls[kind] % self.fail[kind] == 0
    }
}

/// The world, and how big slabs are.
struct Fake(Arc<Mutex<World>>, usize);

struct FakeMemory(Option<Box<[u8]>>, Arc<Mutex<World>>);

struct FakeRegion {
    memory: FakeMemory,
    start: NonNull<[u8]>,
}

// SAFETY: the pointer is to the memory that the region owns.
#[allow(unsafe_code)]
unsafe impl Send for FakeRegion {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for FakeRegion {}

// SAFETY: on the heap, and reached by nobody else.
#[allow(unsafe_code)]
unsafe impl Region for FakeRegion {
    fn memory(&self) -> NonNull<[u8]> {
        self.start
    }
}

fn address(region: &FakeRegion) -> usize {
    region.start.cast::<u8>().as_ptr().addr()
}

impl Source for Fake {
    type Memory = FakeMemory;
    type Region = FakeRegion;

    fn map(&mut self) -> Result<FakeMemory> {
        let mut world = self.0.lock().unwrap();
        if world.fails(0) {
            return Err(Error::Host { call: "mmap", errno: Errno::ENOMEM });
        }
        (world.mapped, world.maps) = (world.mapped + 1, world.maps + 1);
        Ok(FakeMemory(Some(vec![0; self.1].into()), self.0.clone()))
    }

    fn register(&mut self, mut memory: FakeMemory) -> Result<FakeRegion> {
        let mut world = self.0.lock().unwrap();
        if world.fails(1) {
            drop(world);
            return Err(Error::Host { call: "ibv_reg_mr", errno: Errno::ENOMEM });
        }
        world.registers += 1;
        let start = NonNull::from(&mut memory.0.as_mut().unwrap()[..]);
        world.registered.insert(start.cast::<u8>().as_ptr().addr(), ());
        drop(world);
        Ok(FakeRegion { memory, start })
    }
}

impl Drop for FakeMemory {
    fn drop(&mut self) {
        if self.0.take().is_some() {
            self.1.lock().unwrap().mapped -= 1;
        }
    }
}

impl Drop for FakeRegion {
    fn drop(&mut self) {
        let world = self.memory.1.clone();
        let mut world = world.lock().unwrap();
        if world.registered.remove(&address(self)).is_none() {
            world.wrong = Some("a region was ended twice");
        }
        world.deregisters += 1;
        if world.fails(2) {
            // As the real one does: it stays for ever, where a leak checker finds it.
            world.stays.extend(self.memory.0.take());
        }
    }
}

type Fragment = Part<FakeRegion>;

/// Where a fragment is: its slab, and which it is of it.
fn place(part: &Fragment) -> (usize, usize) {
    let slab = address(part.region());
    (slab, (part.extent().start().as_ptr().addr() - slab) / SIZE)
}

const SIZE: usize = 64;

/// What is expected of the pool.
struct Model {
    order: Option<Order<Fake>>,
    world: Arc<Mutex<World>>,
    each: usize,
    /// Taken by somebody, and posted.
    held: Vec<Fragment>,
    posted: VecDeque<Vec<Fragment>>,
    /// Those out, by slab, and how many of it were handed out since it began.
    slabs: BTreeMap<usize, Slab>,
    /// Slabs in the order in which they were handed out of; the last is the current one.
    sequence: VecDeque<usize>,
    elsewhere: Sender<(Fragment, Sender<()>)>,
}

#[derive(Default)]
struct Slab {
    handed: usize,
    out: Vec<bool>,
}

type Check = Result<(), TestCaseError>;

impl Model {
    /// Notes that one was taken, and checks that it is the one that was to be.
    fn taken(&mut self, part: &Fragment) -> Check {
        let (slab, number) = place(part);
        prop_assert_eq!(part.extent().len() as usize, SIZE);
        let each = self.each;
        if self.sequence.back() != Some(&slab) {
            // It begins: as the oldest, or as a new one; and the last has been handed out to its end.
            if let Some(last) = self.sequence.back() {
                prop_assert_eq!(self.slabs[last].handed, each, "one was left of the slab before");
            }
            let known = self.sequence.iter().position(|other| *other == slab);
            if let Some(at) = known {
                prop_assert_eq!(at, 0, "a younger slab came first");
                self.sequence.pop_front();
            }
            self.sequence.push_back(slab);
            let known = self.slabs.insert(slab, Slab { handed: 0, out: vec![false; each] });
            if let Some(known) = known {
                prop_assert!(known.out.iter().all(|out| !out), "not all came back");
            }
        } else if self.slabs[&slab].handed == each {
            // The only one there is.
            prop_assert!(self.slabs[&slab].out.iter().all(|out| !out), "not all came back");
            prop_assert_eq!(self.sequence.len(), 1);
            self.slabs.get_mut(&slab).unwrap().handed = 0;
        }
        let known = self.slabs.get_mut(&slab).unwrap();
        prop_assert_eq!(number, known.handed, "not the next");
        prop_assert!(!known.out[number], "two have it");
        (known.out[number], known.handed) = (true, number + 1);
        Ok(())
    }

    fn back(&mut self, part: &Fragment) {
        let (slab, number) = place(part);
        assert!(std::mem::replace(&mut self.slabs.get_mut(&slab).unwrap().out[number], false));
    }

    /// Gives one back, sometimes on another thread.
    fn release(&mut self, part: Fragment, elsewhere: bool) {
        self.back(&part);
        if elsewhere {
            let (done, wait) = channel();
            self.elsewhere.send((part, done)).unwrap();
            wait.recv().unwrap();
        } else {
            drop(part);
        }
    }

    /// Takes for one receive of so many, or for none.
    fn take(&mut self, count: usize) -> Result<Option<Vec<Fragment>>, TestCaseError> {
        let Some(order) = &mut self.order else { return Ok(None) };
        if !order.has(count as u32) {
            return Ok(None);
        }
        self.forget_ended();
        let mut parts = Vec::new();
        for _ in 0..count {
            let part = self.order.as_mut().unwrap().take();
            let Some(part) = part else {
                return Err(TestCaseError::fail("it said that it had them"));
            };
            self.taken(&part)?;
            parts.push(part);
        }
        Ok(Some(parts))
    }

    /// Slabs that were ended; one that begins where one did is another.
    fn forget_ended(&mut self) {
        let Some(order) = &self.order else { return };
        let there: Vec<usize> = order.all().map(|share| address(share.region())).collect();
        self.sequence.retain(|slab| there.contains(slab));
        self.slabs.retain(|slab, known| there.contains(slab) || known.out.iter().any(|out| *out));
    }

    fn step(&mut self, action: u8, number: usize) -> Check {
        let count = 1 + number % 4;
        match action {
            0..=3 => {
                if let Some(parts) = self.take(count)? {
                    self.held.extend(parts);
                }
            }
            4..=7 => {
                // A chain of receives; the device refuses it from one on, or not.
                let mut chain = Vec::new();
                while chain.len() < 1 + number % 7 {
                    let Some(parts) = self.take(count)? else { break };
                    chain.push(parts);
                }
                let mut refused = Vec::new();
                if action == 7 && !chain.is_empty() {
                    refused = chain.split_off(number / 7 % (chain.len() + 1));
                }
                self.posted.extend(chain);
                for part in refused.into_iter().flatten().rev() {
                    // Undone as far as it can be seen: the next to be taken is this one again.
                    self.back(&part);
                    let (slab, number) = place(&part);
                    self.order.as_mut().unwrap().put_back(part);
                    let known = self.slabs.get_mut(&slab).unwrap();
                    prop_assert_eq!(known.handed, number + 1);
                    known.handed = number;
                    if number == 0 {
                        // It waits again, first of all.
                        let last = self.sequence.pop_back();
                        prop_assert_eq!(last, Some(slab));
                        self.sequence.push_front(slab);
                        known.handed = self.each;
                    }
                }
            }
            8..=11 if !self.posted.is_empty() => {
                // It completes, in any order.
                let parts = self.posted.remove(number % self.posted.len()).unwrap();
                if action == 8 {
                    self.held.extend(parts);
                } else {
                    parts.into_iter().for_each(|part| self.release(part, false));
                }
            }
            12..=14 => {
                for _ in 0..count.min(self.held.len()) {
                    let part = self.held.swap_remove(number % self.held.len());
                    self.release(part, number % 16 == 0);
                }
            }
            15 if self.order.is_some() => {
                let order = self.order.as_mut().unwrap();
                if number % 3 == 0 {
                    let before = order.slabs();
                    let grown = order.grow().is_ok();
                    prop_assert_eq!(order.slabs(), before + usize::from(grown));
                } else if number % 3 == 1 {
                    order.shrink();
                }
                self.forget_ended();
            }
            _ => {}
        }
        Ok(())
    }

    fn check(&self) -> Check {
        let out = self.held.len() + self.posted.iter().map(Vec::len).sum::<usize>();
        let noted: usize =
            self.slabs.values().map(|slab| slab.out.iter().filter(|out| **out).count()).sum();
        prop_assert_eq!(out, noted, "each is in one place");
        let world = self.world.lock().unwrap();
        prop_assert_eq!(world.wrong, None);
        prop_assert_eq!(world.mapped, world.registered.len() + world.stays.len());
        prop_assert_eq!(world.registers - world.deregisters, world.registered.len());
        if let Some(order) = &self.order {
            prop_assert_eq!(order.slabs(), world.registered.len());
            prop_assert!((order.shape.floor..=order.shape.ceiling).contains(&order.slabs()));
            prop_assert_eq!(order.all().map(Share::out).sum::<u32>() as usize, out);
            prop_assert_eq!(order.registrations as usize, world.registers);
        } else {
            let mut needed: Vec<usize> = self
                .held
                .iter()
                .chain(self.posted.iter().flatten())
                .map(|part| place(part).0)
                .collect();
            needed.sort_unstable();
            needed.dedup();
            prop_assert_eq!(needed, world.registered.keys().copied().collect::<Vec<_>>());
        }
        Ok(())
    }
}

/// How many steps in all.
fn steps() -> usize {
    let asked = std::env::var("RDMA_TEST_STEPS").ok();
    asked.map_or(100_000, |steps| steps.parse().expect("RDMA_TEST_STEPS is a number"))
}

#[test]
fn any_order_on_any_thread_with_any_failure() {
    const LONG: usize = 500;
    let (elsewhere, parts) = channel::<(Fragment, Sender<()>)>();
    let thread = thread::spawn(move || {
        for (part, done) in parts {
            drop(part);
            done.send(()).unwrap();
        }
    });
    let sequences = (
        (1_usize..6, 1_usize..3, 0_usize..5),
        // 0 stands for no failure, 1 as well.
        [0_usize..18, 0_usize..18, 0_usize..18],
        prop::collection::vec((0_u8..16, any::<u16>()), 1..2 * LONG),
        0..2 * LONG,
    );
    let config = Config { cases: (steps() / LONG).max(1) as u32, ..Config::default() };
    let config = Config { failure_persistence: None, ..config };
    type Sequence = ((usize, usize, usize), [usize; 3], Vec<(u8, u16)>, usize);
    let run = |((each, floor, more), fail, actions, pool_ends): Sequence| -> Check {
        let world = Arc::new(Mutex::new(World::default()));
        let shape =
            Shape { fragment: SIZE as u32, each: each as u32, floor, ceiling: floor + more };
        let order = Order::new(Fake(world.clone(), each * SIZE), shape);
        world.lock().unwrap().fail = fail.map(|every| if every == 1 { 0 } else { every });
        let mut model = Model {
            order: Some(order.map_err(|_| TestCaseError::fail("nothing fails yet"))?),
            world: world.clone(),
            each,
            held: Vec::new(),
            posted: VecDeque::new(),
            slabs: BTreeMap::new(),
            sequence: VecDeque::new(),
            elsewhere: elsewhere.clone(),
        };
        for (at, (action, number)) in actions.into_iter().enumerate() {
            if at == pool_ends {
                model.order = None;
            }
            model.step(action, number.into())?;
            model.check()?;
        }
        // All comes back, whoever goes first.
        model.order = model.order.take().filter(|_| pool_ends % 2 == 0);
        model.posted.clear();
        model.held.clear();
        model.order = None;
        let world = world.lock().unwrap();
        prop_assert_eq!(world.wrong, None);
        prop_assert_eq!((world.registered.len(), world.mapped), (0, world.stays.len()));
        prop_assert_eq!(world.registers, world.deregisters);
        Ok(())
    };
    let ended = TestRunner::new(config).run(&sequences, run);
    drop(elsewhere);
    thread.join().unwrap();
    ended.unwrap_or_else(|error| panic!("{error}"));
}

/// Made of as many as the floor, or of none.
#[test]
fn a_floor_that_cannot_be_had() {
    let world = Arc::new(Mutex::new(World { fail: [0, 3, 0], ..World::default() }));
    let shape = Shape { fragment: SIZE as u32, each: 2, floor: 5, ceiling: 5 };
    let made = Order::new(Fake(world.clone(), 2 * SIZE), shape);
    let Err((made, error)) = made else { panic!("the third fails") };
    assert_eq!(made, 2);
    assert!(matches!(error, Error::Host { call: "ibv_reg_mr", .. }), "{error}");
    let world = world.lock().unwrap();
    assert_eq!((world.mapped, world.registered.len(), world.deregisters), (0, 0, 2));
}

/// After a failure, growing is tried again when slabs have come round, and at once when it is asked for.
#[test]
fn growing_after_a_failure() {
    let world = Arc::new(Mutex::new(World::default()));
    let shape = Shape { fragment: SIZE as u32, each: 1, floor: 1, ceiling: 3 };
    let order = Order::new(Fake(world.clone(), SIZE), shape);
    let mut order = order.map_err(|(_, error)| error).expect("nothing fails yet");
    world.lock().unwrap().fail = [1, 0, 0];
    let calls = || world.lock().unwrap().calls[0];
    let mut taken = order.take();
    for (tries, rounds) in [(1, 1), (2, 2), (3, 4)] {
        for _ in 0..rounds {
            assert!(taken.is_some() && order.take().is_none() && order.take().is_none());
            assert_eq!(calls(), tries + 1, "once in {rounds} slabs");
            assert!(matches!(order.failure, Some(Error::Host { call: "mmap", .. })));
            drop(taken);
            taken = order.take();
        }
    }
    assert!(order.grow().is_err(), "asked for, it is tried");
    world.lock().unwrap().fail = [0; 3];
    order.grow().expect("now it can be");
    assert!(order.failure.is_none());
    let others = (order.take(), order.take());
    assert!(others.0.is_some() && others.1.is_some(), "and one more by itself");
    let error = order.grow().expect_err("at the ceiling");
    assert!(matches!(error, Error::OutOfRange { asked: 4, most: 3, .. }), "{error}");
    assert_eq!((order.shrink(), order.slabs()), (0, 3), "the oldest is out");
    drop((taken, others));
    assert_eq!((order.shrink(), order.slabs()), (2, 1));
}
