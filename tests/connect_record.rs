//! The records of a connection over TCP, whatever bytes come: no panic, no memory, nothing accepted that
//! would not be written so.

#![allow(unsafe_code)] // the allocator that counts

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rdma_verbs::{
    ConnectRecord, Endpoint, Gid, GidType, Mtu, PrivateData, Psn, Qpn, RefuseReason, Terms,
};

/// Counts what one thread allocates.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all is the system allocator's; the counter is of this thread and needs no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|allocated| allocated.set(allocated.get() + layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const INPUTS: usize = 1_000_000;
/// The bytes that say something; behind them is data.
const HEAD: usize = 64;

/// Marsaglia's xorshift, of 64 bits: cheap, and the same on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next().to_ne_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}

/// One of each kind, and of each kind of address.
fn valid() -> Vec<[u8; ConnectRecord::LEN]> {
    let gid = Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 1));
    let mut endpoint = Endpoint::new(
        Qpn::new(0x1234).expect("24 bits"),
        Psn::new(0xabcdef).expect("24 bits"),
        gid,
    );
    endpoint.mtu = Some(Mtu::B4096);
    let mut terms = Terms::new(endpoint, Some(GidType::ROCE_V2));
    terms.private_data = PrivateData::new(b"private").expect("it is short");
    let mut records = vec![ConnectRecord::Request(terms), ConnectRecord::Reply(terms)];
    terms.gid_type = Some(GidType::ROCE_V1);
    records.push(ConnectRecord::Reply(terms));
    (terms.gid_type, terms.endpoint.lid) = (Some(GidType::IB), rdma_verbs::Lid(9));
    records.push(ConnectRecord::Request(terms));
    (terms.gid_type, terms.endpoint.gid) = (None, None);
    records.push(ConnectRecord::Request(terms));
    let text = PrivateData::new("why not".as_bytes()).expect("it is short");
    let reason = RefuseReason::BUSY;
    records.extend([ConnectRecord::Ready, ConnectRecord::Refusal { reason, text }]);
    let records: Vec<_> = records.iter().map(ConnectRecord::to_bytes).collect();
    assert!(records.iter().all(|bytes| ConnectRecord::parse(bytes).is_ok()));
    records
}

#[test]
fn a_million_inputs() {
    let valid = valid();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut accepted, mut refused) = (0, 0);
    let mut bytes = [0; ConnectRecord::LEN];
    let before = ALLOCATED.get();
    for number in 0..INPUTS {
        match number % 4 {
            // Anything; behind a beginning that is right, half of the time.
            0 => {
                random.fill(&mut bytes);
                if number % 8 == 0 {
                    bytes[..10].copy_from_slice(&valid[0][..10]);
                    bytes[10] %= 6;
                }
            }
            // One bit of a valid one, or some bytes of its head.
            1 | 2 => {
                bytes = valid[random.below(valid.len())];
                if number % 4 == 1 {
                    bytes[random.below(ConnectRecord::LEN)] ^= 1 << random.below(8);
                } else {
                    for _ in 0..=random.below(4) {
                        bytes[random.below(HEAD)] = random.next() as u8;
                    }
                }
            }
            // The head of one and the tail of another.
            _ => {
                bytes = valid[random.below(valid.len())];
                let from = random.below(ConnectRecord::LEN);
                bytes[from..].copy_from_slice(&valid[random.below(valid.len())][from..]);
            }
        }
        match ConnectRecord::parse(&bytes) {
            Ok(record) => {
                accepted += 1;
                let mut again = record.to_bytes();
                if matches!(record, ConnectRecord::Refusal { .. }) {
                    // Taken from every version.
                    again[8..10].copy_from_slice(&bytes[8..10]);
                }
                assert!(again == bytes, "{record:?} is not {bytes:02x?}");
            }
            Err(_) => refused += 1,
        }
    }
    let allocated = ALLOCATED.get() - before;
    println!("{accepted} accepted, {refused} refused, {allocated} bytes allocated");
    assert!(accepted > INPUTS / 20 && refused > INPUTS / 4, "{accepted} and {refused}");
    assert_eq!(allocated, 0, "the limit is 4 KiB; nothing is needed");
}
