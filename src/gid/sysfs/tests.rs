//! Trees made by hand, with what a plain file cannot do: reads that fail with `EINVAL`, files that
//! change between two reads, version 1 rows and second ports, which rxe does not have.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::*;
use crate::gid::GidSnapshot;

/// What reads of one file give, one after the other; the last stays.
type Answers = Vec<Result<Vec<u8>, i32>>;

#[derive(Default)]
struct Tree {
    files: Mutex<BTreeMap<PathBuf, Answers>>,
}

impl Tree {
    fn file(&mut self, path: &str, content: &str) -> &mut Tree {
        self.answers(path, vec![Ok(content.into())])
    }

    fn fails(&mut self, path: &str, errno: i32) -> &mut Tree {
        self.answers(path, vec![Err(errno)])
    }

    fn answers(&mut self, path: &str, answers: Answers) -> &mut Tree {
        self.files.lock().expect("one test").insert(path.into(), answers);
        self
    }

    /// A port with a table of `len` empty rows, as the kernel shows them.
    fn port(&mut self, port: u8, link_layer: &str, len: u32) -> &mut Tree {
        self.file(&format!("ports/{port}/link_layer"), &format!("{link_layer}\n"));
        for index in 0..len {
            let zero = "0000:0000:0000:0000:0000:0000:0000:0000\n";
            self.file(&format!("ports/{port}/gids/{index}"), zero);
            self.fails(&format!("ports/{port}/gid_attrs/types/{index}"), libc::EINVAL);
            self.fails(&format!("ports/{port}/gid_attrs/ndevs/{index}"), libc::EINVAL);
        }
        self
    }

    /// A row's three files.
    fn row(&mut self, port: u8, index: u32, gid: &str, kind: &str, netdev: &str) -> &mut Tree {
        let gid: Gid = gid.parse().expect("a GID");
        self.file(&format!("ports/{port}/gids/{index}"), &format!("{}\n", gid.full()));
        self.file(&format!("ports/{port}/gid_attrs/types/{index}"), kind);
        self.file(&format!("ports/{port}/gid_attrs/ndevs/{index}"), netdev)
    }

    fn snapshot(&mut self) -> Result<GidSnapshot> {
        let files = std::mem::take(self);
        let source = SysfsSource { device: "dev0".into(), files };
        Ok(GidSnapshot::new("dev0".into(), source.read(0)?, None))
    }
}

impl Files for Tree {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut files = self.files.lock().expect("one test");
        let missing = || io::Error::from_raw_os_error(libc::ENOENT);
        let answers = files.get_mut(path).ok_or_else(missing)?;
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
        answer.map_err(io::Error::from_raw_os_error)
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let files = self.files.lock().expect("one test");
        let below = files.keys().filter_map(|path| path.strip_prefix(folder).ok());
        let mut names: Vec<String> = below
            .filter_map(|rest| rest.components().next())
            .map(|name| name.as_os_str().to_string_lossy().into_owned())
            .collect();
        names.dedup();
        if names.is_empty() { Err(io::Error::from_raw_os_error(libc::ENOENT)) } else { Ok(names) }
    }
}

/// The rows as text, one a line.
fn printed(snapshot: &GidSnapshot) -> Vec<String> {
    snapshot.rows().iter().map(GidEntry::to_string).collect()
}

const MAPPED: &str = "::ffff:192.0.2.12";

#[test]
fn holes_are_silent() {
    let snapshot = Tree::default()
        .port(1, "Ethernet", 256)
        .row(1, 4, "fe80::aa", "IB/RoCE v1\n", "net1\n")
        .row(1, 5, "fe80::aa", "RoCE v2\n", "net1\n")
        .row(1, 6, MAPPED, "IB/RoCE v1\n", "net1\n")
        .row(1, 7, MAPPED, "RoCE v2\n", "net1\n")
        .snapshot()
        .expect("holes are no errors");
    assert_eq!(
        printed(&snapshot),
        [
            "port 1 index 4 fe80::aa RoCE v1 net1",
            "port 1 index 5 fe80::aa RoCE v2 net1",
            "port 1 index 6 ::ffff:192.0.2.12 RoCE v1 net1",
            "port 1 index 7 ::ffff:192.0.2.12 RoCE v2 net1",
        ]
    );
    assert_eq!(snapshot.ports()[0].capacity(), 256);
}

#[test]
fn type_texts() {
    for (link, text, printed) in [
        ("Ethernet", "IB/RoCE v1\n", "RoCE v1"),
        ("Ethernet", "RoCE v1\n", "RoCE v1"),
        ("Ethernet", "RoCE v2\n", "RoCE v2"),
        ("Ethernet", "RoCE v2", "RoCE v2"),
        ("Ethernet", "RoCE v3\n", "unrecognized"),
        ("Ethernet", "Invalid GID type\n", "unrecognized"),
        ("Ethernet", "", "RoCE v1 (assumed)"),
        ("InfiniBand", "IB/RoCE v1\n", "IB"),
        ("Unspecified", "IB/RoCE v1\n", "IB"),
        ("InfiniBand", "", "IB (assumed)"),
    ] {
        let snapshot = Tree::default()
            .port(1, link, 2)
            .row(1, 0, "fe80::aa", text, "")
            .snapshot()
            .expect(text);
        let expected = format!("port 1 index 0 fe80::aa {printed}");
        assert_eq!(snapshot.rows()[0].to_string(), expected, "{link} {text:?}");
    }
}

/// On InfiniBand the type file may answer `EINVAL` for a row that is there.
#[test]
fn a_row_whose_type_is_not_told() {
    let mut tree = Tree::default();
    tree.port(1, "InfiniBand", 1).row(1, 0, "fe80::aa", "", "");
    tree.fails("ports/1/gid_attrs/types/0", libc::EINVAL);
    let snapshot = tree.snapshot().expect("a table");
    assert_eq!(printed(&snapshot), ["port 1 index 0 fe80::aa IB (assumed)"]);
}

#[test]
fn an_old_kernel_without_attributes() {
    let full = |gid: &str| format!("{}\n", gid.parse::<Gid>().expect("a GID").full());
    let snapshot = Tree::default()
        .file("ports/1/link_layer", "Ethernet\n")
        .file("ports/1/gids/0", &full("fe80::aa"))
        .file("ports/1/gids/1", &full(MAPPED))
        .snapshot()
        .expect("attributes may be missing");
    assert_eq!(
        printed(&snapshot),
        [
            "port 1 index 0 fe80::aa RoCE v1 (assumed)",
            "port 1 index 1 ::ffff:192.0.2.12 RoCE v1 (assumed)",
        ]
    );
    let ip = std::net::Ipv4Addr::new(192, 0, 2, 12).into();
    assert_eq!(snapshot.by_ip(ip).next().map(GidEntry::index), Some(1));
}

#[test]
fn two_ports_of_two_links() {
    let snapshot = Tree::default()
        .port(1, "Ethernet", 4)
        .port(2, "InfiniBand", 1)
        .row(1, 2, MAPPED, "RoCE v2\n", "eth2.10\n")
        .row(2, 0, "fe80::b2", "IB/RoCE v1\n", "")
        .snapshot()
        .expect("a table");
    assert_eq!(
        printed(&snapshot),
        ["port 1 index 2 ::ffff:192.0.2.12 RoCE v2 eth2.10", "port 2 index 0 fe80::b2 IB"]
    );
    let links: Vec<LinkLayer> = snapshot.ports().iter().map(|port| port.link_layer()).collect();
    assert_eq!(links, [LinkLayer::ETHERNET, LinkLayer::INFINIBAND]);
}

#[test]
fn a_table_all_zero_and_a_port_without_one() {
    let snapshot = Tree::default()
        .port(1, "Ethernet", 256)
        .file("ports/2/link_layer", "Ethernet\n")
        .snapshot()
        .expect("an empty table is no error");
    assert!(snapshot.rows().is_empty());
    let capacities: Vec<u32> = snapshot.ports().iter().map(|port| port.capacity()).collect();
    assert_eq!(capacities, [256, 0], "iWARP has no table");
}

/// A GID file that is not what the kernel writes: the whole read fails and says which file.
#[test]
fn odd_contents_are_told_with_the_file() {
    for content in [&b"fe80:0000"[..], b"", b"\xff\xfe\x00", b"fe80::aa\n"] {
        let mut tree = Tree::default();
        tree.port(1, "Ethernet", 4).row(1, 1, "fe80::aa", "RoCE v2\n", "e0\n");
        tree.answers("ports/1/gids/1", vec![Ok(content.into())]);
        let error = tree.snapshot().expect_err("no GID").to_string();
        let told = "GID table of dev0 port 1: sysfs ports/1/gids/1: it holds no GID";
        assert_eq!(error, told, "{content:?}");
    }
    for file in ["ports/1/gids/3", "ports/1/gid_attrs/types/1", "node_type"] {
        let mut tree = Tree::default();
        tree.port(1, "Ethernet", 4).row(1, 1, "fe80::aa", "RoCE v2\n", "e0\n");
        tree.fails(file, libc::EIO);
        let error = tree.snapshot().expect_err("a file that cannot be read");
        assert!(matches!(error, Error::Sysfs { errno: Errno::EIO, .. }), "{error}");
        assert!(error.to_string().contains(&format!("sysfs {file}: EIO")), "{error}");
    }
    let mut tree = Tree::default();
    tree.file("ports/0/link_layer", "Ethernet\n");
    assert!(tree.snapshot().is_err(), "no port is 0");
    let error = Tree::default().snapshot().expect_err("no such device").to_string();
    assert_eq!(error, "dev0: sysfs ports: ENOENT (2): No such file or directory");
}

/// What only names or describes a row costs no row when it is odd.
#[test]
fn odd_attributes_cost_no_row() {
    for (file, answer, printed) in [
        ("types/1", Ok(&b"\xff\xfe"[..]), "port 1 index 1 fe80::aa unrecognized e0"),
        ("ndevs/1", Ok(b"\xff\xfe"), "port 1 index 1 fe80::aa RoCE v2"),
        ("ndevs/1", Ok(b"a/b\n"), "port 1 index 1 fe80::aa RoCE v2"),
        ("ndevs/1", Ok(b"a name that is too long\n"), "port 1 index 1 fe80::aa RoCE v2"),
        ("ndevs/1", Err(libc::ENODEV), "port 1 index 1 fe80::aa RoCE v2"),
    ] {
        let mut tree = Tree::default();
        tree.port(1, "Ethernet", 4).row(1, 1, "fe80::aa", "RoCE v2\n", "e0\n");
        tree.answers(&format!("ports/1/gid_attrs/{file}"), vec![answer.map(<[u8]>::to_vec)]);
        let snapshot = tree.snapshot().expect("a table");
        assert_eq!(self::printed(&snapshot), [printed], "{file}");
    }
}

/// An iWARP device has one row, made of its MAC address: no RoCE and no IP address.
#[test]
fn an_iwarp_device() {
    let mac = "0200:0000:0010:0000:0000:0000:0000:0000".parse::<Gid>().expect("a GID").to_string();
    let snapshot = Tree::default()
        .file("node_type", "4: RNIC\n")
        .port(1, "Ethernet", 1)
        .row(1, 0, &mac, "IB/RoCE v1\n", "e0\n")
        .snapshot()
        .expect("a table");
    assert_eq!(snapshot.rows()[0].gid_type(), GidType::IB);
    assert_eq!(snapshot.rows()[0].ip(), None);
}

#[test]
fn a_row_replaced_between_its_files_is_read_again() {
    let line = |gid: &str| Ok(format!("{}\n", gid.parse::<Gid>().expect("a GID").full()).into());
    let mut tree = Tree::default();
    tree.port(1, "Ethernet", 1).row(1, 0, "fe80::aa", "", "");
    tree.answers("ports/1/gids/0", vec![line("fe80::aa"), line("fe80::bb")]);
    let types = vec![Ok(b"IB/RoCE v1\n".to_vec()), Ok(b"RoCE v2\n".to_vec())];
    tree.answers("ports/1/gid_attrs/types/0", types);
    let snapshot = tree.snapshot().expect("it settles");
    assert_eq!(printed(&snapshot), ["port 1 index 0 fe80::bb RoCE v2"], "no mix of the two");

    // It goes and comes back between its files, the same: its type is not the hole's.
    let mut tree = Tree::default();
    tree.port(1, "Ethernet", 1).row(1, 0, "fe80::aa", "", "e0\n");
    let types = vec![Err(libc::EINVAL), Ok(b"RoCE v2\n".to_vec())];
    tree.answers("ports/1/gid_attrs/types/0", types);
    let snapshot = tree.snapshot().expect("it settles");
    assert_eq!(printed(&snapshot), ["port 1 index 0 fe80::aa RoCE v2 e0"]);

    let mut tree = Tree::default();
    tree.port(1, "Ethernet", 1).row(1, 0, "fe80::aa", "RoCE v2\n", "e0\n");
    tree.answers("ports/1/gids/0", vec![line("fe80::aa"), line("::")]);
    assert!(tree.snapshot().expect("it went").rows().is_empty());

    let mut tree = Tree::default();
    tree.port(1, "Ethernet", 1).row(1, 0, "fe80::aa", "RoCE v2\n", "e0\n");
    let changing = (0..99_u8).map(|n| line(&format!("fe80::{n:x}"))).collect();
    tree.answers("ports/1/gids/0", changing);
    let error = tree.snapshot().expect_err("it never settles").to_string();
    assert!(error.contains("keeps changing"), "{error}");
}
