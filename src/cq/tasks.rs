//! Waiting for completions as a task.

use std::sync::Arc;

use super::{CompletionQueue, Notify};
use crate::error::{Error, Result};
use crate::tasks;

impl CompletionQueue {
    /// Waits until there is something to look at: as [`wait`](CompletionQueue::wait), as a task.
    pub(crate) async fn until_any(&mut self, notify: Notify) -> Result<()> {
        let (Some(channel), Some(signal)) = (&self.shared.channel, &self.shared.signal) else {
            return Err(Error::NoChannel);
        };
        let (channel, signal) = (Arc::clone(channel), Arc::clone(signal));
        signal.wait_by_tasks(true);
        while channel.look(&mut [self], notify)?.is_none() {
            let fired = || signal.has_fired().then_some(());
            tasks::until(&channel, &signal.tasks, fired).await?;
        }
        Ok(())
    }
}
