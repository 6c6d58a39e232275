//! Why the streams end before their time: the device that goes away, and all else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_verbs::GidDirectory;

/// Why.
pub(crate) enum Stop {
    /// The device is being taken away, which waits until everybody has closed it.
    Gone,
    Failed(String),
}

impl<E: std::fmt::Display> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Failed(error.to_string())
    }
}

/// Looks for one device in a directory that a thread keeps true.
pub(crate) struct Watch {
    directory: GidDirectory,
    device: Arc<str>,
    next: Instant,
}

/// How often it looks.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a failure may be the first sign of a device that goes away.
const SIGN: Duration = Duration::from_secs(2);

impl Watch {
    pub(crate) fn new(directory: &GidDirectory, device: &str) -> Watch {
        Watch { directory: directory.clone(), device: device.into(), next: Instant::now() }
    }

    /// Whether the device is gone, as far as it is time to look.
    pub(crate) fn is_gone(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + PAUSE;
        self.directory.cached().device(&self.device).is_none()
    }

    /// What a failure comes from: the device, if that goes within a moment.
    pub(crate) fn reason(&mut self, stop: Stop) -> Stop {
        let end = Instant::now() + SIGN;
        loop {
            match (&stop, Instant::now()) {
                (Stop::Gone, _) => return stop,
                (_, now) if self.is_gone(now) => return Stop::Gone,
                (_, now) if now > end => return stop,
                _ => std::thread::sleep(PAUSE),
            }
        }
    }
}
