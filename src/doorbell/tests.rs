//! Each provider, and files of every kind.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;

use super::*;

/// A machine made by hand.
#[derive(Default)]
struct Made {
    files: HashMap<&'static str, String>,
    links: HashMap<&'static str, &'static str>,
    variables: HashMap<&'static str, &'static str>,
    folders: HashMap<&'static str, Vec<&'static str>>,
    arch: Option<&'static str>,
}

impl Source for Made {
    fn text(&self, path: &Path) -> Option<String> {
        self.files.get(path.to_str()?).cloned()
    }
    fn link(&self, path: &Path) -> Option<String> {
        self.links.get(path.to_str()?).map(|&name| name.to_owned())
    }
    fn variable(&self, name: &str) -> Option<OsString> {
        self.variables.get(name).map(OsString::from)
    }
    fn names(&self, path: &Path) -> Vec<String> {
        let names = path.to_str().and_then(|path| self.folders.get(path));
        names.into_iter().flatten().map(|&name| name.to_owned()).collect()
    }
    fn arch(&self) -> &str {
        self.arch.unwrap_or("x86_64")
    }
}

impl Made {
    fn with(variables: &[(&'static str, &'static str)]) -> Made {
        Made { variables: variables.iter().copied().collect(), ..Made::default() }
    }

    fn doorbell(&self, library: &str) -> Doorbell {
        Doorbell::read(Some(library.as_ref()), "/s".as_ref(), self)
    }

    fn combining(cpuinfo: &str) -> (Certainty, String) {
        let files = HashMap::from([("/proc/cpuinfo", cpuinfo.to_owned())]);
        let made = Made { files, ..Made::default() };
        let of = made.doorbell("librxe-rdmav34.so").write_combining;
        (of.offered(), of.reason().to_owned())
    }
}

use DoorbellKind::{CombinedWrite, Mmio, SystemCall, Unknown};

#[test]
fn each_provider_has_its_doorbell() {
    for (library, provider, driver, kind) in [
        ("/usr/lib/libibverbs/librxe-rdmav34.so", "rxe", "rdma_rxe", SystemCall),
        ("libsiw-rdmav34.so", "siw", "siw", SystemCall),
        ("libhfi1verbs-rdmav57.so", "hfi1verbs", "hfi1", SystemCall),
        ("libipathverbs-rdmav34.so", "ipathverbs", "ib_qib", SystemCall),
        ("/usr/lib/libmlx5.so.1.24.44.0", "mlx5", "mlx5_ib", CombinedWrite),
        ("libmlx5-rdmav34.so", "mlx5", "mlx5_ib", CombinedWrite),
        ("libmlx4.so.1", "mlx4", "mlx4_ib", CombinedWrite),
        ("libcxgb4-rdmav34.so", "cxgb4", "iw_cxgb4", CombinedWrite),
        ("libefa.so.1", "efa", "efa", CombinedWrite),
        ("libirdma-rdmav34.so", "irdma", "irdma", Unknown),
        ("libbnxt_re-rdmav34.so", "bnxt_re", "bnxt_re", Unknown),
        ("libhns.so.1", "hns", "hns_roce_hw_v2", Unknown),
        ("libqedr-rdmav34.so", "qedr", "qedr", Unknown),
        ("libionic-rdmav59.so", "ionic", "ionic_rdma", Unknown),
        ("liberdma-rdmav34.so", "erdma", "erdma", Mmio),
        ("libmana.so.1", "mana", "mana_ib", Mmio),
        ("libmthca-rdmav34.so", "mthca", "ib_mthca", Mmio),
        ("libocrdma-rdmav34.so", "ocrdma", "ocrdma", Mmio),
        ("libvmw_pvrdma-rdmav34.so", "vmw_pvrdma", "vmw_pvrdma", Mmio),
    ] {
        let doorbell = Made::default().doorbell(library);
        assert_eq!(doorbell.provider(), provider);
        assert_eq!(doorbell.driver(), Some(driver), "{provider}");
        assert_eq!(doorbell.kind(), kind, "{provider}");
        assert!(!doorbell.how().contains("not known"), "{provider}");
        // What needs no setting is so with none; what is set is among the switches.
        if kind != Unknown {
            assert!(doorbell.settings(kind).is_some(), "{provider}");
        }
        for kind in [SystemCall, Mmio, CombinedWrite] {
            let settings = doorbell.settings(kind).unwrap_or_default();
            let known = |name| doorbell.switches().iter().any(|switch| switch.name() == name);
            assert!(settings.iter().all(|(name, _)| known(*name)), "{provider}");
            // Setting them makes it so.
            if doorbell.settings(kind).is_some() {
                let set = Made::with(settings).doorbell(library);
                assert_eq!(set.kind(), kind, "{provider}");
            }
        }
        assert_eq!(doorbell.settings(Unknown), None, "{provider}");
    }
}

#[test]
fn the_switches_decide_as_the_provider_reads_them() {
    let kind = |library: &str, variables: &[(&'static str, &'static str)]| {
        Made::with(variables).doorbell(library).kind()
    };
    for (value, expected) in [("0", CombinedWrite), ("1", Mmio), ("", Mmio), ("00", Mmio)] {
        assert_eq!(kind("libmlx5.so.1", &[("MLX5_SHUT_UP_BF", value)]), expected, "{value:?}");
    }
    for (value, expected) in [("1", CombinedWrite), ("0", Mmio), ("", Mmio), ("2", Mmio)] {
        assert_eq!(kind("libcxgb4-rdmav34.so", &[("T5_ENABLE_WC", value)]), expected, "{value:?}");
    }
    let made = Made::with(&[("MLX5_SHUT_UP_BF", "1"), ("MLX4_POST_SEND_PREFER_BF", "0")]);
    let doorbell = made.doorbell("libmlx5.so.1");
    let told: Vec<_> = doorbell.switches().iter().map(|s| (s.name(), s.value())).collect();
    assert_eq!(told[0], ("MLX5_SHUT_UP_BF", Some("1".as_ref())));
    assert!(told[1..].iter().all(|(_, value)| value.is_none()), "{told:?}");
    assert_eq!(told.len(), 5, "its own, and no other provider's");
    let text = doorbell.to_string();
    assert!(text.starts_with("MMIO write (mlx5, kernel driver mlx5_ib): "), "{text}");
    assert!(text.contains("\nMLX5_SHUT_UP_BF=1: anything but 0"), "{text}");
    assert!(text.contains("MLX5_TOTAL_UUARS (not set): "), "{text}");
    assert!(text.contains("; read when the device is opened\n"), "{text}");
}

#[test]
fn one_that_is_not_known_is_told_by_name() {
    let doorbell = Made::default().doorbell("libnovel_dev-rdmav99.so");
    assert_eq!((doorbell.provider(), doorbell.kind()), ("novel_dev", Unknown));
    assert_eq!((doorbell.driver(), doorbell.switches()), (None, &[][..]));
    assert_eq!(doorbell.settings(Mmio), None);
    let made = Made { links: HashMap::from([("/s/device/driver", "novel")]), ..Made::default() };
    assert_eq!(made.doorbell("libnovel.so").driver(), Some("novel"));
    for library in ["libibverbs.so.1.14.44.0", "/home/program", "lib.so", "lib-rdmav34.so", "/"] {
        let doorbell = Made::default().doorbell(library);
        assert_eq!((doorbell.provider(), doorbell.driver()), ("unknown", None), "{library}");
    }
}

/// A provider linked into the program: sysfs tells.
#[test]
fn without_a_library_sysfs_tells() {
    let read = |made: &Made| {
        let doorbell = Doorbell::read(Some("/bin/program".as_ref()), "/s".as_ref(), made);
        (doorbell.provider().to_owned(), doorbell.kind())
    };
    for (driver, provider, kind) in [
        ("mlx5_core", "mlx5", CombinedWrite),
        ("mlx4_core", "mlx4", CombinedWrite),
        ("ice", "irdma", Unknown),
        ("be2net", "ocrdma", Mmio),
        ("novel", "novel", Unknown),
    ] {
        let mut made =
            Made { links: HashMap::from([("/s/device/driver", driver)]), ..Made::default() };
        assert_eq!(read(&made), (provider.to_owned(), kind));
        // A software device upon that hardware.
        made.files.insert("/s/parent", "eth0\n".into());
        assert_eq!(read(&made), ("rxe".to_owned(), SystemCall));
    }
    assert_eq!(read(&Made::default()), ("unknown".to_owned(), Unknown));
}

#[test]
fn write_combining_has_three_answers() {
    let flags = |flags: &str| Made::combining(&format!("processor\t: 0\nflags\t\t: {flags}\n"));
    assert_eq!(flags("fpu pat mtrr").0, Certainty::Yes);
    assert_eq!(flags("fpu pat hypervisor mtrr").0, Certainty::Unknown);
    assert!(flags("pat hypervisor").1.contains("hypervisor"));
    assert_eq!(flags("fpu mtrr spat pats").0, Certainty::Unknown, "whole words");
    assert_eq!(flags("fpu").0, Certainty::No);
    assert_eq!(flags("").0, Certainty::No);
    let reason = |offered: (Certainty, String)| {
        assert_eq!(offered.0, Certainty::Unknown);
        offered.1
    };
    assert_eq!(reason(Made::combining("")), "/proc/cpuinfo has no flags");
    assert_eq!(reason(Made::combining("flags")), "/proc/cpuinfo has no flags");
    assert_eq!(reason(Made::combining("\u{fffd}: \0\n:::\n")), "/proc/cpuinfo has no flags");
    let of = |made: &Made| made.doorbell("librxe-rdmav34.so").write_combining;
    assert_eq!(of(&Made::default()).to_string(), "unknown (/proc/cpuinfo cannot be read)");
    let cpuinfo = HashMap::from([("/proc/cpuinfo", "flags: pat\n".to_owned())]);
    let folders = HashMap::from([("/s/device", vec!["resource0", "resource0_wc"])]);
    let made = Made { files: cpuinfo, folders, ..Made::default() };
    assert!(of(&made).reason().contains("resource0_wc"), "{}", of(&made));
    let mut arm = Made { arch: Some("aarch64"), ..Made::default() };
    assert_eq!(of(&arm).offered(), Certainty::Yes);
    arm.files.insert("/sys/hypervisor/type", "xen\n".into());
    assert_eq!(of(&arm).offered(), Certainty::Unknown);
    let other = Made { arch: Some("riscv64"), ..Made::default() };
    assert_eq!(of(&other).to_string(), "unknown (nothing is known of riscv64)");
}

/// What the machine itself has, and has not.
#[test]
fn the_host_is_read_without_fear() {
    let root = std::env::temp_dir().join(format!("rdma-verbs-doorbell-{}", std::process::id()));
    std::fs::create_dir_all(&root).expect("the test's own folder");
    let file = root.join("file");
    std::fs::write(&file, b"flags\xff: pat\n").expect("the test's own file");
    assert_eq!(Host.text(&file).as_deref(), Some("flags\u{fffd}: pat\n"));
    std::fs::write(&file, vec![b'x'; 1 << 20]).expect("the test's own file");
    assert_eq!(Host.text(&file).map(|text| text.len()), Some(64 << 10), "of a huge one the front");
    assert_eq!(Host.text(&root), None, "a folder");
    assert_eq!(Host.text(&root.join("missing")), None);
    assert_eq!(Host.link(&file), None, "no link");
    assert_eq!(Host.names(&root), ["file"]);
    assert_eq!(Host.names(&file), [""; 0]);
    std::fs::remove_dir_all(&root).expect("the test's own folder goes");
    assert!(Host.text("/proc/cpuinfo".as_ref()).is_some_and(|text| !text.is_empty()));
}

#[test]
fn the_inline_limit_is_a_queue_pairs() {
    let doorbell = Made::default().doorbell("librxe-rdmav34.so");
    assert_eq!(doorbell.max_inline(), None);
    assert!(!doorbell.to_string().contains("inline:"));
    let doorbell = doorbell.with_max_inline(64);
    assert_eq!(doorbell.max_inline(), Some(64));
    assert!(doorbell.to_string().ends_with("\ninline: up to 64 bytes"));
}
