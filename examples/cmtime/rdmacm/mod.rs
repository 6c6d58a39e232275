//! Both ends by the RDMA connection manager.

pub(crate) mod client;
pub(crate) mod server;
