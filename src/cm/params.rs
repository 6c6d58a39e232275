//! The settings of a connection.

#![deny(unsafe_code)]

use std::time::Duration;

use super::data;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::qp::Told;
use crate::sys::abi::rdma_conn_param;
use crate::types::Qpn;

/// The settings of a connection (`struct rdma_conn_param`, and what a queue pair needs besides), and the
/// private data that is sent along. Times are rounded up to what a device can be told.
#[derive(Clone, Debug)]
pub struct ConnectionParams {
    private_data: Box<[u8]>,
    reads: u8,
    answers: u8,
    flow_control: bool,
    retry_count: u8,
    rnr_retry: u8,
    min_rnr_timer: Duration,
    timeout: Option<Duration>,
}

impl Default for ConnectionParams {
    fn default() -> ConnectionParams {
        ConnectionParams::new()
    }
}

impl ConnectionParams {
    /// Without private data; one read at a time either way, 6 retries, retries without end when the
    /// peer has no receive, after 640 µs each.
    pub fn new() -> ConnectionParams {
        ConnectionParams {
            private_data: Box::default(),
            reads: 1,
            answers: 1,
            flow_control: true,
            retry_count: 6,
            rnr_retry: 7,
            min_rnr_timer: Duration::from_micros(640),
            timeout: None,
        }
    }

    /// What the peer is told besides: at most [`MAX_IN_REQUEST`](super::MAX_IN_REQUEST) bytes in a request,
    /// [`MAX_IN_REPLY`](super::MAX_IN_REPLY) where one is accepted. It sees them padded; see
    /// [`PrivateData`](super::PrivateData).
    pub fn private_data(mut self, bytes: &[u8]) -> Self {
        self.private_data = bytes.into();
        self
    }

    /// How many reads and atomics this side has under way at a time (`initiator_depth`): at most
    /// [`max_qp_init_rd_atom`](crate::DeviceLimits::max_qp_init_rd_atom), and what the peer answers; 1
    /// unless asked.
    pub fn reads(mut self, reads: u8) -> Self {
        self.reads = reads;
        self
    }

    /// How many reads and atomics of the peer this side answers at a time (`responder_resources`): at most
    /// [`max_qp_rd_atom`](crate::DeviceLimits::max_qp_rd_atom); 1 unless asked.
    pub fn answers(mut self, answers: u8) -> Self {
        self.answers = answers;
        self
    }

    /// Whether the hardware does flow control (`flow_control`); it does unless asked.
    pub fn flow_control(mut self, on: bool) -> Self {
        self.flow_control = on;
        self
    }

    /// How often a packet is sent again that nobody answers (`retry_count`): 0 to 7; 6 unless asked, since
    /// rxe takes 7 for without end. The one who connects says it for both ends.
    pub fn retry_count(mut self, count: u8) -> Self {
        self.retry_count = count;
        self
    }

    /// How often a message is sent again that finds no receive (`rnr_retry_count`): 0 to 6, and 7, which is
    /// without end, unless asked. What each end says, the other does.
    pub fn rnr_retry(mut self, count: u8) -> Self {
        self.rnr_retry = count;
        self
    }

    /// How long the peer is to wait when its message finds no receive here (`min_rnr_timer`): 10 µs to
    /// 655 ms; 640 µs unless asked. The connection manager itself would say 655 ms.
    pub fn min_rnr_timer(mut self, delay: Duration) -> Self {
        self.min_rnr_timer = delay;
        self
    }

    /// How long an answer is waited for before a packet is sent again (`timeout`): 8.2 µs to 2.4 hours;
    /// what the connection manager makes of the path unless asked.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.private_data
    }

    /// As C has it, but for the private data.
    pub(super) fn raw(&self, qpn: Qpn) -> rdma_conn_param {
        rdma_conn_param {
            private_data: std::ptr::null(),
            private_data_len: 0,
            responder_resources: self.answers,
            initiator_depth: self.reads,
            flow_control: self.flow_control.into(),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry,
            srq: 0,
            qp_num: qpn.get(),
        }
    }

    /// What the queue pair is to have besides what the connection manager says.
    pub(super) fn told(&self) -> Told {
        Told {
            reads: self.reads,
            answers: self.answers,
            min_rnr_timer: self.min_rnr_timer,
            timeout: self.timeout,
        }
    }

    /// Never more reads than the peer offers to answer.
    pub(super) fn offered(mut self, answered: u8) -> Self {
        self.reads = self.reads.min(answered);
        self
    }

    /// Refuses what the library would, with the limit.
    pub(super) fn check(&self, context: &Context, most: usize, what: &'static str) -> Result<()> {
        data::check(what, self.private_data.len(), most)?;
        let limits = context.limits();
        let of = |limit: u32| u64::from(limit.min(255));
        for (what, asked, most) in [
            ("initiator_depth, the reads at a time,", self.reads, of(limits.max_qp_init_rd_atom)),
            (
                "responder_resources, the answers at a time,",
                self.answers,
                of(limits.max_qp_rd_atom),
            ),
            ("retry_count", self.retry_count, 7),
            ("rnr_retry_count", self.rnr_retry, 7),
        ] {
            let asked = u64::from(asked);
            if asked > most {
                return Err(Error::OutOfRange { what, asked, least: 0, most });
            }
        }
        Ok(())
    }
}
