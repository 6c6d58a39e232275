//! Paths.

use std::time::Duration;

use tokio::task::coop::consume_budget;

use super::BoxFuture;
use super::machine::advance;
use crate::error::Result;
use crate::resolve::{Destination, Path, Resolution, Resolver};

/// The path to a peer, from memory if that has it, else from the kernel, for at most `timeout`:
/// [`Resolver::resolve`] as a task. Something keeps the resolver true meanwhile, such as
/// [`watch`](super::watch), or what is remembered may be behind.
///
/// What is remembered is answered at once. Otherwise the kernel is asked in the task, which takes
/// microseconds; what is waited for is a neighbour's answer.
///
/// Cancel safe: the kernel goes on looking for the neighbour, and what it finds is remembered by whoever asks
/// next.
///
/// # Errors
///
/// As [`Resolver::resolve`].
#[doc(alias = "rdma_resolve_addr")]
#[doc(alias = "rdma_resolve_route")]
pub async fn resolve(resolver: &Resolver, to: &Destination, timeout: Duration) -> Result<Path> {
    consume_budget().await;
    if let Some(path) = resolver.cached(to) {
        return Ok(path);
    }
    let mut resolution = resolver.start(to);
    let path = advance(&mut resolution, None, Resolution::advance);
    match tokio::time::timeout(timeout, path).await {
        Ok(path) => path?,
        Err(_) => Err(resolution.timed_out()),
    }
}

impl IntoFuture for Resolution {
    type Output = Result<Path>;
    type IntoFuture = BoxFuture<Result<Path>>;

    /// [`advance`](Resolution::advance), until it is ready. Dropping it ends the search.
    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move { advance(&mut self, None, Resolution::advance).await? })
    }
}
