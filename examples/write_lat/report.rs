//! What was measured: a table or JSON.

use serde::{Deserialize, Serialize};

use super::stats::Summary;

/// One size in one mode. With `--json`, an object. Times are in us.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) device: String,
    /// `write` or `write_with_imm`.
    pub(crate) mode: String,
    pub(crate) bytes: u64,
    pub(crate) iterations: u64,
    #[serde(flatten)]
    pub(crate) times: Summary,
    /// Messages of up to so many bytes were inline.
    pub(crate) inline: u32,
    /// Work requests for one doorbell.
    pub(crate) batch: u32,
    pub(crate) doorbell: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) messages_per_sec: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) doorbells_per_message: Option<f64>,
    /// Time, and how often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) histogram: Option<Vec<(f64, u64)>>,
}

impl Row {
    /// What it is a point of.
    pub(crate) fn curve(&self) -> String {
        let Row { device, mode, doorbell, bytes, .. } = self;
        match self.messages_per_sec {
            Some(_) => format!("{device}, {bytes} bytes, doorbell {doorbell}"),
            None => format!("{device}, {mode}, doorbell {doorbell}"),
        }
    }

    /// Its line, and those of its distribution. Batches are compared with the first of them.
    pub(crate) fn line(&self, first: &Row) -> String {
        let Row { bytes, iterations, batch, doorbell, times, .. } = self;
        let Summary { t_min, t_max, t_typical, t_avg, t_stdev, p99, p999, .. } = times;
        let mut text = match (self.messages_per_sec, first.messages_per_sec) {
            (Some(rate), Some(before)) => {
                let doorbells = self.doorbells_per_message.unwrap_or_default();
                let gain = rate / before;
                format!(
                    " {bytes:<8} {iterations:<11} {batch:<6} {rate:<14.0} {gain:<9.2} {doorbells:<18.4} \
                     {t_avg:<15.2} {doorbell}\n"
                )
            }
            _ => format!(
                " {bytes:<8} {iterations:<11} {t_min:<12.2} {t_max:<12.2} {t_typical:<15.2} {t_avg:<12.2} \
                 {t_stdev:<13.2} {p99:<9.2} {p999:<9.2}\n"
            ),
        };
        for (time, count) in self.histogram.iter().flatten() {
            text += &format!("   {time:>12.2} us  {count}\n");
        }
        text
    }
}

/// What is above the lines.
pub(crate) fn head(batches: bool) -> &'static str {
    if batches {
        " Writes in one direction, so many for one doorbell; t_avg: the time of one message.\n \
         #bytes   #iterations #batch messages/s     gain      doorbells/message  t_avg[usec]     doorbell\n"
    } else {
        " Half of a round trip, from post to post, by CLOCK_MONOTONIC_RAW; t_typical is the median.\n \
         #bytes   #iterations t_min[usec]  t_max[usec]  t_typical[usec] t_avg[usec]  t_stdev[usec] \
         99%[usec] 99.9%[usec]\n"
    }
}
