//! Values of options that several examples have.

use std::time::Duration;

use rdma_verbs::{Mtu, PortNum};

/// A port of a device.
pub(crate) fn parse_port(text: &str) -> Result<PortNum, String> {
    let number = text.parse().map_err(|_| "a port is a number from 1 to 255")?;
    PortNum::new(number).ok_or_else(|| "ports are counted from 1".into())
}

/// An MTU in bytes.
pub(crate) fn parse_mtu(text: &str) -> Result<Mtu, String> {
    match text {
        "256" => Ok(Mtu::B256),
        "512" => Ok(Mtu::B512),
        "1024" => Ok(Mtu::B1024),
        "2048" => Ok(Mtu::B2048),
        "4096" => Ok(Mtu::B4096),
        _ => Err("an MTU is 256, 512, 1024, 2048 or 4096".into()),
    }
}

/// Seconds. At most some years: a clock can tell no more.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=1e9).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "seconds, from 0.001 to 1000000000".into())
}
