//! The devices, and lists of them.

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use crate::abi::ibv_device;
use crate::given::{Given, misuse};
use crate::verbs::{self, Verb};
use crate::world::world;

/// Which device: its place in the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `loop0`.
    Loop,
    /// `empty0`.
    Empty,
}

const NAMES: [(Kind, &CStr); 2] = [(Kind::Loop, c"loop0"), (Kind::Empty, c"empty0")];

/// The devices as C sees them. There before the first list and after the last.
fn devices() -> &'static [Given<ibv_device>; 2] {
    static DEVICES: OnceLock<[Given<ibv_device>; 2]> = OnceLock::new();
    DEVICES.get_or_init(|| {
        NAMES.map(|(_, name)| {
            Given::lasting(ibv_device {
                _ops: [None; 2],
                node_type: 1,
                transport_type: 0,
                name: array(name),
                // An absolute path replaces the folder of the nodes that it is joined to, so that a
                // program finds something it can open.
                dev_name: array(c"/dev/null"),
                // A folder that is there and has none of the files looked for.
                dev_path: array(c"/proc"),
                ibdev_path: array(c"/proc"),
            })
        })
    })
}

/// A text in a field of C's.
pub(crate) fn array<const N: usize>(text: &CStr) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().zip(text.to_bytes()) {
        *to = *from as c_char;
    }
    array
}

impl Kind {
    /// The device at a C pointer.
    pub(crate) fn of(device: *const ibv_device) -> Kind {
        let named = devices().iter().zip(NAMES).find(|(there, _)| there.id() == device.addr());
        match named {
            Some((_, (kind, _))) => kind,
            None => misuse(&format!("a device is used that is not there: {device:p}")),
        }
    }

    /// The device of this name.
    pub(crate) fn named(name: &CStr) -> Option<Kind> {
        NAMES.iter().find(|(_, there)| *there == name).map(|(kind, _)| *kind)
    }

    /// In host order.
    pub(crate) fn guid(self) -> u64 {
        match self {
            Kind::Loop => 0x0200_0000_0000_0001,
            Kind::Empty => 0x0200_0000_0000_0002,
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_list(count: Option<&mut c_int>) -> *mut *mut ibv_device {
    let mut world = world();
    if let Err(errno) = world.call(Verb::GetDeviceList) {
        return verbs::pointer(Err(errno));
    }
    let array: Box<[*mut ibv_device]> =
        devices().iter().map(Given::as_ptr).chain([std::ptr::null_mut()]).collect();
    if let Some(count) = count {
        *count = devices().len() as c_int;
    }
    let array = Box::leak(array).as_mut_ptr();
    world.device_lists.insert(array.addr());
    array
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !world().device_lists.remove(&list.addr()) {
        misuse("a device list is freed that is not there");
    }
    let array = std::ptr::slice_from_raw_parts_mut(list, devices().len() + 1);
    // SAFETY: the set had this address, so ibv_get_device_list leaked this boxed slice, and it was
    // not freed since.
    drop(unsafe { Box::from_raw(array) });
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    Kind::of(device).guid().to_be()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    1 + Kind::of(device) as c_int
}
