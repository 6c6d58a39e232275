//! What both ends' streams have in common.

use rdma_verbs::{ConnectOptions, Endpoint, Error, Init, QueuePair, Rts};

use super::local::Local;
use super::options::Options;

/// How all streams are connected.
pub(crate) fn connect_options(options: &Options, local: &Local) -> ConnectOptions {
    let connect = match &local.row {
        Some(row) => ConnectOptions::new(row),
        None => ConnectOptions::by_lid(options.ib_port),
    };
    options.mtu.map_or(connect, |mtu| connect.mtu(mtu))
}

/// Connects each to its peer.
pub(crate) fn connect_all(
    queue_pairs: Vec<QueuePair<Init>>,
    options: &Options,
    local: &Local,
    theirs: &[Endpoint],
) -> Result<Vec<QueuePair<Rts>>, Error> {
    let connect = connect_options(options, local);
    let both = queue_pairs.into_iter().zip(theirs);
    both.map(|(queue_pair, peer)| Ok(queue_pair.connect(peer, &connect)?)).collect()
}
