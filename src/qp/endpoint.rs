//! What the two ends of a connection tell each other, and how a queue pair is connected.

#![deny(unsafe_code)]

use std::time::Duration;

use crate::ah::AddressVector;
use crate::types::{Gid, GidEntry, Lid, Mtu, PortNum, Psn, Qpn, RemoteAccess};

/// A queue pair's address: what its peer needs to connect to it. Plain numbers, which travel over any
/// wire; never an index, which means something on one host only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Endpoint {
    /// The queue pair's number.
    pub qpn: Qpn,
    /// The number of the first packet that it sends.
    pub psn: Psn,
    /// The GID that it is reached by; `None` of an InfiniBand subnet where the LID does.
    pub gid: Option<Gid>,
    /// The port's LID; 0 on Ethernet.
    pub lid: Lid,
    /// The MTU of its port; `None` when it is not told.
    pub mtu: Option<Mtu>,
    /// How many reads and atomics it answers at a time; `None` when that is not told.
    pub reads: Option<u8>,
    /// What the queue pair lets its peer do; `None` when that is not told.
    pub access: Option<RemoteAccess>,
}

impl Endpoint {
    /// Of the least that must be told on RoCE.
    pub const fn new(qpn: Qpn, psn: Psn, gid: Gid) -> Endpoint {
        Endpoint { qpn, psn, gid: Some(gid), lid: Lid(0), mtu: None, reads: None, access: None }
    }
}

/// How a queue pair is to be connected: from which row of this side's GID table, and the settings of the
/// path and the transport. Times are rounded up to what a device can be told.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    pub(super) address: AddressVector,
    pub(super) mtu: Option<Mtu>,
    pub(super) timeout: Duration,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) min_rnr_timer: Duration,
    pub(super) reads: u8,
    pub(super) answers: u8,
}

impl ConnectOptions {
    /// From this row: what RoCE needs, and InfiniBand where the peer is reached by its GID.
    pub fn new(source: &GidEntry) -> ConnectOptions {
        ConnectOptions::of(AddressVector::new(source, Gid::from_bytes([0; 16])))
    }

    /// By the LID of an InfiniBand subnet, without a GID.
    pub fn by_lid(port: PortNum) -> ConnectOptions {
        ConnectOptions::of(AddressVector::by_lid(port, Lid(0)))
    }

    fn of(address: AddressVector) -> ConnectOptions {
        ConnectOptions {
            address,
            mtu: None,
            timeout: Duration::from_micros(67_109),
            retry_count: 6,
            rnr_retry: 7,
            min_rnr_timer: Duration::from_micros(640),
            reads: 1,
            answers: 1,
        }
    }

    /// Of this port, from a row that is found when it is connected by [`Connector`](crate::Connector) or
    /// [`Listener`](crate::Listener): on Ethernet that of the TCP connection's own address, on InfiniBand
    /// none.
    pub fn on_port(port: PortNum) -> ConnectOptions {
        ConnectOptions::by_lid(port)
    }

    /// From this row instead, on its port; all else as it is.
    pub fn with_source(mut self, source: &GidEntry) -> Self {
        self.address = self.address.with_source(source);
        self
    }

    /// The service level; see [`AddressVector::service_level`].
    pub fn service_level(mut self, service_level: u8) -> Self {
        self.address = self.address.service_level(service_level);
        self
    }

    /// The traffic class; see [`AddressVector::traffic_class`].
    pub fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.address = self.address.traffic_class(traffic_class);
        self
    }

    /// The same by DSCP, 0 to 63.
    pub fn dscp(mut self, dscp: u8) -> Self {
        self.address = self.address.dscp(dscp);
        self
    }

    /// The flow label; see [`AddressVector::flow_label`].
    pub fn flow_label(mut self, flow_label: u32) -> Self {
        self.address = self.address.flow_label(flow_label);
        self
    }

    /// The hop limit; 64 unless asked.
    pub fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.address = self.address.hop_limit(hop_limit);
        self
    }

    /// The most that the path MTU may be. It is the smaller of both ports' MTUs unless asked.
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// How long an answer is waited for before a packet is sent again (`timeout`): 8.2 µs to 2.4 hours;
    /// [`Duration::ZERO`] for ever; 67 ms unless asked.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How often a packet is sent again that nobody answers (`retry_cnt`): 0 to 7; 6 unless asked, since
    /// rxe takes 7 for without end.
    pub fn retry_count(mut self, count: u8) -> Self {
        self.retry_count = count;
        self
    }

    /// How often a message is sent again that finds no receive (`rnr_retry`): 0 to 6, and 7, which is
    /// without end, unless asked.
    pub fn rnr_retry(mut self, count: u8) -> Self {
        self.rnr_retry = count;
        self
    }

    /// How long the peer is to wait when its message finds no receive here (`min_rnr_timer`): 10 µs to
    /// 655 ms; 640 µs unless asked.
    pub fn min_rnr_timer(mut self, delay: Duration) -> Self {
        self.min_rnr_timer = delay;
        self
    }

    /// How many reads and atomics this side has under way at a time (`max_rd_atomic`): at most
    /// [`max_qp_init_rd_atom`](crate::DeviceLimits::max_qp_init_rd_atom), and what the peer answers
    /// where it tells; 1 unless asked.
    pub fn reads(mut self, reads: u8) -> Self {
        self.reads = reads;
        self
    }

    /// How many reads and atomics of the peer this side answers at a time (`max_dest_rd_atomic`): at most
    /// [`max_qp_rd_atom`](crate::DeviceLimits::max_qp_rd_atom); 1 unless asked.
    pub fn answers(mut self, answers: u8) -> Self {
        self.answers = answers;
        self
    }

    /// The row of this side's table; `None` of a connection by LID.
    pub fn source(&self) -> Option<&GidEntry> {
        self.address.source()
    }

    /// What is told of it to the peer: reads, timeout, retry counts and delay.
    pub(crate) fn told(&self) -> (u8, Duration, [u8; 2], Duration) {
        let counts = [self.retry_count, self.rnr_retry];
        (self.reads, self.timeout, counts, self.min_rnr_timer)
    }

    /// Answers no more reads than the peer has under way.
    pub(crate) fn answers_at_most(mut self, most: u8) -> Self {
        self.answers = self.answers.min(most);
        self
    }

    /// The port.
    pub fn port(&self) -> PortNum {
        self.address.port()
    }
}
