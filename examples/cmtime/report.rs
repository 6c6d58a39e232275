//! What a run has told: as the C program's table, with more columns, or as JSON.

use std::fmt::Write;

use serde::{Serialize, Serializer};

use super::options::{GidLookup, How, Manager, Resolving};
use super::{Figures, Run, Step};

/// One run. With `--json`, an object.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) how: How,
    /// How many there were to be.
    pub(crate) connections: u32,
    /// How many of them failed, at any step. They are in no figure from there on.
    failed: u32,
    /// Of steps that nobody did, `null`.
    #[serde(serialize_with = "by_name")]
    pub(crate) steps: [Option<Figures>; 8],
    #[serde(skip)]
    error: Option<String>,
}

fn by_name<S: Serializer>(steps: &[Option<Figures>; 8], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(Step::ALL.iter().zip(steps).map(|((_, name), figures)| (name, figures)))
}

impl Report {
    pub(crate) fn new(run: Run<'_>) -> Report {
        let Run { how, figures, failed, error, options, .. } = run;
        Report { how, connections: options.connections, failed, steps: figures, error }
    }

    /// What it is, in short.
    pub(crate) fn name(&self) -> String {
        if self.how.cm == Manager::Rdmacm {
            return "rdmacm".into();
        }
        let scan = self.how.gid_lookup == Some(GidLookup::Scan);
        let cold = self.how.resolve == Some(Resolving::Cold);
        let lookup = if scan { "scan" } else { "cached" };
        format!("verbs, lookup {lookup}, resolve {}", if cold { "cold" } else { "cached" })
    }

    pub(crate) fn json(&self) -> Result<String, String> {
        Ok(serde_json::to_string(self).map_err(|error| error.to_string())? + "\n")
    }

    pub(crate) fn table(&self) -> String {
        let heading = ["total ms", "max ms", "min us", "us / conn", "p50 us", "p99 us"];
        let mut lines = vec![heading.map(str::to_owned)];
        lines.extend(self.steps.iter().map(|figures| match figures {
            None => ["-"; 6].map(str::to_owned),
            Some(Figures { total_ms, max_ms, min_us, us_per_conn, p50_us, p99_us }) => {
                let columns = [total_ms, max_ms, min_us, us_per_conn, p50_us, p99_us];
                columns.map(|number| format!("{number:.2}"))
            }
        }));
        // Each column as wide as what is in it, so that none ever touches its neighbour.
        let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
        let widths: [usize; 6] = std::array::from_fn(|column| width(column).max(10));
        let mut text =
            format!("{}, {} connections, {} failed\n", self.name(), self.connections, self.failed);
        let names = std::iter::once("step").chain(Step::ALL.map(|(_, name)| name));
        for (name, line) in names.zip(&lines) {
            let _ = write!(text, "{name:<13}{}", if name == "step" { " " } else { ":" });
            for (field, width) in line.iter().zip(widths) {
                let _ = write!(text, " {field:>width$}");
            }
            text.push('\n');
        }
        text
    }

    /// Why it was no success.
    pub(crate) fn failure(&self) -> Option<String> {
        let Report { failed, connections, error, .. } = self;
        let why = error.as_deref().unwrap_or("no reason was told");
        (*failed > 0)
            .then(|| format!("{failed} of {connections} connections failed; the first: {why}"))
    }
}
