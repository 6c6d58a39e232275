//! The rows as they are printed: a line of the table, an object of the JSON array.

use std::fmt::Write;

use rdma_verbs::{GidEntry, GidSnapshot, PortState};
use serde::Serialize;

/// One line of the table, one object of the JSON array.
#[derive(Serialize)]
pub(crate) struct Row {
    device: String,
    port: u8,
    index: u32,
    gid: String,
    ipv4: Option<String>,
    r#type: String,
    netdev: Option<String>,
    ifindex: Option<u32>,
    link: String,
    state: Option<String>,
}

impl Row {
    /// A row of a snapshot; the port's state where it is known.
    pub(crate) fn new(gids: &GidSnapshot, row: &GidEntry, state: Option<PortState>) -> Row {
        let link = gids.port(row.port()).map(|port| port.link_layer().to_string());
        Row {
            device: gids.device().into(),
            port: row.port().get(),
            index: row.index(),
            gid: row.gid().full().to_string(),
            ipv4: row.ipv4().map(|ip| ip.to_string()),
            r#type: row.gid_type().to_string(),
            netdev: row.netdev().map(str::to_owned),
            ifindex: row.ifindex(),
            link: link.unwrap_or_default(),
            state: state.map(|state| state.to_string()),
        }
    }
}

/// The rows as `show_gids` prints them, each column as wide as what is in it.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut lines = vec![
        ["DEV", "PORT", "INDEX", "GID", "IPv4", "TYPE", "NETDEV", "LINK", "STATE"]
            .map(str::to_owned),
    ];
    let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    lines.extend(rows.iter().map(|row| {
        [
            row.device.clone(),
            row.port.to_string(),
            row.index.to_string(),
            row.gid.clone(),
            dash(&row.ipv4),
            row.r#type.clone(),
            dash(&row.netdev),
            row.link.clone(),
            dash(&row.state),
        ]
    }));
    let mut widths = [0; 9];
    for line in &lines {
        for (width, field) in widths.iter_mut().zip(line) {
            *width = field.len().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let fields = line.iter().zip(widths).map(|(field, width)| format!("{field:width$}"));
        let line = fields.collect::<Vec<_>>().join("  ");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let _ = writeln!(text, "n_gids_found={}", rows.len());
    text
}
