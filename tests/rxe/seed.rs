//! Random numbers of a test, from a seed that a failure tells.

/// xorshift64: the seed is of the time, or `RDMA_TEST_SEED`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(test: &str) -> Random {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.expect("after 1970").as_nanos() as u64 | 1;
        let seed = std::env::var("RDMA_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or(now);
        println!("{test}: RDMA_TEST_SEED={seed}");
        Random(seed)
    }

    /// Another, for another thread.
    pub(crate) fn fork(&mut self) -> Random {
        Random(self.next() | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: u32) -> u32 {
        ((self.next() >> 32) % u64::from(end)) as u32
    }

    /// Lets up to so many rounds of nothing pass.
    pub(crate) fn dawdle(&mut self, most: u32) {
        for _ in 0..self.below(most) {
            std::hint::spin_loop();
        }
    }
}
