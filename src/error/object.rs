//! What an error is about.

use std::fmt;

use crate::types::PortNum;

/// The device, port and table row that an error is about, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Object {
    /// The RDMA device's name, `rxe0`, `mlx5_0`.
    pub device: Box<str>,
    /// The port, where the call named one.
    pub port: Option<PortNum>,
    /// The table index, where the call named one.
    pub index: Option<u32>,
}

impl Object {
    /// A whole device.
    pub(crate) fn device(name: &str) -> Object {
        Object { device: name.into(), ..Object::default() }
    }

    /// One port of a device.
    pub(crate) fn port(name: &str, port: PortNum) -> Object {
        Object { port: Some(port), ..Object::device(name) }
    }

    /// One row of a table of a port.
    pub(crate) fn row(name: &str, port: PortNum, index: u32) -> Object {
        Object { index: Some(index), ..Object::port(name, port) }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        if let Some(port) = self.port {
            write!(f, " port {port}")?;
        }
        if let Some(index) = self.index {
            write!(f, " index {index}")?;
        }
        Ok(())
    }
}
