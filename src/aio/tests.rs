use std::net::SocketAddr;
use std::time::Duration;

use super::*;
use crate::cm;
use crate::connect::{Connecting, Connector, Incoming};
use crate::directory::GidDirectory;
use crate::qp::{ConnectOptions, Init, QueuePair};
use crate::resolve::{Destination, Resolution, Resolver};

/// Each future can go from thread to thread, so that it can be spawned.
#[test]
fn futures_can_be_sent() {
    fn sent<F: Future + Send>(_: impl Fn() -> F) {}
    fn into_sent<F: IntoFuture<IntoFuture: Send>>() {}
    fn any_thread<T: Send + Sync>() {}
    // Never called: the types are what is looked at.
    #[allow(dead_code)]
    fn of(
        (completions, events, listener): (&mut Completions, &mut Events, &mut Listener),
        (resolver, connector, to): (&Resolver, &Connector, SocketAddr),
        (step, request): (&cm::Step<cm::RouteResolved>, &cm::Listener),
        (connecting, accepting, connection): (&cm::Connecting, &cm::Accepting, &cm::Connection),
    ) {
        fn send<F: Future + Send>(_: F) {}
        send(completions.next_batch());
        send(events.next());
        send(listener.accept());
        send(resolve(resolver, &Destination::from(to), Duration::ZERO));
        send(watch(resolver.clone()));
        send(step.ended());
        send(request.next_request());
        send(connecting.ended());
        send(accepting.ended());
        send(connection.disconnected());
        let connect = |queue_pair: QueuePair<Init>, options: ConnectOptions| {
            send(connect(connector, to, queue_pair, options, Duration::ZERO))
        };
        let _ = connect;
    }
    sent(|| async {});
    into_sent::<Connecting>();
    into_sent::<Resolution>();
    into_sent::<cm::Step<cm::AddressResolved>>();
    into_sent::<cm::Connecting>();
    into_sent::<cm::Accepting>();
    any_thread::<(Completions, Events, Listener, Incoming, GidDirectory)>();
}
