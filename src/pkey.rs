//! The P_Key tables of a device: which partitions its ports are in.

#![deny(unsafe_code)]

use std::sync::Arc;

use crate::cache::Cache;
use crate::error::{Errno, Error, Object, Result};
use crate::kept::{Announcements, Kept};
use crate::sys::ContextHandle;
use crate::types::{PKey, PortNum};

/// The P_Key tables of one device, answered from memory.
pub type PKeyCache = Cache<PKeySnapshot>;

/// All P_Key tables of one device at one moment: unchanging.
#[derive(Debug, Default)]
pub struct PKeySnapshot {
    ports: Box<[PortPKeys]>,
}

/// One port's P_Key table.
#[derive(Debug, Clone)]
pub struct PortPKeys {
    port: PortNum,
    generation: u64,
    /// As the table has them, empty rows too.
    rows: Box<[PKey]>,
    /// Values and the lowest index of each, sorted by value; no empty row.
    by_value: Box<[(PKey, u16)]>,
}

impl PKeySnapshot {
    /// Every port, in order.
    pub fn ports(&self) -> &[PortPKeys] {
        &self.ports
    }

    /// One port's table; `None` when the device has no such port.
    pub fn port(&self, port: PortNum) -> Option<&PortPKeys> {
        self.ports.iter().find(|table| table.port == port)
    }

    fn new(tables: Vec<(PortNum, Vec<PKey>)>, before: &PKeySnapshot) -> PKeySnapshot {
        let ports = tables.into_iter().map(|(port, rows)| {
            let generation = match before.port(port) {
                Some(old) if *old.rows == *rows => old.generation,
                Some(old) => old.generation + 1,
                None => 1,
            };
            let numbered = rows.iter().copied().zip(0_u16..);
            let mut by_value: Vec<_> = numbered.filter(|(pkey, _)| !pkey.is_empty()).collect();
            by_value.sort_unstable();
            by_value.dedup_by_key(|(pkey, _)| *pkey);
            PortPKeys { port, generation, rows: rows.into(), by_value: by_value.into() }
        });
        PKeySnapshot { ports: ports.collect() }
    }
}

impl PortPKeys {
    /// The port.
    pub fn port(&self) -> PortNum {
        self.port
    }

    /// Moves only when a row of this port's table changed.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The table, by index; an empty row is [`PKey::EMPTY`].
    pub fn rows(&self) -> &[PKey] {
        &self.rows
    }

    /// The lowest index that holds exactly this P_Key, membership bit and all.
    #[doc(alias = "ibv_get_pkey_index")]
    pub fn index_of(&self, pkey: PKey) -> Option<u16> {
        let at = self.by_value.binary_search_by_key(&pkey, |(there, _)| *there).ok()?;
        self.by_value.get(at).map(|(_, index)| *index)
    }

    /// The index of this partition, whichever membership: that of a full member if there is one,
    /// since limited members cannot talk to each other.
    pub fn index_of_partition(&self, pkey: PKey) -> Option<u16> {
        self.index_of(pkey.full()).or_else(|| self.index_of(pkey.limited()))
    }
}

/// What P_Keys are read with: a trait so that tables no device at hand has can be tested.
pub(crate) trait PKeyCalls: Send + Sync + 'static {
    /// See [`ContextHandle::query_pkey`].
    fn query_pkey(&self, port: PortNum, index: u16) -> Result<u16, Errno>;
}

impl PKeyCalls for ContextHandle {
    fn query_pkey(&self, port: PortNum, index: u16) -> Result<u16, Errno> {
        ContextHandle::query_pkey(self, port, index)
    }
}

/// A cache of the tables of these ports, each of this length, filled by a first read. `announce`
/// is told of the value that is kept before anything is read.
pub(crate) fn cache<C: PKeyCalls>(
    device: &Arc<str>,
    calls: Arc<C>,
    ports: Vec<(PortNum, u16)>,
    announcements: Option<Arc<dyn Announcements>>,
    announce: impl FnOnce(&Arc<Kept<PKeySnapshot>>),
) -> Result<PKeyCache> {
    let kept = Arc::new(Kept::new(PKeySnapshot::default()));
    announce(&kept);
    let device = Arc::clone(device);
    let read = move |before: &PKeySnapshot| {
        let mut tables = Vec::with_capacity(ports.len());
        for (port, len) in &ports {
            let row = |index| {
                calls.query_pkey(*port, index).map(PKey::new).map_err(|errno| Error::Verb {
                    verb: "ibv_query_pkey",
                    object: Object::row(&device, *port, index.into()),
                    errno,
                })
            };
            tables.push((*port, (0..*len).map(row).collect::<Result<Vec<_>>>()?));
        }
        let now = PKeySnapshot::new(tables, before);
        let same = now.ports.len() == before.ports.len()
            && now.ports.iter().zip(&before.ports).all(|(a, b)| a.generation == b.generation);
        Ok((!same).then_some(now))
    };
    Cache::new(kept, Box::new(read), announcements)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Port 1 has four rows, which a test can change; port 2 has none that can be read.
    struct Fake(Mutex<[u16; 4]>);

    impl PKeyCalls for Fake {
        fn query_pkey(&self, port: PortNum, index: u16) -> Result<u16, Errno> {
            let rows = self.0.lock().expect("one test");
            if port != PortNum::FIRST {
                return Err(Errno::EIO);
            }
            rows.get(usize::from(index)).copied().ok_or(Errno::EINVAL)
        }
    }

    fn fake() -> Arc<Fake> {
        Arc::new(Fake(Mutex::new([0xffff, 0x0005, 0x0000, 0x8005])))
    }

    fn cache_of(fake: &Arc<Fake>) -> PKeyCache {
        let ports = vec![(PortNum::FIRST, 4)];
        cache(&"fake0".into(), Arc::clone(fake), ports, None, |_| ()).expect("the first read")
    }

    #[test]
    fn index_by_value() {
        let cache = cache_of(&fake());
        let snapshot = cache.cached();
        let table = snapshot.port(PortNum::FIRST).expect("port 1");
        assert_eq!(table.rows().len(), 4);
        assert_eq!(table.index_of(PKey::DEFAULT), Some(0));
        assert_eq!(table.index_of(PKey::new(0x0005)), Some(1));
        assert_eq!(table.index_of(PKey::new(0x8005)), Some(3));
        assert_eq!(table.index_of(PKey::new(0x7fff)), None, "limited is another value");
        assert_eq!(table.index_of_partition(PKey::new(0x7fff)), Some(0));
        assert_eq!(table.index_of_partition(PKey::new(0x0005)), Some(3), "full before limited");
        assert_eq!(table.index_of(PKey::EMPTY), None, "an empty row holds nothing");
        assert!(snapshot.port(PortNum::new(2).expect("a port")).is_none());
    }

    #[test]
    fn generations_move_with_the_rows() {
        let fake = fake();
        let cache = cache_of(&fake);
        let before = cache.cached().to_arc();
        assert!(Arc::ptr_eq(&before, &cache.fresh().expect("a read").to_arc()));
        fake.0.lock().expect("one test")[2] = 0x8007;
        let after = cache.fresh().expect("a read");
        assert_eq!(after.ports()[0].generation(), 2);
        assert_eq!(after.ports()[0].index_of(PKey::new(0x8007)), Some(2));
        assert_eq!(before.ports()[0].index_of(PKey::new(0x8007)), None);
    }

    #[test]
    fn a_row_that_cannot_be_read_is_named() {
        let second = PortNum::new(2).expect("a port");
        let ports = vec![(PortNum::FIRST, 4), (second, 1)];
        let error = cache(&"fake0".into(), fake(), ports, None, |_| ()).expect_err("port 2 fails");
        let text = "ibv_query_pkey on fake0 port 2 index 0: EIO";
        assert!(error.to_string().starts_with(text), "{error}");
    }
}
