//! Which rdma-core this process runs on.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::ops::Newer;

/// The release of the libibverbs in use, which is that of its rdma-core; from the name of its file. `None` where that
/// does not tell: there is no call for it.
pub(crate) fn rdma_core() -> Option<u32> {
    static VERSION: OnceLock<Option<u32>> = OnceLock::new();
    *VERSION.get_or_init(|| release("ibverbs", &file_of(Newer::find(c"ibv_open_device"))?))
}

/// The release that a provider's own file tells, as those do that are libraries for programs too (`libmlx5.so.1`).
pub(crate) fn provider_release(provider: &str, file: &Path) -> Option<u32> {
    release(provider, file)
}

/// The file that is mapped where this address is, whatever has its name by now. `None` when it was deleted, as by an
/// upgrade, and for what is of no file.
pub(super) fn file_of(address: *const c_void) -> Option<PathBuf> {
    mapped(&std::fs::read_to_string("/proc/self/maps").ok()?, address.addr())
}

/// The same in the text of `/proc/PID/maps`: `from-to rights offset device inode name`.
fn mapped(maps: &str, address: usize) -> Option<PathBuf> {
    let line = maps.lines().find(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let bounds = range
            .map(|(from, to)| (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)));
        matches!(bounds, Some((Ok(from), Ok(to))) if (from..to).contains(&address))
    })?;
    let name = line.get(line.find('/')?..)?;
    (!name.ends_with(" (deleted)")).then(|| name.into())
}

/// `libibverbs.so.1.14.44.0` is of rdma-core 44: the third number is the release. Larger ones than there will be for
/// long are no releases: vendors number otherwise.
fn release(library: &str, file: &Path) -> Option<u32> {
    let name = file.file_name()?.to_str()?.strip_prefix("lib")?.strip_prefix(library)?;
    let release = name.strip_prefix(".so.1.")?.split('.').nth(1)?.parse().ok()?;
    (release <= 100).then_some(release)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_in_the_name() {
        let of = |name: &str| release("ibverbs", Path::new(name));
        assert_eq!(of("/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0"), Some(44));
        assert_eq!(of("libibverbs.so.1.14.56.0"), Some(56));
        assert_eq!(of("libibverbs.so.1.5.22.4"), Some(22));
        for odd in [
            "libibverbs.so.1",
            "libibverbs.so.1.14",
            "libibverbs.so.1.14.mlnx47.0",
            "libibverbs.so.1.14.2307.0",
            "libibverbs-other.so.1.14.44.0",
            "libmlx5.so.1.24.44.0",
        ] {
            assert_eq!(of(odd), None, "{odd}");
        }
        assert_eq!(release("mlx5", Path::new("/usr/lib64/libmlx5.so.1.24.44.0")), Some(44));
        assert_eq!(release("rxe", Path::new("/usr/lib/libibverbs/librxe-rdmav34.so")), None);
    }

    #[test]
    fn a_map_tells_the_file() {
        let maps = "55d0-55e0 r--p 00000000 08:01 77   /usr/bin/a program\n\
                    7f00-7f10 r-xp 00000000 08:01 78   /usr/lib/libibverbs.so.1.14.44.0\n\
                    7f10-7f20 r-xp 00000000 08:01 79   /usr/lib/libibverbs.so.1.14.39.0 (deleted)\n\
                    7f20-7f30 rw-p 00000000 00:00 0 \n\
                    nonsense\n";
        let of = |address| mapped(maps, address);
        assert_eq!(of(0x55d5), Some("/usr/bin/a program".into()));
        assert_eq!(of(0x7f0f), Some("/usr/lib/libibverbs.so.1.14.44.0".into()));
        assert_eq!((of(0x7f10), of(0x7f25), of(0x9000)), (None, None, None));
    }

    /// On a machine with the distribution's own library.
    #[test]
    fn that_of_this_process_has_one() {
        let file = file_of(Newer::find(c"ibv_open_device")).expect("it is loaded");
        assert!(file.to_string_lossy().contains("libibverbs"), "{}", file.display());
        assert!(rdma_core().is_some_and(|version| version >= 17), "{:?}", rdma_core());
    }
}
