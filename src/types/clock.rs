//! What a device's own clock shows.

/// What a device's clock shows, in ticks of its own: of a completion
/// ([`Completion::timestamp`](crate::Completion::timestamp)), or now ([`Context::device_time`](crate::Context::device_time)).
///
/// It began at no time that is known, and comes round after all the bits of
/// [`completion_timestamp_mask`](crate::DeviceLimits::completion_timestamp_mask), on some devices within seconds. How
/// long it is from one to another, [`DeviceLimits::time_between`](crate::DeviceLimits::time_between) tells.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeviceTime(u64);

impl DeviceTime {
    /// From the device's own number.
    pub const fn from_ticks(ticks: u64) -> DeviceTime {
        DeviceTime(ticks)
    }

    /// The device's own number.
    pub const fn ticks(self) -> u64 {
        self.0
    }
}
