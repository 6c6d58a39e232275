//! What is known of the providers of rdma-core: how each rings, and what can be chosen.
//!
//! From their sources (`providers/NAME` there). Where a provider has no variable, there is nothing to set.

use std::fmt;
use std::path::Path;

use super::DoorbellKind::{self, CombinedWrite, Mmio, SystemCall, Unknown};
use super::DoorbellSwitch;

/// When a provider reads an environment variable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ReadAt {
    /// When a device is opened (`ibv_open_device`).
    Open,
    /// When the process first lists the device (`ibv_get_device_list`).
    Listing,
}

impl fmt::Display for ReadAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReadAt::Open => "opened",
            ReadAt::Listing => "first listed",
        })
    }
}

#[derive(PartialEq, Eq, Debug)]
pub(super) struct SwitchFacts {
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
    pub(super) read_at: ReadAt,
}

type Settings = &'static [(&'static str, &'static str)];

/// A provider that is known.
#[derive(Debug)]
pub(super) struct Known {
    /// rdma-core's name of it; empty of the one that is not known.
    pub(super) provider: &'static str,
    /// The kernel's driver of RDMA devices.
    pub(super) driver: &'static str,
    /// The drivers of the hardware below it, as sysfs tells them.
    parents: &'static [&'static str],
    /// With the switches as they are.
    pub(super) kind: fn(&[DoorbellSwitch]) -> DoorbellKind,
    pub(super) how: &'static str,
    pub(super) switches: &'static [SwitchFacts],
    pub(super) settings: &'static [(DoorbellKind, Settings)],
}

impl PartialEq for Known {
    fn eq(&self, other: &Known) -> bool {
        self.provider == other.provider
    }
}

impl Eq for Known {}

impl Known {
    pub(super) fn of_provider(name: &str) -> &'static Known {
        PROVIDERS.iter().find(|known| known.provider == name).unwrap_or(&UNKNOWN)
    }

    /// By the driver of the hardware.
    pub(super) fn of_parent(driver: &str) -> &'static Known {
        PROVIDERS.iter().find(|known| known.parents.contains(&driver)).unwrap_or(&UNKNOWN)
    }
}

/// The provider that a library is: `libmlx5-rdmav34.so` and `libmlx5.so.1.24` are `mlx5`. `None` of a library or
/// program that is no provider.
pub(super) fn of_library(path: &Path) -> Option<Box<str>> {
    let file = path.file_name()?.to_str()?;
    let (stem, _) = file.strip_prefix("lib")?.split_once(".so")?;
    let name = match stem.rsplit_once("-rdmav") {
        Some((name, _)) => name,
        None => stem,
    };
    (!name.is_empty() && name != "ibverbs").then(|| name.into())
}

pub(super) static UNKNOWN: Known = Known {
    provider: "",
    driver: "",
    parents: &[],
    kind: |_| Unknown,
    how: "this provider is not known here",
    switches: &[],
    settings: &[],
};

/// Where there is nothing to choose.
const fn plain(
    provider: &'static str,
    driver: &'static str,
    parents: &'static [&'static str],
) -> Known {
    Known {
        provider,
        driver,
        parents,
        kind: |_| Mmio,
        how: "one write to a register for each post call",
        switches: &[],
        settings: &[(Mmio, &[])],
    }
}

/// Where the device or its driver decides, and does not tell.
const fn decided(
    provider: &'static str,
    driver: &'static str,
    parents: &'static [&'static str],
    how: &'static str,
) -> Known {
    Known { kind: |_| Unknown, how, settings: &[], ..plain(provider, driver, parents) }
}

const fn system_call(
    provider: &'static str,
    driver: &'static str,
    parents: &'static [&'static str],
    how: &'static str,
) -> Known {
    Known {
        kind: |_| SystemCall,
        how,
        settings: &[(SystemCall, &[])],
        ..plain(provider, driver, parents)
    }
}

const SENDS: &str =
    "one system call for each call that posts sends, however many; receives take none";
const EACH: &str = "one system call for each post call, which the kernel carries out";

static PROVIDERS: &[Known] = &[
    system_call("rxe", "rdma_rxe", &[], SENDS),
    system_call("siw", "siw", &[], SENDS),
    system_call("hfi1verbs", "hfi1", &["hfi1"], EACH),
    system_call("ipathverbs", "ib_qib", &["ib_qib"], EACH),
    MLX5,
    MLX4,
    CXGB4,
    Known {
        kind: |_| CombinedWrite,
        how: "every descriptor of a send is copied to the device's memory, then a register is written once for each \
              post call",
        settings: &[(CombinedWrite, &[])],
        ..plain("efa", "efa", &["efa"])
    },
    decided(
        "irdma",
        "irdma",
        &["ice", "i40e", "idpf"],
        "a write to a register, or the descriptor pushed, where the kernel grants the queue pair a push page",
    ),
    decided(
        "bnxt_re",
        "bnxt_re",
        &["bnxt_en"],
        "a write to a register, or an inline descriptor pushed, where the kernel grants push buffers",
    ),
    decided(
        "hns",
        "hns_roce_hw_v2",
        &["hns3"],
        "a write to a register; a post of one work request writes the descriptor itself, where the queue pair has \
         direct WQE",
    ),
    decided(
        "qedr",
        "qedr",
        &["qede", "qed"],
        "a write to a register, or a small descriptor pushed (DPM), where the kernel grants it",
    ),
    decided(
        "ionic",
        "ionic_rdma",
        &["ionic"],
        "a write to a register; descriptors are first copied to the device's memory, where the queue pair has some",
    ),
    plain("erdma", "erdma", &["erdma"]),
    plain("mana", "mana_ib", &["mana"]),
    plain("mthca", "ib_mthca", &["ib_mthca"]),
    plain("ocrdma", "ocrdma", &["be2net"]),
    plain("vmw_pvrdma", "vmw_pvrdma", &["vmw_pvrdma"]),
];

/// Whether a switch is set, and to anything but this text.
fn is_set_but(switches: &[DoorbellSwitch], name: &str, off: &str) -> bool {
    let found = switches.iter().find(|switch| switch.name() == name);
    found.and_then(DoorbellSwitch::value).is_some_and(|value| value != off)
}

const MLX5: Known = Known {
    provider: "mlx5",
    driver: "mlx5_ib",
    parents: &["mlx5_core", "mlx5_core.sf"],
    kind: |switches| {
        if is_set_but(switches, "MLX5_SHUT_UP_BF", "0") { Mmio } else { CombinedWrite }
    },
    how: "a post of one small send writes its descriptor with the doorbell (BlueFlame), where the device has that; a \
          chain, and what is larger than half a BlueFlame register, rings once and is fetched",
    switches: &[
        SwitchFacts {
            name: "MLX5_SHUT_UP_BF",
            meaning: "anything but 0: no BlueFlame, every post is a plain doorbell; not set: 0",
            read_at: ReadAt::Open,
        },
        SwitchFacts {
            name: "MLX5_POST_SEND_PREFER_BF",
            meaning: "0: BlueFlame for inline sends only; else for any single send that fits; not set: 1",
            read_at: ReadAt::Open,
        },
        SwitchFacts {
            name: "MLX5_TOTAL_UUARS",
            meaning: "how many doorbell registers the context has; queue pairs beyond share them; not set: 16",
            read_at: ReadAt::Open,
        },
        SwitchFacts {
            name: "MLX5_NUM_LOW_LAT_UUARS",
            meaning: "how many of them belong to one queue pair each, and take no lock; not set: 4",
            read_at: ReadAt::Open,
        },
        SwitchFacts {
            name: "MLX5_SINGLE_THREADED",
            meaning: "1: no locks on doorbells and queues, for a program that uses the device from one thread only; \
                      not set: 0",
            read_at: ReadAt::Open,
        },
    ],
    settings: &[
        (CombinedWrite, &[("MLX5_SHUT_UP_BF", "0"), ("MLX5_POST_SEND_PREFER_BF", "1")]),
        (Mmio, &[("MLX5_SHUT_UP_BF", "1")]),
    ],
};

const MLX4: Known = Known {
    provider: "mlx4",
    driver: "mlx4_ib",
    parents: &["mlx4_core"],
    kind: |_| CombinedWrite,
    how: "a post of one small inline send writes its descriptor with the doorbell (BlueFlame), where the device maps a \
          page for it; everything else rings once and is fetched",
    switches: &[SwitchFacts {
        name: "MLX4_POST_SEND_PREFER_BF",
        meaning: "read by the vendor's own libmlx4 only, rdma-core's has no variables; 0: BlueFlame for inline sends only",
        read_at: ReadAt::Open,
    }],
    settings: &[(CombinedWrite, &[])],
};

const CXGB4: Known = Known {
    provider: "cxgb4",
    driver: "iw_cxgb4",
    parents: &["cxgb4"],
    kind: |switches| {
        // As strtol reads it, of what people write.
        let value = |switch: &DoorbellSwitch| switch.value().map(|value| value == "1");
        if switches.iter().find_map(value).unwrap_or(true) { CombinedWrite } else { Mmio }
    },
    how: "from T5 on, a post of one descriptor of 64 bytes writes it with the doorbell; everything else, and every post \
          on T4, rings once and is fetched",
    switches: &[SwitchFacts {
        name: "T5_ENABLE_WC",
        meaning: "anything but 1: no descriptor with the doorbell; not set: 1",
        read_at: ReadAt::Listing,
    }],
    settings: &[(CombinedWrite, &[("T5_ENABLE_WC", "1")]), (Mmio, &[("T5_ENABLE_WC", "0")])],
};
