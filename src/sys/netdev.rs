//! Names and numbers of network interfaces, as this thread's network namespace has them.

use std::ffi::{CStr, CString, c_char};

use crate::types::IfName;

/// The name of interface number `ifindex` here; `None` when there is none.
#[doc(alias = "if_indextoname")]
pub(crate) fn name(ifindex: u32) -> Option<IfName> {
    let mut buffer: [c_char; libc::IF_NAMESIZE] = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the IF_NAMESIZE bytes the call may write.
    let found = unsafe { libc::if_indextoname(ifindex, buffer.as_mut_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: on success the buffer holds a NUL-terminated name.
    let name = unsafe { CStr::from_ptr(buffer.as_ptr()) };
    IfName::new(name.to_str().ok()?)
}

/// The number of the interface of this name here; `None` when there is none.
#[doc(alias = "if_nametoindex")]
pub(crate) fn index(name: &IfName) -> Option<u32> {
    let name = CString::new(name.as_str()).ok()?;
    // SAFETY: the name is NUL-terminated.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => None,
        ifindex => Some(ifindex),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_there_and_back() {
        let lo = IfName::new("lo").expect("a name");
        let ifindex = index(&lo).expect("every namespace has lo");
        assert_eq!(name(ifindex), Some(lo));
        assert_eq!(name(0), None);
        assert_eq!(index(&IfName::new("no-such-if0").expect("a name")), None);
    }
}
