//! State machines that are advanced when their descriptor is readable.

use std::os::fd::AsFd;
use std::task::Poll;
use std::time::Instant;

use crate::error::Result;
use crate::tasks::{another, registered, runtime_error};

/// Advances a machine until it is ready, waiting in between for its descriptor, which is the same from
/// the first wait on, or for its deadline.
///
/// An advance that is pending has taken in all that made the descriptor readable.
pub(super) async fn advance<M: AsFd, T>(
    machine: &mut M,
    deadline: Option<Instant>,
    mut advance: impl FnMut(&mut M) -> Poll<T>,
) -> Result<T> {
    if let Poll::Ready(done) = advance(machine) {
        return Ok(done);
    }
    let fd = registered(another(machine.as_fd())?)?;
    loop {
        let ready = until(deadline, fd.readable()).await;
        if let Poll::Ready(done) = advance(machine) {
            return Ok(done);
        }
        if let Some(ready) = ready {
            ready.map_err(|error| runtime_error(&error))?.clear_ready();
        }
    }
}

/// What it gives, or nothing when the time is over.
pub(super) async fn until<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline.into(), future).await.ok(),
        None => Some(future.await),
    }
}
