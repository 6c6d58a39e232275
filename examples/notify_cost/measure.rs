//! Raw and ours in turn, and what each took.

use std::time::Instant;

use serde::Serialize;

use super::counter::Counter;
use super::subject::{Call, Subject};

/// Least, most and mean of something.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) ave: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// What one side took for a call.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Cost {
    /// Of single calls, reading the counter included; `null` where it is not steady.
    pub(crate) cycles: Option<Spread>,
    /// By the clock, over batches of calls.
    pub(crate) ns: Spread,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Situation {
    pub(crate) raw: Cost,
    pub(crate) ours: Cost,
    pub(crate) difference_ns: f64,
    pub(crate) difference_cycles: Option<f64>,
}

/// What is compared, and in which state of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compared {
    pub(crate) raw: Call,
    pub(crate) ours: Call,
    /// Whether a message goes around before each batch.
    pub(crate) used: bool,
}

/// How many times what is called, and whether single calls are timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) calls: u64,
    pub(crate) runs: usize,
    pub(crate) counter: Option<Counter>,
}

impl Plan {
    /// Of so many calls each is timed by the clock as one.
    pub(crate) fn batch(self) -> u64 {
        (self.calls / 10).clamp(1, 1000)
    }

    pub(crate) fn measure(
        self,
        subject: &mut Subject,
        what: Compared,
    ) -> Result<Situation, String> {
        let (mut raws, mut ours) = (Vec::new(), Vec::new());
        for run in 0..=self.runs {
            let mut sides = [(what.raw, &mut raws), (what.ours, &mut ours)];
            // Neither always comes first.
            if run % 2 == 1 {
                sides.reverse();
            }
            for (call, costs) in sides {
                let cost = self.once(subject, call, what.used)?;
                // The first is for the caches.
                if run > 0 {
                    costs.push(cost);
                }
            }
        }
        let (raw, ours) = (Cost::median(&raws), Cost::median(&ours));
        Ok(Situation {
            raw,
            ours,
            difference_ns: ours.ns.ave - raw.ns.ave,
            difference_cycles: ours.cycles.zip(raw.cycles).map(|(ours, raw)| ours.ave - raw.ave),
        })
    }

    /// One run of one side.
    fn once(self, subject: &mut Subject, call: Call, used: bool) -> Result<Cost, String> {
        let mut ns = Gathered::default();
        let mut left = self.calls;
        while left > 0 {
            let batch = left.min(self.batch());
            if used {
                subject.go_around()?;
            }
            let begun = Instant::now();
            subject.call(call, batch)?;
            let took = begun.elapsed().as_nanos() as f64;
            ns.add(took / batch as f64, batch as f64);
            left -= batch;
        }
        let mut cycles = Gathered::default();
        let mut left = if self.counter.is_some() { self.calls } else { 0 };
        while left > 0 {
            let batch = left.min(self.batch());
            if used {
                subject.go_around()?;
            }
            subject.call_singly(call, batch, |took| cycles.add(took as f64, 1.0))?;
            left -= batch;
        }
        Ok(Cost { cycles: self.counter.map(|_| cycles.spread()), ns: ns.spread() })
    }
}

/// Values as they come.
struct Gathered {
    sum: f64,
    weight: f64,
    min: f64,
    max: f64,
}

impl Default for Gathered {
    fn default() -> Gathered {
        Gathered { sum: 0.0, weight: 0.0, min: f64::INFINITY, max: 0.0 }
    }
}

impl Gathered {
    fn add(&mut self, value: f64, weight: f64) {
        self.sum += value * weight;
        self.weight += weight;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    fn spread(&self) -> Spread {
        // Sums are rounded: the mean of equal values is one of them.
        let ave = (self.sum / self.weight).clamp(self.min, self.max);
        Spread { ave, min: self.min, max: self.max }
    }
}

impl Cost {
    /// Each figure's median over the runs.
    fn median(runs: &[Cost]) -> Cost {
        let cycles: Vec<Spread> = runs.iter().filter_map(|run| run.cycles).collect();
        let ns: Vec<Spread> = runs.iter().map(|run| run.ns).collect();
        let cycles = (!cycles.is_empty()).then(|| Spread::median(&cycles));
        Cost { cycles, ns: Spread::median(&ns) }
    }
}

impl Spread {
    fn median(runs: &[Spread]) -> Spread {
        let of = |figure: fn(&Spread) -> f64| {
            let mut figures: Vec<f64> = runs.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        Spread { ave: of(|s| s.ave), min: of(|s| s.min), max: of(|s| s.max) }
    }
}
