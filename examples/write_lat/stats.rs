//! The distribution of what was measured, in memory that does not grow with it.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Times in ns: their distribution to three digits, and exactly the least, the most, the sum.
pub(crate) struct Samples {
    histogram: Histogram<u64>,
    least: u64,
    most: u64,
    sum: u128,
    /// Of the squares: enough for 10^14 samples of an hour each.
    squares: u128,
}

/// The longest that the distribution tells apart from longer ones: an hour.
const TOP: u64 = 3_600_000_000_000;

impl Samples {
    /// None yet. All the memory that it ever needs is taken here.
    pub(crate) fn new() -> Result<Samples, String> {
        let histogram = Histogram::new_with_bounds(1, TOP, 3).map_err(|error| error.to_string())?;
        Ok(Samples { histogram, least: u64::MAX, most: 0, sum: 0, squares: 0 })
    }

    /// One more.
    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.max(1));
        self.least = self.least.min(ns);
        self.most = self.most.max(ns);
        self.sum += u128::from(ns);
        self.squares = self.squares.saturating_add(u128::from(ns) * u128::from(ns));
    }

    pub(crate) fn clear(&mut self) {
        self.histogram.reset();
        (self.least, self.most, self.sum, self.squares) = (u64::MAX, 0, 0, 0);
    }

    /// All of it, each sample divided by `parts`; `None` when there are no samples.
    pub(crate) fn summary(&self, parts: u32) -> Option<Summary> {
        let count = self.histogram.len();
        if count == 0 {
            return None;
        }
        let usec = |ns: f64| ns / f64::from(parts) / 1e3;
        // The middle of what the distribution does not tell apart, and no more than was there.
        let at = |quantile| {
            let value = self.histogram.value_at_quantile(quantile);
            let middle = self.histogram.median_equivalent(value);
            usec(middle.clamp(self.least, self.most) as f64)
        };
        let (least, most) = (self.least as f64, self.most as f64);
        let average = (self.sum as f64 / count as f64).clamp(least, most);
        let variance = self.squares as f64 / count as f64 - average * average;
        Some(Summary {
            samples: count,
            t_min: usec(least),
            t_max: usec(most),
            t_typical: at(0.5),
            t_avg: usec(average),
            t_stdev: usec(variance.max(0.0).sqrt()),
            p99: at(0.99),
            p999: at(0.999),
        })
    }

    /// How often each time was there, in us, each sample divided by `parts`.
    pub(crate) fn distribution(&self, parts: u32) -> Vec<(f64, u64)> {
        let recorded = self.histogram.iter_recorded();
        let usec = |value| {
            let middle = self.histogram.median_equivalent(value).clamp(self.least, self.most);
            middle as f64 / f64::from(parts) / 1e3
        };
        recorded.map(|it| (usec(it.value_iterated_to()), it.count_at_value())).collect()
    }
}

/// What is told of them, in us.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) samples: u64,
    pub(crate) t_min: f64,
    pub(crate) t_max: f64,
    /// The median.
    pub(crate) t_typical: f64,
    pub(crate) t_avg: f64,
    pub(crate) t_stdev: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}
