//! How work requests reach the device: its doorbell, and what governs it.
//!
//! * this file: [`Doorbell`], what a program asks for and prints.
//! * `provider`: what is known of each provider, from rdma-core's sources.
//! * `host`: what this machine's files and environment tell.

mod host;
mod provider;

use std::ffi::OsStr;
use std::fmt;

use crate::context::Context;
use host::{Host, Source};
use provider::{Known, SwitchFacts};

pub use host::{Certainty, WriteCombining};
pub use provider::ReadAt;

/// How a provider tells the device of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DoorbellKind {
    /// A system call, after which the kernel's driver takes the descriptor from memory.
    SystemCall,
    /// A write to a register of the device, which then fetches the descriptor from memory.
    Mmio,
    /// The descriptor itself is written to the device, with the doorbell or just before it, so that the device
    /// need not fetch it (BlueFlame of mlx5 and mlx4). Short where the processor combines these writes to one
    /// transfer, see [`write_combining`](Doorbell::write_combining).
    CombinedWrite,
    /// Not known: of a provider that this crate does not know, or decided by the device for each queue pair.
    Unknown,
}

impl fmt::Display for DoorbellKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DoorbellKind::SystemCall => "system call",
            DoorbellKind::Mmio => "MMIO write",
            DoorbellKind::CombinedWrite => "combined write of the descriptor",
            DoorbellKind::Unknown => "unknown",
        })
    }
}

/// An environment variable that a provider's doorbell depends on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DoorbellSwitch {
    facts: &'static SwitchFacts,
    value: Option<Box<OsStr>>,
}

impl DoorbellSwitch {
    /// The variable's name.
    pub fn name(&self) -> &'static str {
        self.facts.name
    }

    /// Its value in the environment of this process when the report was made; `None` when it is not set. A
    /// device that was opened before may have seen another.
    pub fn value(&self) -> Option<&OsStr> {
        self.value.as_deref()
    }

    /// What it does, in a line.
    pub fn meaning(&self) -> &'static str {
        self.facts.meaning
    }

    /// When the provider reads it.
    pub fn read_at(&self) -> ReadAt {
        self.facts.read_at
    }
}

impl fmt::Display for DoorbellSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value() {
            Some(value) => write!(f, "{}={}", self.name(), value.to_string_lossy())?,
            None => write!(f, "{} (not set)", self.name())?,
        }
        write!(f, ": {}", self.meaning())
    }
}

/// How work requests reach a device, and what governs that. Made by [`Context::doorbell`], with the inline limit by
/// [`QueuePair::doorbell`](crate::QueuePair::doorbell).
///
/// The switches are environment variables of the providers, which read them when the device is opened (or even
/// first listed, see [`DoorbellSwitch::read_at`]), and never again: they are for a tool to set for a child process, by
/// [`settings`](Doorbell::settings). This crate sets none.
///
/// What cannot be found out is told as unknown, and is no error.
///
/// ```no_run
/// use rdma_verbs::{DeviceList, DoorbellKind};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let doorbell = DeviceList::new()?.find("mlx5_0")?.open()?.doorbell();
/// println!("{doorbell}");
/// // The same program with each of the two.
/// for kind in [DoorbellKind::CombinedWrite, DoorbellKind::Mmio] {
///     let Some(settings) = doorbell.settings(kind) else { continue };
///     std::process::Command::new("a-benchmark").envs(settings.iter().copied()).status()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doorbell {
    provider: Box<str>,
    driver: Option<Box<str>>,
    known: &'static Known,
    kind: DoorbellKind,
    switches: Vec<DoorbellSwitch>,
    write_combining: WriteCombining,
    max_inline: Option<u32>,
}

impl Context {
    /// How work requests reach the device, as far as it can be known now: from the provider that libibverbs
    /// uses for it, the environment, `/proc` and `/sys`. For reports: it reads files and allocates.
    pub fn doorbell(&self) -> Doorbell {
        let library = self.handle().provider_library();
        Doorbell::read(library.as_deref(), &self.device().sysfs_path(), &Host)
    }
}

/// rdma-core's name of the provider that libibverbs uses for this device, if it has one.
pub(crate) fn provider_of(context: &Context) -> Option<Box<str>> {
    provider::of_library(&context.handle().provider_library()?)
}

impl Doorbell {
    fn read(
        library: Option<&std::path::Path>,
        device: &std::path::Path,
        source: &impl Source,
    ) -> Doorbell {
        let parent = host::parent_driver(device, source);
        let by_library = library.and_then(provider::of_library);
        let known = match (&by_library, &parent) {
            (Some(name), _) => Known::of_provider(name),
            (None, _) if source.text(&device.join("parent")).is_some() => {
                // Only rxe has this file, whatever stands below it.
                Known::of_provider("rxe")
            }
            (None, Some(driver)) => Known::of_parent(driver),
            (None, None) => &provider::UNKNOWN,
        };
        let named = |name: &str| (!name.is_empty()).then(|| Box::from(name));
        let provider = by_library.or_else(|| named(known.provider)).or_else(|| parent.clone());
        let facts = known.switches.iter();
        let switches: Vec<_> = facts
            .map(|facts| DoorbellSwitch {
                facts,
                value: source.variable(facts.name).map(|value| value.into_boxed_os_str()),
            })
            .collect();
        Doorbell {
            provider: provider.unwrap_or_else(|| "unknown".into()),
            driver: named(known.driver).or(parent),
            kind: (known.kind)(&switches),
            known,
            switches,
            write_combining: WriteCombining::read(device, source),
            max_inline: None,
        }
    }

    /// With what a queue pair was granted.
    pub(crate) fn with_max_inline(self, bytes: u32) -> Doorbell {
        Doorbell { max_inline: Some(bytes), ..self }
    }

    /// The provider, as rdma-core names it (`rxe`, `siw`, `mlx5`, `irdma` ...): the library that libibverbs calls for
    /// this device. One that this crate knows nothing of is told by its name; `unknown` when it has none.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// The kernel's driver of the device (`rdma_rxe`, `siw`, `mlx5_ib` ...); of a provider that this crate does not
    /// know, that of the hardware below it, from sysfs. `None` when neither is known.
    pub fn driver(&self) -> Option<&str> {
        self.driver.as_deref()
    }

    /// What the doorbell of a post is, with the switches as they are now. What each post does, [`how`](Doorbell::how)
    /// tells.
    pub fn kind(&self) -> DoorbellKind {
        self.kind
    }

    /// When and how it is rung, in a line.
    pub fn how(&self) -> &'static str {
        self.known.how
    }

    /// The environment variables that govern it, with their present values; empty when there are none.
    pub fn switches(&self) -> &[DoorbellSwitch] {
        &self.switches
    }

    /// What to set, by name and value, in the environment of a process so that its doorbell is of this kind:
    /// empty when nothing needs to be, `None` when no setting makes it so, or none is known.
    pub fn settings(&self, kind: DoorbellKind) -> Option<&'static [(&'static str, &'static str)]> {
        self.known.settings.iter().find(|(of, _)| *of == kind).map(|(_, settings)| *settings)
    }

    /// Whether writes to the device's memory are combined by this processor and kernel.
    pub fn write_combining(&self) -> &WriteCombining {
        &self.write_combining
    }

    /// How many bytes may be sent inline, which is granted to each queue pair: known of
    /// [`QueuePair::doorbell`](crate::QueuePair::doorbell), which has it from
    /// [`granted`](crate::QueuePair::granted)`().max_inline`, and `None` of [`Context::doorbell`].
    pub fn max_inline(&self) -> Option<u32> {
        self.max_inline
    }
}

impl fmt::Display for Doorbell {
    /// In lines: what it is, its switches, write combining, the inline limit. No line break at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = self.driver().unwrap_or("unknown");
        write!(f, "{} ({}, kernel driver {driver}): {}", self.kind, self.provider, self.how())?;
        for switch in &self.switches {
            write!(f, "\n{switch}; read when the device is {}", switch.read_at())?;
        }
        if self.switches.is_empty() {
            write!(f, "\nno switches")?;
        }
        write!(f, "\nwrite combining: {}", self.write_combining)?;
        match self.max_inline {
            Some(bytes) => write!(f, "\ninline: up to {bytes} bytes"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
