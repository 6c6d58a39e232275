//! The client: ids go from state to state, all of them to one before any to the next.

use std::net::SocketAddr;
use std::time::Duration;

use rdma_verbs::cm::{
    AddressResolved, Connected, ConnectionParams, EventChannel, Id, RouteResolved, Step as Awaits,
};
use rdma_verbs::{Error, Init, QueuePair, RemoteAccess};

use super::super::parts::Parts;
use super::super::text;
use super::super::{Run, Step};

/// A queue pair for an id whose route is known.
type Ready = (Id<RouteResolved>, QueuePair<Init>);

pub(crate) fn run(run: &mut Run<'_>, to: SocketAddr) -> Result<(), String> {
    let channel = EventChannel::new().map_err(text)?;
    let count = 0..run.options.connections;
    let ids = run.each(Step::CreateId, count.collect(), |_| channel.id().map_err(text))?;
    let ids = match run.options.bind {
        Some(at) => {
            let ids = run.each(Step::BindAddr, ids, |id| id.bind((at, 0).into()).map_err(text))?;
            resolve(run, ids, |id, left| id.resolve_addr(to, left).map_err(text))
        }
        None => resolve(run, ids, |id, left| id.resolve_addr(to, left).map_err(text)),
    };
    let begin = |id: Id<AddressResolved>, left| id.resolve_route(left).map_err(text);
    let ids = run.begun(Step::ResolveRoute, ids, begin, |step, left| {
        let id = step.wait(patient(left)).map_err(text)?;
        let at = id.arrived();
        Ok((id, at))
    });
    let Some(first) = ids.first() else { return Ok(()) };
    let context = first.context().map_err(text)?;
    let mut parts = Parts::new(context, run.options.connections).map_err(text)?;
    let ready = run.each(Step::CreateQp, ids, |id| {
        let queue_pair = parts.queue_pair().map_err(text)?;
        let ready = id.init(queue_pair, RemoteAccess::default()).map_err(text)?;
        Ok((id, ready))
    })?;
    connect_and_end(run, ready)
}

fn resolve<S>(
    run: &mut Run<'_>,
    ids: Vec<Id<S>>,
    begin: impl FnMut(Id<S>, Duration) -> Result<Awaits<AddressResolved>, String>,
) -> Vec<Id<AddressResolved>> {
    run.begun(Step::ResolveAddr, ids, begin, |step, left| {
        let id = step.wait(patient(left)).map_err(text)?;
        let at = id.arrived();
        Ok((id, at))
    })
}

fn connect_and_end(run: &mut Run<'_>, ready: Vec<Ready>) -> Result<(), String> {
    let params = ConnectionParams::new();
    let begin = |(id, ready): Ready, _| id.connect(ready, &params).map_err(text);
    let connected = run.begun(Step::Connect, ready, begin, |connecting, left| {
        // Its end is when the queue pair is connected, which is done here, and not when the answer came.
        Ok((connecting.wait(patient(left)).map_err(text)?, None))
    });
    let begin = |connected: Connected, _| {
        let Connected { connection, queue_pair, .. } = connected;
        connection.disconnect().map_err(text)?;
        drop(queue_pair);
        Ok(connection)
    };
    let ended = run.begun(Step::Disconnect, connected, begin, |connection, left| match connection
        .wait_disconnected(left)
    {
        Ok(true) => Ok((connection, None)),
        Ok(false) => Err("the peer has not answered in time".into()),
        Err(error) => Err(text::<Error>(error)),
    });
    run.each(Step::Destroy, ended, |connection| {
        drop(connection);
        Ok(())
    })?;
    Ok(())
}

/// A little more, for the kernel to say what is wrong; of what is late already nothing is waited for.
fn patient(left: Duration) -> Duration {
    if left.is_zero() { left } else { left.saturating_add(Duration::from_millis(100)) }
}
