//! Steps, and what they take.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;

use super::options::{Deadline, How, Options};

/// The steps of connecting, as the C program has them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(crate) enum Step {
    CreateId,
    BindAddr,
    ResolveAddr,
    ResolveRoute,
    CreateQp,
    Connect,
    Disconnect,
    Destroy,
}

impl Step {
    pub(crate) const ALL: [(Step, &'static str); 8] = [
        (Step::CreateId, "create id"),
        (Step::BindAddr, "bind addr"),
        (Step::ResolveAddr, "resolve addr"),
        (Step::ResolveRoute, "resolve route"),
        (Step::CreateQp, "create qp"),
        (Step::Connect, "connect"),
        (Step::Disconnect, "disconnect"),
        (Step::Destroy, "destroy"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Step::ALL[self as usize].1
    }
}

/// What a step took, of the connections that did it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Figures {
    /// From the first one's beginning to the last one's end.
    pub(crate) total_ms: f64,
    pub(crate) max_ms: f64,
    pub(crate) min_us: f64,
    /// The total, divided by the number of those that did it.
    pub(crate) us_per_conn: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Figures {
    /// `None` when nobody did it.
    pub(crate) fn of(total: Duration, mut each: Vec<Duration>) -> Option<Figures> {
        each.sort_unstable();
        let us = |time: Duration| time.as_nanos() as f64 / 1e3;
        // The least that so many in a hundred did not exceed.
        let percentile = |percent: usize| us(each[(each.len() * percent).div_ceil(100) - 1]);
        let (min, max) = (*each.first()?, *each.last()?);
        Some(Figures {
            total_ms: us(total) / 1e3,
            max_ms: us(max) / 1e3,
            min_us: us(min),
            us_per_conn: us(total) / each.len() as f64,
            p50_us: percentile(50),
            p99_us: percentile(99),
        })
    }
}

/// One run, as far as it is.
pub(crate) struct Run<'a> {
    pub(crate) options: &'a Options,
    pub(crate) how: How,
    pub(crate) deadline: Deadline,
    pub(crate) figures: [Option<Figures>; 8],
    pub(crate) failed: u32,
    /// Why the first one failed.
    pub(crate) error: Option<String>,
    shown: Option<Instant>,
}

/// A step that is under way.
pub(crate) struct Lap {
    step: Step,
    begun: Instant,
    pub(crate) until: Instant,
    each: Vec<Duration>,
    of: usize,
}

impl Lap {
    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    pub(crate) fn done(&mut self, took: Duration) {
        self.each.push(took);
    }
}

impl Run<'_> {
    pub(crate) fn new(options: &Options, how: How, deadline: Deadline) -> Run<'_> {
        let shown = std::io::stderr().is_terminal().then(Instant::now);
        Run { options, how, deadline, figures: [None; 8], failed: 0, error: None, shown }
    }

    /// Whether nobody does this step.
    pub(crate) fn ends_before(&self, step: Step) -> bool {
        self.options.until.is_some_and(|until| step > until)
    }

    pub(crate) fn begin(&self, step: Step, of: usize) -> Lap {
        // Written to once, so that it is there.
        let mut each = vec![Duration::ZERO; of];
        each.clear();
        let until = self.deadline.of_step();
        Lap { step, begun: Instant::now(), until, each, of }
    }

    pub(crate) fn end(&mut self, lap: Lap) {
        let total = lap.begun.elapsed();
        self.figures[lap.step as usize] = Figures::of(total, lap.each);
        if self.shown.is_some() {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
    }

    pub(crate) fn fail(&mut self, step: Step, error: String) {
        self.failed += 1;
        self.error.get_or_insert_with(|| format!("{}: {error}", step.name()));
    }

    /// A connection's failure, for want of time.
    fn late(&mut self, step: Step) {
        self.fail(step, "not done in time (-t, --deadline)".into());
    }

    /// Shows how far a step is, on a terminal, ten times a second.
    pub(crate) fn show(&mut self, lap: &Lap) {
        let Some(shown) = &mut self.shown else { return };
        if shown.elapsed() < Duration::from_millis(100) {
            return;
        }
        *shown = Instant::now();
        let (name, done) = (lap.step.name(), lap.each.len());
        let bar = "#".repeat(done * 40 / lap.of.max(1));
        let line = format!("\r\x1b[K{name:<13} [{bar:<40}] {done}/{}", lap.of);
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    /// A step that every connection does in one call. What the first one cannot do, none can.
    pub(crate) fn each<A, B>(
        &mut self,
        step: Step,
        items: Vec<A>,
        mut call: impl FnMut(A) -> Result<B, String>,
    ) -> Result<Vec<B>, String> {
        if self.ends_before(step) {
            return Ok(Vec::new());
        }
        let mut done = Vec::with_capacity(items.len());
        let mut lap = self.begin(step, items.len());
        let mut begun = Instant::now();
        for item in items {
            if begun >= lap.until {
                self.late(step);
                continue;
            }
            match call(item) {
                Ok(item) => {
                    lap.done(begun.elapsed());
                    done.push(item);
                }
                Err(error) if done.is_empty() => return Err(error),
                Err(error) => self.fail(step, error),
            }
            self.show(&lap);
            begun = Instant::now();
        }
        self.end(lap);
        Ok(done)
    }

    /// A step that every connection begins, and that then ends for one after the other; `end` tells when it
    /// did, if it knows better.
    pub(crate) fn begun<A, B, C>(
        &mut self,
        step: Step,
        items: Vec<A>,
        mut begin: impl FnMut(A, Duration) -> Result<B, String>,
        mut end: impl FnMut(B, Duration) -> Result<(C, Option<Instant>), String>,
    ) -> Vec<C> {
        if self.ends_before(step) {
            return Vec::new();
        }
        let mut under_way = Vec::with_capacity(items.len());
        let mut done = Vec::with_capacity(items.len());
        let mut lap = self.begin(step, items.len());
        for item in items {
            let begun = Instant::now();
            match begin(item, lap.until.saturating_duration_since(begun)) {
                Ok(item) => under_way.push((begun, item)),
                Err(error) => self.fail(step, error),
            }
        }
        for (begun, item) in under_way {
            match end(item, lap.left()) {
                Ok((item, at)) => {
                    lap.done(at.map_or_else(|| begun.elapsed(), |at| at.duration_since(begun)));
                    done.push(item);
                }
                Err(error) => self.fail(step, error),
            }
            self.show(&lap);
        }
        self.end(lap);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_in_order() {
        assert_eq!(Figures::of(Duration::ZERO, Vec::new()), None);
        let each = (1..=200).rev().map(Duration::from_micros).collect();
        let told = Figures::of(Duration::from_millis(100), each).expect("200 of them");
        assert_eq!((told.min_us, told.p50_us, told.p99_us), (1.0, 100.0, 198.0));
        assert_eq!((told.max_ms, told.total_ms, told.us_per_conn), (0.2, 100.0, 500.0));
        let one = Figures::of(Duration::from_nanos(3), vec![Duration::from_nanos(2)]).expect("one");
        assert!(one.min_us == one.p50_us && one.p50_us == one.p99_us && one.min_us == 0.002);
    }
}
