//! The four ways a verb tells of failure. Each call names the one that its man page gives; errno
//! is read only where the convention says so, and only after the failure.

use std::ffi::c_int;
use std::ptr::NonNull;

use crate::error::Errno;

/// A pointer, or NULL and errno: `ibv_open_device`, `ibv_create_qp` …
pub(crate) fn pointer<T>(returned: *mut T) -> Result<NonNull<T>, Errno> {
    NonNull::new(returned).ok_or_else(Errno::last)
}

/// For calls that can fail without setting errno: what is read then is `EIO`, and not what some call
/// before has left.
pub(crate) fn preset_errno() {
    // SAFETY: __errno_location gives this thread's own errno, valid while the thread lives.
    unsafe { *libc::__errno_location() = libc::EIO }
}

/// 0, or -1 and errno: `ibv_query_gid`, `ibv_close_device` …
pub(crate) fn zero_or_minus_one(returned: c_int) -> Result<(), Errno> {
    if returned == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// 0, or the errno itself as a positive number: `ibv_query_port`, `ibv_modify_qp` …
///
/// Some providers return -1 and set errno where the man page has a positive number, and some
/// return the number negated; both are understood.
#[inline]
pub(crate) fn zero_or_errno(returned: c_int) -> Result<(), Errno> {
    match returned {
        0 => Ok(()),
        -1 => Err(Errno::last()),
        errno => Err(Errno::from_raw(errno.saturating_abs())),
    }
}

/// A count, or the errno negated: `_ibv_query_gid_table`.
pub(crate) fn count_or_negative_errno(returned: isize) -> Result<usize, Errno> {
    usize::try_from(returned).map_err(|_| {
        Errno::from_raw(i32::try_from(returned.unsigned_abs()).unwrap_or(libc::EOVERFLOW))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets errno as a failing C call does.
    fn set_errno(errno: Errno) {
        // SAFETY: __errno_location gives this thread's own errno, valid while the thread lives.
        unsafe { *libc::__errno_location() = errno.raw() }
    }

    #[test]
    fn errno_is_read_only_where_the_convention_says_so() {
        set_errno(Errno::EACCES);
        assert_eq!(pointer(std::ptr::null_mut::<u8>()), Err(Errno::EACCES));
        assert!(pointer(NonNull::<u8>::dangling().as_ptr()).is_ok());
        assert_eq!(zero_or_minus_one(-1), Err(Errno::EACCES));
        assert_eq!(zero_or_minus_one(0), Ok(()));
        assert_eq!(zero_or_errno(0), Ok(()));
        assert_eq!(zero_or_errno(22), Err(Errno::EINVAL));
        assert_eq!(count_or_negative_errno(0), Ok(0));
        assert_eq!(count_or_negative_errno(250), Ok(250));
        assert_eq!(count_or_negative_errno(-22), Err(Errno::EINVAL));
    }

    #[test]
    fn odd_returns_of_providers_are_understood() {
        set_errno(Errno::ENOMEM);
        assert_eq!(zero_or_errno(-1), Err(Errno::ENOMEM));
        assert_eq!(zero_or_errno(-22), Err(Errno::EINVAL));
        assert_eq!(zero_or_errno(c_int::MIN).map_err(Errno::raw), Err(c_int::MAX));
        assert_eq!(count_or_negative_errno(isize::MIN), Err(Errno::EOVERFLOW));
    }
}
