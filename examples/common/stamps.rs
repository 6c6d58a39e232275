//! The device's times of the messages that came, as C's programs tell them with `--ts`.

use rdma_verbs::{DeviceLimits, DeviceTime};
use serde::Serialize;

/// What lies between one message and the next, in ticks of the device's clock.
#[derive(Default)]
pub(crate) struct Stamps {
    last: Option<DeviceTime>,
    count: u64,
    total: u64,
    least: u64,
    most: u64,
}

/// What came out.
#[derive(Debug, Serialize)]
pub(crate) struct Apart {
    average_ticks: f64,
    least_ticks: u64,
    most_ticks: u64,
    /// `None` of a device that does not tell how fast its clock is.
    average_usec: Option<f64>,
}

impl Stamps {
    /// One came, at this time if the device tells any.
    pub(crate) fn came(&mut self, limits: &DeviceLimits, time: Option<DeviceTime>) {
        let Some(time) = time else { return };
        let ticks = self.last.replace(time).and_then(|last| limits.ticks_between(last, time));
        let Some(ticks) = ticks else { return };
        self.least = if self.count == 0 { ticks } else { self.least.min(ticks) };
        self.most = self.most.max(ticks);
        self.total = self.total.saturating_add(ticks);
        self.count += 1;
    }

    /// `None` when fewer than two had a time.
    pub(crate) fn apart(&self, limits: &DeviceLimits) -> Option<Apart> {
        let average_ticks = (self.count > 0).then(|| self.total as f64 / self.count as f64)?;
        let khz = limits.hca_core_clock_khz;
        Some(Apart {
            average_ticks,
            least_ticks: self.least,
            most_ticks: self.most,
            average_usec: (khz > 0).then(|| average_ticks * 1e3 / khz as f64),
        })
    }
}

impl Apart {
    /// As a line.
    pub(crate) fn line(&self) -> String {
        let Apart { average_ticks, least_ticks, most_ticks, average_usec } = self;
        let usec = average_usec.map(|usec| format!(" = {usec:.2} usec")).unwrap_or_default();
        format!(
            "by the device's clock a message came after {average_ticks:.1} ticks on average{usec}, \
             {least_ticks} least, {most_ticks} most\n"
        )
    }
}
