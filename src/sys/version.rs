//! Which rdma-core this process runs on.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::ops::Newer;

/// The major version of the libibverbs in use, which is that of its rdma-core, and of the providers that came with
/// it; from the name of its file. `None` where that does not tell: there is no call for it.
pub(crate) fn rdma_core() -> Option<u32> {
    static VERSION: OnceLock<Option<u32>> = OnceLock::new();
    *VERSION
        .get_or_init(|| of_file(&library_of(Newer::find(c"ibv_open_device"))?.canonicalize().ok()?))
}

/// The file that an address is of.
pub(super) fn library_of(address: *const std::ffi::c_void) -> Option<PathBuf> {
    // SAFETY: all zero is a value of this struct of pointers.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for, and the answer is written during the call only.
    let known = unsafe { libc::dladdr(address, &mut found) } != 0;
    if !known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a NUL-terminated name that stays while the library is loaded: those asked for are never unloaded,
    // or hold a context that is open.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(OsStr::from_bytes(name.to_bytes()).into())
}

/// `libibverbs.so.1.14.44.0` is of rdma-core 44: the third number is the release.
fn of_file(path: &Path) -> Option<u32> {
    let numbers = path.file_name()?.to_str()?.strip_prefix("libibverbs.so.1.")?;
    numbers.split('.').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_in_the_name() {
        let of = |name: &str| of_file(Path::new(name));
        assert_eq!(of("/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0"), Some(44));
        assert_eq!(of("libibverbs.so.1.14.56.0"), Some(56));
        assert_eq!(of("libibverbs.so.1.5.22.4"), Some(22));
        for odd in [
            "libibverbs.so.1",
            "libibverbs.so.1.14",
            "libibverbs.so.1.14.mlnx47.0",
            "libother.so.1.14.44.0",
        ] {
            assert_eq!(of(odd), None, "{odd}");
        }
    }

    /// On a machine with the distribution's own library.
    #[test]
    fn that_of_this_process_has_one() {
        let library = library_of(Newer::find(c"ibv_open_device")).expect("it is loaded");
        assert!(library.to_string_lossy().contains("libibverbs"), "{}", library.display());
        assert!(rdma_core().is_some_and(|version| version >= 17), "{:?}", rdma_core());
    }
}
