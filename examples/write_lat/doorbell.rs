//! How work requests reach the device: a provider reads its switches when the device is opened, from the
//! environment, and so each way but the provider's own is measured by a process of its own.

use std::path::Path;
use std::process::{Command, Stdio};

use rdma_verbs::{DeviceList, DoorbellKind};

use super::options::{Doorbell, Options};
use super::report::Row;
use super::{PROGRAM, common};

/// A provider's switches for one way.
type Switches = &'static [(&'static str, &'static str)];

/// The switches of a device's provider; `None` when it has none for that.
fn switches(device: &str, way: Doorbell) -> Option<Switches> {
    let kind = match way {
        Doorbell::Default => return Some(&[]),
        Doorbell::Blueflame => DoorbellKind::CombinedWrite,
        Doorbell::Plain => DoorbellKind::Mmio,
    };
    let context = DeviceList::new().ok()?.find(device).ok()?.open().ok()?;
    context.doorbell().settings(kind)
}

/// The same as this process was asked for, for one way: a child that tells it as JSON.
pub(crate) fn child(program: &Path, options: &Options, way: Doorbell, set: Switches) -> Command {
    let mut command = Command::new(program);
    command.args(options.for_child(way)).envs(set.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Measures in a child.
pub(crate) fn measure(
    program: &Path,
    options: &Options,
    device: &str,
    way: Doorbell,
) -> Result<Vec<Row>, String> {
    let set = switches(device, way).unwrap_or_else(|| {
        let name = way.name();
        let line = format!("{device}: its provider has no switch for --doorbell {name}");
        common::note(PROGRAM, line);
        &[]
    });
    let failed = |error: &dyn std::fmt::Display| format!("--doorbell {}: {error}", way.name());
    let output = child(program, options, way, set).output();
    let output = output.map_err(|error| failed(&format!("{}: {error}", program.display())))?;
    let told = String::from_utf8_lossy(&output.stderr);
    let mut lines: Vec<&str> = told.lines().collect();
    let error = if output.status.success() { None } else { lines.pop() };
    for line in lines {
        common::note(PROGRAM, without_name(line));
    }
    match (output.status.success(), error) {
        (true, _) => serde_json::from_slice(&output.stdout).map_err(|error| failed(&error)),
        (false, Some(error)) => Err(failed(&without_name(error))),
        (false, None) => Err(failed(&format!("its process ended with {}", output.status))),
    }
}

/// A line of a child, which has its name before it.
fn without_name(line: &str) -> &str {
    line.split_once(": ").filter(|(name, _)| *name == PROGRAM).map_or(line, |(_, line)| line)
}
