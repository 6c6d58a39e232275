//! The table read from a device made by hand: what rxe cannot show (a library without the call,
//! tables beyond the call's limit, tables that grow, failures). That a real device's table is
//! read right is seen in `tests/rxe`.

use std::sync::Mutex;

use super::*;
use crate::sys::abi::ibv_gid;

/// A device whose answers a test decides, and that notes the room of each table call.
#[derive(Default)]
struct Fake {
    rows: Mutex<Vec<ibv_gid_entry>>,
    rooms: Mutex<Vec<usize>>,
    single: Mutex<usize>,
    table_fails: Option<Errno>,
    single_fails: Option<Errno>,
    /// Rows that appear when the table is asked for.
    grows: usize,
}

fn row(index: u32) -> ibv_gid_entry {
    let mut raw = [0xfd; 16];
    raw[12..].copy_from_slice(&index.to_be_bytes());
    ibv_gid_entry {
        gid: ibv_gid { raw },
        gid_index: index,
        port_num: 1,
        gid_type: 2,
        ndev_ifindex: 0,
    }
}

impl TableCalls for Fake {
    fn query_gid_table(&self, rows: &mut [ibv_gid_entry]) -> Result<usize, Errno> {
        self.rooms.lock().expect("one test").push(rows.len());
        if let Some(errno) = self.table_fails {
            return Err(errno);
        }
        let mut live = self.rows.lock().expect("one test");
        let next = live.len() as u32;
        live.extend((next..next + self.grows as u32).map(row));
        let room = rows.get_mut(..live.len()).ok_or(Errno::EINVAL)?;
        room.copy_from_slice(&live);
        Ok(live.len())
    }

    fn query_gid_entry(&self, _: PortNum, index: u32) -> Result<ibv_gid_entry, Errno> {
        *self.single.lock().expect("one test") += 1;
        if let Some(errno) = self.single_fails {
            return Err(errno);
        }
        let rows = self.rows.lock().expect("one test");
        rows.iter().find(|row| row.gid_index == index).copied().ok_or(Errno::ENODATA)
    }
}

fn source(fake: Fake, len: u32) -> VerbsSource<Fake> {
    let shape = PortShape { port: PortNum::FIRST, len, link_layer: LinkLayer::ETHERNET };
    VerbsSource::new("fake0".into(), Arc::new(fake), vec![shape], "/nonexistent/fake0".into())
}

fn with_rows(count: u32) -> Fake {
    Fake { rows: Mutex::new((0..count).map(row).collect()), ..Fake::default() }
}

fn rooms(source: &VerbsSource<Fake>) -> Vec<usize> {
    source.context.rooms.lock().expect("one test").clone()
}

#[test]
fn the_room_follows_what_was_live_before() {
    let source = source(with_rows(250), 1024);
    assert_eq!(source.read(0).expect("a table").rows.len(), 250);
    assert_eq!(rooms(&source), [1024], "the first read has room for all");
    source.context.rooms.lock().expect("one test").clear();
    assert_eq!(source.read(250).expect("a table").rows.len(), 250);
    assert_eq!(rooms(&source), [289], "one call in steady state");
    source.context.rooms.lock().expect("one test").clear();
    assert_eq!(source.read(50).expect("a table").rows.len(), 250);
    assert_eq!(rooms(&source), [64, 128, 256], "it grew fivefold");
}

#[test]
fn a_table_of_one_row_and_none() {
    let one = source(with_rows(1), 1);
    assert_eq!(one.read(0).expect("a table").rows.len(), 1);
    assert_eq!(rooms(&one), [1]);
    let none = source(with_rows(0), 0);
    assert_eq!(none.read(0).expect("a table").rows.len(), 0);
    assert!(rooms(&none).is_empty(), "no table: nothing to ask");
}

#[test]
fn a_table_that_grows_while_it_is_read() {
    let source = source(Fake { grows: 3, ..with_rows(8) }, 1024);
    let table = source.read(8).expect("a table");
    assert_eq!(table.rows.len(), 11);
    assert_eq!(rooms(&source), [17]);
}

/// The call's attribute has 16 bits: 2047 rows. Beyond, row by row, none lost.
#[test]
fn tables_beyond_the_calls_limit() {
    assert_eq!(CALL_LIMIT, 2047);
    let source = source(with_rows(3000), 4096);
    let table = source.read(3000).expect("a table");
    assert_eq!(table.rows.len(), 3000);
    assert_eq!(rooms(&source), [2047]);
    assert_eq!(*source.context.single.lock().expect("one test"), 4096);
}

#[test]
fn without_the_table_call_each_row_is_asked_for() {
    let source = source(Fake { table_fails: Some(Errno::EOPNOTSUPP), ..with_rows(5) }, 256);
    assert_eq!(source.read(0).expect("a table").rows.len(), 5);
    assert_eq!(rooms(&source).len(), 1);
}

#[test]
fn without_either_call_sysfs_is_read() {
    let fake = Fake {
        table_fails: Some(Errno::EOPNOTSUPP),
        single_fails: Some(Errno::EOPNOTSUPP),
        ..with_rows(5)
    };
    let error = source(fake, 256).read(0).expect_err("there is no such folder");
    assert!(error.to_string().contains("sysfs ports: ENOENT"), "{error}");
}

#[test]
fn a_failure_says_which_row() {
    let gone = source(Fake { table_fails: Some(Errno::EIO), ..Fake::default() }, 256);
    let error = gone.read(0).expect_err("the device has gone");
    assert!(error.to_string().starts_with("ibv_query_gid_table on fake0: EIO"), "{error}");
    let half = source(
        Fake {
            table_fails: Some(Errno::EOPNOTSUPP),
            single_fails: Some(Errno::ENODEV),
            ..with_rows(5)
        },
        256,
    );
    let error = half.read(0).expect_err("the device has gone");
    // Sysfs has nothing of it either.
    let text = "ibv_query_gid_ex on fake0 port 1 index 0: ENODEV";
    assert!(error.to_string().starts_with(text), "{error}");
}

#[test]
fn rows_that_no_table_should_have_are_left_out() {
    let mut rows = vec![row(0), row(1), row(2), row(3)];
    rows[0].gid.raw = [0; 16];
    rows[1].port_num = 0;
    rows[2].port_num = 256;
    rows[3].gid_type = 7;
    let fake = Fake { rows: Mutex::new(rows), ..Fake::default() };
    let table = source(fake, 256).read(0).expect("a table");
    let [row] = &table.rows[..] else { panic!("{:?}", table.rows) };
    assert_eq!(row.gid_type(), GidType::from_raw(7), "an unknown type is kept");
}
