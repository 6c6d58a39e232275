//! The C library's error numbers.

use std::fmt;

/// A C `errno` value, carried as the number it is.
///
/// Read only after a call has failed: `errno` means nothing after a success. Prints its name and
/// the system's text; a number this crate has no name for is printed as a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

/// Makes the constants and the name table from one list.
macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        #[allow(missing_docs)] // the names are the C library's own, errno(3)
        impl Errno { $(pub const $name: Errno = Errno(libc::$name);)* }

        impl Errno {
            /// The symbolic name, `EINVAL` and the like; `None` for a number without one here.
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $(libc::$name => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

errnos!(
    EPERM,
    ENOENT,
    EINTR,
    EIO,
    ENXIO,
    EBADF,
    EAGAIN,
    ENOMEM,
    EACCES,
    EFAULT,
    EBUSY,
    EEXIST,
    ENODEV,
    EINVAL,
    ENFILE,
    EMFILE,
    ENOTTY,
    EFBIG,
    ENOSPC,
    EROFS,
    ERANGE,
    EDOM,
    ENOSYS,
    ENODATA,
    EPROTO,
    EOVERFLOW,
    EOPNOTSUPP,
    EADDRINUSE,
    EADDRNOTAVAIL,
    ENETDOWN,
    ENETUNREACH,
    ECONNREFUSED,
    ECONNRESET,
    EHOSTUNREACH,
    ETIMEDOUT,
    EPROTONOSUPPORT,
    EAFNOSUPPORT,
    ENOPROTOOPT,
    EMSGSIZE,
    ENOBUFS,
    EISCONN,
    ENOTCONN,
    EINPROGRESS,
    EALREADY,
    ECANCELED,
    ESTALE,
);

impl Errno {
    /// The error of the last failed C call on this thread (`errno`). Only directly after a
    /// failure: a success leaves what was there.
    #[doc(alias = "errno")]
    pub fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// An errno from its number; any number is carried.
    pub const fn from_raw(raw: i32) -> Errno {
        Errno(raw)
    }

    /// The number, as C has it.
    pub const fn raw(self) -> i32 {
        self.0
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::io::Error::from_raw_os_error(self.0).to_string();
        let text = text.split(" (os error").next().unwrap_or("unknown error");
        match self.name() {
            Some(name) => write!(f, "{name} ({}): {text}", self.0),
            None => write!(f, "errno {}: {text}", self.0),
        }
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    /// The errno inside an I/O error; `EIO` for one that did not come from the system.
    fn from(error: std::io::Error) -> Errno {
        error.raw_os_error().map_or(Errno::EIO, Errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_names_itself_or_its_number() {
        assert_eq!(Errno::EINVAL.to_string(), "EINVAL (22): Invalid argument");
        assert_eq!(format!("{:?}", Errno::EOPNOTSUPP), "EOPNOTSUPP");
        assert_eq!(format!("{:?}", Errno::from_raw(4711)), "errno 4711");
        assert!(Errno::from_raw(4711).to_string().starts_with("errno 4711: "));
    }
}
