//! What there is, for tests to count, and to touch.

use std::hint::black_box;

use crate::bytes;
use crate::work::Memory;
use crate::world::World;

impl World {
    /// How many objects of a kind there are.
    pub(crate) fn live(&self, kind: &str) -> Option<u64> {
        let count = match kind {
            "device_list" => self.device_lists.len(),
            "context" => self.contexts.len(),
            "pd" => self.pds.len(),
            "mr" => self.mrs.len(),
            "mr_bytes" => return Some(self.registered()),
            "channel" => self.channels.len(),
            "cq" => self.cqs.len(),
            "qp" => self.qps.len(),
            "srq" => self.srqs.len(),
            "ah" => self.ahs.len(),
            "mw" => self.mws.len(),
            "held" => self.held.len(),
            "orphan" => return Some(self.orphans),
            _ => return None,
        };
        Some(count as u64)
    }

    /// The address of the object of a kind that was made `number`th among those that are there.
    pub(crate) fn nth(&self, kind: &str, number: usize) -> Option<usize> {
        macro_rules! in_order {
            ($objects:ident) => {{
                let mut found: Vec<_> =
                    self.$objects.iter().map(|(id, object)| (object.serial, *id)).collect();
                found.sort_unstable();
                found.get(number).map(|(_, id)| *id)
            }};
        }
        match kind {
            "context" => in_order!(contexts),
            "pd" => in_order!(pds),
            "mr" => in_order!(mrs),
            "channel" => in_order!(channels),
            "cq" => in_order!(cqs),
            "qp" => in_order!(qps),
            "srq" => in_order!(srqs),
            "ah" => in_order!(ahs),
            "mw" => in_order!(mws),
            _ => None,
        }
    }

    /// All memory that the device has been given and may still touch.
    fn outstanding_memory(&self) -> Vec<Memory> {
        let mut memory: Vec<Memory> = Vec::new();
        for qp in self.qps.values() {
            memory.extend(qp.recvs.iter().map(|recv| recv.memory(qp.pd)));
            memory.extend(qp.pending.iter().map(|send| send.memory(qp.pd)));
        }
        for srq in self.srqs.values() {
            memory.extend(srq.recvs.iter().map(|recv| recv.memory(srq.pd)));
        }
        memory.extend(self.held.iter().filter_map(|held| held.cqe.memory.clone()));
        memory
    }

    /// Writes `byte` all over the memory of every receive, read and atomic that the device has not told
    /// the end of, and reads that of every other send. What was deregistered, and what is a destroyed
    /// queue's, is not touched. Gives the number of bytes written, and of those read.
    pub(crate) fn touch_all(&mut self, byte: u8) -> (u64, u64) {
        let (mut written, mut looked_at) = (0, 0);
        for memory in self.outstanding_memory() {
            for sge in &memory.sges {
                let one = std::slice::from_ref(sge);
                let Some(segments) = self.local(memory.pd, one, memory.written) else { continue };
                if memory.written {
                    // SAFETY: registered for writing, and so there: who let go of it while the device has
                    // it is wrong, and shall see that.
                    unsafe { bytes::fill(&segments, byte) };
                    written += bytes::total(&segments);
                } else {
                    // A copy, and not a look at each byte: the C library's functions are what an address
                    // sanitizer watches in a library that it was not built into.
                    // SAFETY: as above, for reading.
                    black_box(unsafe { bytes::gather(&segments) });
                    looked_at += bytes::total(&segments);
                }
            }
        }
        (written, looked_at)
    }
}
