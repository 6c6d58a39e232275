//! One end: its queue pair, from which row it is connected, and what its peer is told.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::Poll;

use super::machine::End;
use super::{Offer, Terms};
use crate::directory::{DirectoryRow, DirectorySnapshot, Rank};
use crate::error::{Error, ExchangeFault, ExchangeProblem, ExchangeStep, Result};
use crate::qp::{ConnectOptions, Init, QueuePair, Rts};
use crate::query::{Choice, GidQuery};
use crate::resolve::{Destination, Path, Resolution, Resolver};
use crate::types::{Gid, GidEntry, GidType, Lid};

/// A queue pair on its way.
pub(super) struct QueuePairEnd {
    resolver: Resolver,
    /// In one of these, but while it is connected.
    init: Option<QueuePair<Init>>,
    rts: Option<QueuePair<Rts>>,
    offer: Offer,
    /// Those of the offer, from the row that was found.
    options: ConnectOptions,
    /// The other end, for errors.
    address: SocketAddr,
    resolution: Option<Resolution>,
    path: Option<Path>,
}

impl QueuePairEnd {
    pub(super) fn new(
        resolver: &Resolver,
        queue_pair: QueuePair<Init>,
        offer: Offer,
        address: SocketAddr,
    ) -> QueuePairEnd {
        QueuePairEnd {
            resolver: resolver.clone(),
            init: Some(queue_pair),
            rts: None,
            options: offer.options,
            offer,
            address,
            resolution: None,
            path: None,
        }
    }

    /// The queue pair and its path, once it is connected.
    pub(super) fn connected(self) -> (QueuePair<Rts>, Option<Path>) {
        match self.rts {
            Some(queue_pair) => (queue_pair, self.path),
            None => unreachable!("an exchange that succeeded has brought it up"),
        }
    }

    /// The queue pair as it was given; in the error state, if it cannot be brought back.
    pub(super) fn back(self) -> QueuePair<Init> {
        match (self.init, self.rts) {
            (Some(queue_pair), _) => queue_pair,
            (None, Some(queue_pair)) => queue_pair.again(),
            (None, None) => unreachable!("it is in one of the two but within `up`"),
        }
    }

    fn queue_pair(&self) -> &QueuePair<Init> {
        match &self.init {
            Some(queue_pair) => queue_pair,
            None => unreachable!("it is in Init until `up`"),
        }
    }

    /// The row to send from, where none was given: that of the TCP connection's own address. On loopback,
    /// which has none, and towards a peer of the other family, the best of the queue pair's port.
    fn find_row(&self, local: SocketAddr, peer: Option<&Terms>) -> Result<GidEntry> {
        let snapshot = self.resolver.gids_checked()?;
        let device = self.queue_pair().context().device().name();
        let port = self.options.port();
        let towards = peer.and_then(|peer| peer.endpoint.gid).map(Gid::ip);
        let ip = local.ip().to_canonical();
        let fits_peer = towards.is_none_or(|peer| peer.is_ipv4() == ip.is_ipv4());
        if ip.is_loopback() || !fits_peer {
            let query = GidQuery::new().device(device).port(port);
            let query = towards.iter().fold(query, |query, peer| query.peer(*peer));
            return query.best(&snapshot).map(|choice| choice.row);
        }
        let scope = match local {
            SocketAddr::V6(local) => local.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let of_device = |row: &&DirectoryRow| {
            snapshot.device_of(row).is_some_and(|of| of.name() == device)
                && row.entry().port() == port
        };
        let best = usable(&snapshot, ip, scope)
            .filter(of_device)
            .min_by_key(|row| Rank::of(row, snapshot.net()));
        if let Some(row) = best {
            return Ok(*row.entry());
        }
        let other = usable(&snapshot, ip, scope).find_map(|row| snapshot.device_of(row));
        Err(match other {
            Some(theirs) if theirs.name() != device => Error::OtherDevice {
                what: "the TCP connection's own address",
                ours: device.into(),
                theirs: theirs.name().into(),
            },
            _ => crate::resolve::no_device(&snapshot, ip, scope),
        })
    }

    /// Whether packets can go from the one to the other.
    fn compare(&self, peer: &Terms) -> Result<()> {
        let ours = self.options.source();
        let our_type = ours.map(|row| row.gid_type());
        let (our_gid, their_gid) = (ours.map(|row| row.gid()), peer.endpoint.gid);
        let is_v4 = |gid: Option<Gid>| gid.is_some_and(|gid| gid.ipv4().is_some());
        let on_ethernet = our_type.is_some_and(GidType::is_roce);
        if our_type == peer.gid_type && (!on_ethernet || is_v4(our_gid) == is_v4(their_gid)) {
            return Ok(());
        }
        let lid = self.queue_pair().context().port(self.options.port())?.lid;
        Err(self.unlike(
            &name_of(our_type, our_gid, lid),
            &name_of(peer.gid_type, their_gid, peer.endpoint.lid),
        ))
    }

    fn unlike(&self, ours: &str, theirs: &str) -> Error {
        let problem = ExchangeProblem::Unlike { ours: ours.into(), theirs: theirs.into() };
        let (address, step) = (self.address, ExchangeStep::Path);
        Error::Exchange(Box::new(ExchangeFault { address, step, problem }))
    }

    /// The row where its address is now, if it moved since it was looked up. What is true is read after it
    /// is pinned, and then a wrong one is left again; but posted receives would be lost by that, and so
    /// with them there is a look before as well.
    fn follow_row(&mut self) -> Result<()> {
        let (Some(row), Some(queue_pair)) = (self.options.source(), &mut self.init) else {
            return Ok(());
        };
        if queue_pair.recv_queue().in_flight() == 0 {
            return Ok(());
        }
        match queue_pair.context().confirm_row(row) {
            Err(Error::GidMoved(moved)) => match moved.now {
                Some(now) => {
                    self.options = self.options.with_source(&now);
                    Ok(())
                }
                None => Err(Error::GidMoved(moved)),
            },
            other => other,
        }
    }
}

impl End for QueuePairEnd {
    fn offer(&mut self, local: SocketAddr, peer: Option<&Terms>) -> Result<Terms> {
        let context = self.queue_pair().context();
        let port = self.options.port();
        if self.options.source().is_none() && context.port(port)?.needs_gid() {
            let row = self.find_row(local, peer)?;
            self.options = self.options.with_source(&row);
        }
        if let Some(peer) = peer {
            self.compare(peer)?;
            self.options = self.options.answers_at_most(peer.reads);
        }
        let mut endpoint = self.queue_pair().endpoint(&self.options)?;
        let gid_type = self.options.source().map(|row| row.gid_type());
        if gid_type.is_some_and(GidType::is_roce) {
            endpoint.lid = Lid(0);
        }
        let (reads, timeout, [retry_count, rnr_retry], min_rnr_timer) = self.options.told();
        let private_data = self.offer.private_data;
        Ok(Terms {
            endpoint,
            gid_type,
            reads,
            timeout,
            retry_count,
            rnr_retry,
            min_rnr_timer,
            private_data,
        })
    }

    fn path(&mut self, peer: &Terms) -> Poll<Result<()>> {
        let resolution = match &mut self.resolution {
            Some(resolution) => resolution,
            None => {
                // Here, for a client: the first moment that both ends are known.
                if let Err(error) = self.compare(peer) {
                    return Poll::Ready(Err(error));
                }
                let from = self.options.source();
                let ends = from.and_then(|row| Some((row, row.ip()?))).zip(peer.endpoint.gid);
                let Some(((row, source), gid)) = ends else { return Poll::Ready(Ok(())) };
                let to = Destination::new(gid.ip()).source(source);
                let to = to.ifindex(row.ifindex().unwrap_or(0));
                self.resolution.insert(self.resolver.start(&to))
            }
        };
        let outcome = match resolution.advance() {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => return Poll::Pending,
        };
        self.resolution = None;
        Poll::Ready(match outcome {
            Ok(path) => {
                self.path = Some(path);
                Ok(())
            }
            // The device would find that out too, but takes a second for it.
            Err(error @ Error::Unreachable { .. }) => Err(error),
            // What a route is for the kernel's RDMA, it decides itself, at once.
            Err(_) => Ok(()),
        })
    }

    fn path_fd(&self) -> Option<BorrowedFd<'_>> {
        self.resolution.as_ref().map(AsFd::as_fd)
    }

    fn up(&mut self, mine: &mut Terms, peer: &Terms) -> Result<()> {
        self.options = self.options.answers_at_most(peer.reads);
        self.follow_row()?;
        let Some(queue_pair) = self.init.take() else { unreachable!("it comes up once") };
        let told = mine.endpoint.mtu;
        let options = told.map_or(self.options, |mtu| self.options.mtu(mtu));
        match queue_pair.connect(&peer.endpoint, &options) {
            Ok(queue_pair) => {
                let (mtu, source) = (queue_pair.mtu(), queue_pair.source());
                self.rts = Some(queue_pair);
                if let (Some(path), Some(row)) = (&mut self.path, source) {
                    if let Some(index) = row.gid_index() {
                        let device = path.gid.device.clone();
                        path.gid = Choice { device, port: row.port(), index, row };
                    }
                }
                mine.endpoint.mtu = mtu;
                // A port's MTU may have become smaller since it was told.
                match (mtu, peer.endpoint.mtu, told) {
                    (Some(now), Some(theirs), Some(told)) if now < theirs.min(told) => {
                        let ours = format!("a path MTU of {now}, which was {told} a moment ago,");
                        Err(self.unlike(&ours, &format!("{theirs}")))
                    }
                    _ => Ok(()),
                }
            }
            Err(failed) => {
                self.init = Some(failed.queue_pair);
                Err(failed.error)
            }
        }
    }
}

/// Rows that carry this address and can be sent from, on the interface of this number, 0 for any.
fn usable(
    snapshot: &DirectorySnapshot,
    ip: IpAddr,
    ifindex: u32,
) -> impl Iterator<Item = &DirectoryRow> {
    snapshot.by_ip(ip).filter(move |row| {
        let there = row.entry().ifindex();
        row.is_local()
            && row.entry().gid_index().is_some()
            && (ifindex == 0 || there.is_none_or(|there| there == ifindex))
    })
}

fn name_of(gid_type: Option<GidType>, gid: Option<Gid>, lid: Lid) -> String {
    match (gid_type, gid) {
        (Some(gid_type), Some(gid)) => format!("{gid_type} {gid}"),
        _ => format!("LID {lid}"),
    }
}
