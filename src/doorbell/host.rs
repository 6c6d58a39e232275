//! What the machine's files and this process's environment tell of doorbells.

use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::Path;

/// Where it is read from; a test has its own.
pub(super) trait Source {
    /// The front of a file, whatever is in it; `None` when it cannot be read.
    fn text(&self, path: &Path) -> Option<String>;
    /// The last name of what a link points to.
    fn link(&self, path: &Path) -> Option<String>;
    /// A variable of this process's environment.
    fn variable(&self, name: &str) -> Option<OsString>;
    /// The names in a folder.
    fn names(&self, path: &Path) -> Vec<String>;
    /// The processor, as Rust names it.
    fn arch(&self) -> &str {
        std::env::consts::ARCH
    }
}

/// This machine.
pub(super) struct Host;

/// The first processor is described within this.
const MOST: u64 = 64 << 10;

impl Source for Host {
    fn text(&self, path: &Path) -> Option<String> {
        let mut bytes = Vec::new();
        std::fs::File::open(path).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn link(&self, path: &Path) -> Option<String> {
        let target = std::fs::read_link(path).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    fn names(&self, path: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

/// The driver of the hardware below an RDMA device.
pub(super) fn parent_driver(device: &Path, source: &impl Source) -> Option<Box<str>> {
    let name = source.link(&device.join("device/driver"))?;
    (!name.is_empty()).then(|| name.into())
}

/// Whether something is so, as far as it can be known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Certainty {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// That cannot be known from here.
    Unknown,
}

impl fmt::Display for Certainty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Certainty::Yes => "yes",
            Certainty::No => "no",
            Certainty::Unknown => "unknown",
        })
    }
}

/// Whether processor and kernel combine writes to a device's memory to one transfer, and why that is thought.
///
/// Without it a [combined write](super::DoorbellKind::CombinedWrite) is a transfer for every 8 bytes, and beyond some
/// 32 bytes slower than a plain doorbell. The kernel's own list of memory types
/// (`/sys/kernel/debug/x86/pat_memtype_list`) is for root only, and not read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteCombining {
    offered: Certainty,
    reason: Box<str>,
}

impl WriteCombining {
    /// Whether it is offered.
    pub fn offered(&self) -> Certainty {
        self.offered
    }

    /// What that is known from, in a line.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    pub(super) fn read(device: &Path, source: &impl Source) -> WriteCombining {
        let (offered, reason) = judge(device, source);
        WriteCombining { offered, reason: reason.into() }
    }
}

impl fmt::Display for WriteCombining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.offered, self.reason)
    }
}

fn judge(device: &Path, source: &impl Source) -> (Certainty, String) {
    use Certainty::{No, Unknown, Yes};
    match source.arch() {
        "x86_64" => {}
        "aarch64" => {
            let hypervisor = source.text("/sys/hypervisor/type".as_ref());
            return match hypervisor {
                Some(kind) => {
                    (Unknown, format!("under the hypervisor {}, which may decide", kind.trim()))
                }
                None => (Yes, "aarch64 has it".into()),
            };
        }
        other => return (Unknown, format!("nothing is known of {other}")),
    }
    let Some(text) = source.text("/proc/cpuinfo".as_ref()) else {
        return (Unknown, "/proc/cpuinfo cannot be read".into());
    };
    let flags = text.lines().find_map(|line| {
        let (key, flags) = line.split_once(':')?;
        (key.trim() == "flags").then_some(flags)
    });
    let Some(flags) = flags else { return (Unknown, "/proc/cpuinfo has no flags".into()) };
    let has = |flag: &str| flags.split_ascii_whitespace().any(|one| one == flag);
    match (has("pat"), has("hypervisor"), has("mtrr")) {
        (true, true, _) => (
            Unknown,
            "the processor has PAT; under a hypervisor, which decides for the device's memory"
                .into(),
        ),
        (true, false, _) => {
            // The kernel makes these for memory that may be mapped so.
            let mapped = source.names(&device.join("device"));
            let mapped = mapped.iter().find(|n| n.starts_with("resource") && n.ends_with("_wc"));
            match mapped {
                Some(name) => (Yes, format!("the processor has PAT, and the kernel offers {name}")),
                None => (Yes, "the processor has PAT".into()),
            }
        }
        (false, _, true) => {
            (Unknown, "no PAT; MTRRs, which a kernel driver may have set for the device".into())
        }
        (false, _, false) => {
            (No, "the processor, or this kernel, has neither PAT nor MTRRs".into())
        }
    }
}
