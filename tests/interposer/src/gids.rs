//! The GID tables.

use std::ffi::c_int;

use crate::abi::{ibv_context, ibv_gid, ibv_gid_entry};
use crate::device::Kind;
use crate::event::Element;
use crate::numbers::{event, limit};
use crate::verbs::{self, Verb};
use crate::world::{World, there, world};

type Table = [Option<[u8; 16]>; limit::GIDS];

/// Each device's rows: RoCE v2, of interface number 1.
pub(crate) struct Gids {
    of_loop: Table,
    of_empty: Table,
}

const fn v4(last: u8) -> Option<[u8; 16]> {
    Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last])
}

const fn v6(first: [u8; 4], last: u8) -> Option<[u8; 16]> {
    let [a, b, c, d] = first;
    Some([a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
}

impl Gids {
    pub(crate) const fn new() -> Gids {
        let mut of_loop = [None; limit::GIDS];
        of_loop[0] = v6([0xfe, 0x80, 0, 0], 0x10);
        of_loop[1] = v4(10);
        of_loop[2] = v6([0x20, 0x01, 0x0d, 0xb8], 0x10);
        let mut of_empty = [None; limit::GIDS];
        of_empty[0] = v6([0xfe, 0x80, 0, 0], 0x20);
        of_empty[1] = v4(20);
        Gids { of_loop, of_empty }
    }

    fn table(&self, kind: Kind) -> &Table {
        match kind {
            Kind::Loop => &self.of_loop,
            Kind::Empty => &self.of_empty,
        }
    }

    /// The GID of a row, if it has one.
    pub(crate) fn row(&self, kind: Kind, index: usize) -> Option<[u8; 16]> {
        self.table(kind).get(index).copied().flatten()
    }

    /// Whether a device here has this address.
    pub(crate) fn is_here(&self, gid: [u8; 16]) -> bool {
        self.of_loop.iter().chain(&self.of_empty).any(|row| *row == Some(gid))
    }
}

impl World {
    /// Moves a row of `loop0` to another place: two rows changed, two events.
    pub(crate) fn move_gid(&mut self, from: usize, to: usize) -> Result<(), c_int> {
        let table = &mut self.gids.of_loop;
        let gid = table.get_mut(from).ok_or(libc::EINVAL)?.take().ok_or(libc::ENODATA)?;
        // Beyond the table it is gone.
        if let Some(place) = table.get_mut(to) {
            *place = Some(gid);
        }
        let contexts = self.contexts.iter().filter(|(_, context)| context.kind == Kind::Loop);
        let contexts: Vec<usize> = contexts.map(|(id, _)| *id).collect();
        for context in contexts {
            self.raise(context, event::GID_CHANGE, Element::Port(1));
            self.raise(context, event::GID_CHANGE, Element::Port(1));
        }
        Ok(())
    }
}

fn entry(index: usize, gid: [u8; 16]) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: gid },
        gid_index: index as u32,
        port_num: 1,
        gid_type: 2,
        ndev_ifindex: 1,
    }
}

/// # Safety
///
/// As C's: `gid` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let mut world = world();
    let called = world.call(Verb::QueryGid);
    let kind = there(&mut world.contexts, context, "context").kind;
    let found = called.and_then(|()| {
        let index = usize::try_from(index).ok().filter(|index| *index < limit::GIDS && port == 1);
        let index = index.ok_or(libc::EINVAL)?;
        // An empty row is no failure here.
        Ok(world.gids.row(kind, index).unwrap_or_default())
    });
    verbs::minus_one(found.map(|raw| {
        // SAFETY: the caller has room for one.
        unsafe { gid.write(ibv_gid { raw }) }
    }))
}

/// # Safety
///
/// As C's: `size` bytes at `row` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    row: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    let mut world = world();
    if let Err(errno) = world.call(Verb::QueryGidEx) {
        return errno;
    }
    let kind = there(&mut world.contexts, context, "context").kind;
    let index = index as usize;
    if port != 1 || flags != 0 || index >= limit::GIDS || size < size_of::<ibv_gid_entry>() {
        return libc::EINVAL;
    }
    let Some(gid) = world.gids.row(kind, index) else { return libc::ENODATA };
    // SAFETY: the caller has room for one.
    unsafe { row.write(entry(index, gid)) };
    0
}

/// # Safety
///
/// As C's: `room` rows of `size` bytes at `rows` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    rows: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut world = world();
    if let Err(errno) = world.call(Verb::QueryGidTable) {
        return -(errno as isize);
    }
    let kind = there(&mut world.contexts, context, "context").kind;
    let table = world.gids.table(kind).iter().enumerate();
    let live: Vec<ibv_gid_entry> =
        table.filter_map(|(index, gid)| gid.map(|gid| entry(index, gid))).collect();
    if room == 0 || live.len() > room || flags != 0 || size != size_of::<ibv_gid_entry>() {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: there is room for `room` rows, and these are no more.
    unsafe { rows.copy_from_nonoverlapping(live.as_ptr(), live.len()) };
    live.len() as isize
}
