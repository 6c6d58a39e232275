//! How a page pool for receives is made, and what registering a buffer costs.

use std::time::{Duration, Instant};

use rdma_verbs::{Error, PagePool, Pool, ProtectionDomain, Region};

use super::{PROGRAM, common};

/// Pages for twice as many receives, and no more: while one stream stands still, and keeps its fragments of
/// the oldest slab, the others have those of the rest to go on with.
pub(crate) fn pages(
    pd: &ProtectionDomain,
    size: usize,
    receives: usize,
) -> Result<PagePool, Error> {
    let fragment = size.next_power_of_two();
    let least = (64 << 10).max(rustix::param::page_size());
    let slab = (fragment * receives.div_ceil(4)).next_power_of_two().clamp(least, 2 << 20);
    // One is being handed out of, and one is on its way back.
    let floor = (2 * fragment * receives).div_ceil(slab) + 2;
    let pool = |slabs| {
        let builder = PagePool::builder(pd, fragment).slab_bytes(slab);
        builder.floor(slabs).ceiling(slabs).build()
    };
    match pool(floor) {
        Err(Error::FewerSlabs { made, why, .. }) if made > 2 => {
            common::note(PROGRAM, format!("{made} slabs of {slab} bytes, not {floor}: {why}"));
            pool(made)
        }
        other => other,
    }
}

/// How long it takes to register one buffer and to deregister it: the median of many times.
pub(crate) fn registration_time(pd: &ProtectionDomain, size: usize) -> Result<Duration, Error> {
    let mut memory: Region = vec![0; size].into();
    let mut times = [Duration::ZERO; 101];
    for time in &mut times {
        let begun = Instant::now();
        memory = Pool::from_memory(pd, memory, size)?.into_memory()?;
        *time = begun.elapsed();
    }
    times.sort();
    Ok(times[times.len() / 2])
}
