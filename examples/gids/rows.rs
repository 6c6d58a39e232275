//! The rows as they are printed: a line of the table, an object of the JSON array.

use std::fmt::Write;

use rdma_verbs::{DirectoryRow, DirectorySnapshot, Explanation, Verdict};
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
    /// A row of the directory; the port's state where it is known.
    pub(crate) fn new(snapshot: &DirectorySnapshot, row: &DirectoryRow) -> Row {
        let device = snapshot.device_of(row);
        let entry = row.entry();
        let table = device.and_then(|device| device.gids().port(entry.port()));
        let port = device.and_then(|device| device.port(entry.port()));
        Row {
            device: device.map(|device| device.name().to_owned()).unwrap_or_default(),
            port: entry.port().get(),
            index: entry.index(),
            gid: entry.gid().full().to_string(),
            ipv4: entry.ipv4().map(|ip| ip.to_string()),
            r#type: entry.gid_type().to_string(),
            netdev: entry.netdev().map(str::to_owned),
            ifindex: entry.ifindex(),
            link: table.map(|table| table.link_layer().to_string()).unwrap_or_default(),
            state: port.map(|port| port.state.to_string()),
        }
    }
}

/// A row of an explanation, for `--json`.
#[derive(Serialize)]
struct ExplainedRow<'a> {
    device: &'a str,
    port: u8,
    index: u32,
    gid: String,
    r#type: String,
    netdev: Option<&'a str>,
    taken: bool,
    fits: bool,
    reason: String,
}

/// Every row with the reason it is taken or not.
pub(crate) fn explained_json(explanation: &Explanation) -> Result<String, String> {
    let rows = explanation.rows().iter().map(|row| ExplainedRow {
        device: &row.device,
        port: row.row.port().get(),
        index: row.row.index(),
        gid: row.row.gid().full().to_string(),
        r#type: row.row.gid_type().to_string(),
        netdev: row.row.netdev(),
        taken: row.verdict == Verdict::Best,
        fits: !matches!(row.verdict, Verdict::Rejected(_)),
        reason: row.verdict.to_string(),
    });
    let rows: Vec<_> = rows.collect();
    Ok(serde_json::to_string_pretty(&rows).map_err(|error| error.to_string())? + "\n")
}

/// The same as a table.
pub(crate) fn explained(explanation: &Explanation) -> String {
    let mut text = String::new();
    explanation.notes().for_each(|note| text += &format!("{note}\n"));
    let heading = ["DEV", "PORT", "INDEX", "GID", "TYPE", "NETDEV", "VERDICT"].map(str::to_owned);
    let lines = explanation.rows().iter().map(|row| {
        [
            row.device.to_string(),
            row.row.port().to_string(),
            row.row.index().to_string(),
            row.row.gid().to_string(),
            row.row.gid_type().to_string(),
            row.row.netdev().unwrap_or("-").to_owned(),
            row.verdict.to_string(),
        ]
    });
    text + &aligned(std::iter::once(heading).chain(lines).collect())
}

/// The rows as `show_gids` prints them.
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
    let count = rows.len();
    format!("{}n_gids_found={count}\n", aligned(lines))
}

/// Lines of fields, each column as wide as what is in it.
fn aligned<const N: usize>(lines: Vec<[String; N]>) -> String {
    let mut widths = [0; N];
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
    text
}
