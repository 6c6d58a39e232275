//! What a device counts: packets, bytes, errors, as the kernel shows it in sysfs.

#![deny(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::device::Device;
use crate::error::{Errno, Error, Object, Result};
use crate::gid::{Files, RealFiles};
use crate::types::PortNum;

/// The counters of one folder of sysfs, as of one reading: each a file, read one after the other, so that they
/// are not of exactly one moment.
///
/// Names are the kernel's and differ by vendor; those that InfiniBand defines for every port have methods of
/// their own, which give `None` where there is none of that name. They count from when the device came, and
/// on up to 64 bits; on old devices some have 32, and stay at 4294967295 once they are there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Sorted by name.
    values: Box<[(Box<str>, u64)]>,
    /// Sorted by name.
    skipped: Box<[(Box<str>, Box<str>)]>,
    lifespan: Option<Duration>,
}

/// Counters that InfiniBand defines for every port.
macro_rules! standard {
    ($($(#[$doc:meta])* $name:ident, $file:literal;)*) => {$(
        $(#[$doc])*
        #[doc = concat!("\n\nThe kernel's `", $file, "`.")]
        pub fn $name(&self) -> Option<u64> {
            self.get($file)
        }
    )*};
}

impl Counters {
    /// The counter of this name, as the kernel has it: in the unit of that counter.
    pub fn get(&self, name: &str) -> Option<u64> {
        let at = self.values.binary_search_by(|(there, _)| (**there).cmp(name)).ok()?;
        self.values.get(at).map(|(_, value)| *value)
    }

    /// All of them by name, in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.values.iter().map(|(name, value)| (&**name, *value))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// What stands among them and was no number, by name, and why: a file that a device cannot answer for, one
    /// that holds something else.
    pub fn skipped(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.skipped.iter().map(|(name, why)| (&**name, &**why))
    }

    /// How long the kernel answers from memory before it asks the device again (`lifespan`), of a device's own
    /// counters: what is read may be as old as that. 10 ms unless set; `None` where it is not told.
    pub fn lifespan(&self) -> Option<Duration> {
        self.lifespan
    }

    /// **Bytes** sent, data and headers: the kernel's `port_xmit_data` counts words of 4 bytes, and this is four
    /// times that.
    #[doc(alias = "port_xmit_data")]
    pub fn xmit_bytes(&self) -> Option<u64> {
        self.get("port_xmit_data").map(|words| words.saturating_mul(4))
    }

    /// **Bytes** received, data and headers: four times the kernel's `port_rcv_data`, which counts words of 4
    /// bytes.
    #[doc(alias = "port_rcv_data")]
    pub fn rcv_bytes(&self) -> Option<u64> {
        self.get("port_rcv_data").map(|words| words.saturating_mul(4))
    }

    standard! {
        /// Packets sent.
        xmit_packets, "port_xmit_packets";
        /// Packets received.
        rcv_packets, "port_rcv_packets";
        /// Packets received that were bad: by their checksum, their length, or the link.
        rcv_errors, "port_rcv_errors";
        /// Packets received that were bad at the other end of the link already.
        rcv_remote_physical_errors, "port_rcv_remote_physical_errors";
        /// Packets that a switch could not pass on.
        rcv_switch_relay_errors, "port_rcv_switch_relay_errors";
        /// Packets that were not sent, since the port is down or congested.
        xmit_discards, "port_xmit_discards";
        /// Packets that a switch's port did not send, by its rules.
        xmit_constraint_errors, "port_xmit_constraint_errors";
        /// Packets that a switch's port did not take, by its rules.
        rcv_constraint_errors, "port_rcv_constraint_errors";
        /// Ticks of the port's clock in which there was data to send and nothing was sent: the peer gave no
        /// credits, or another was arbitrated first.
        xmit_wait, "port_xmit_wait";
        /// Packets dropped on virtual lane 15, the subnet manager's.
        vl15_dropped, "VL15_dropped";
        /// Minor errors of the link, one or more symbols each.
        symbol_errors, "symbol_error";
        /// How often the link recovered from an error.
        link_error_recoveries, "link_error_recovery";
        /// How often the link went down since it could not recover.
        link_downed, "link_downed";
        /// How often the link's own errors passed their threshold.
        local_link_integrity_errors, "local_link_integrity_errors";
        /// How often the receive buffers overran time and again.
        excessive_buffer_overrun_errors, "excessive_buffer_overrun_errors";
        /// Packets received that had one destination.
        unicast_rcv_packets, "unicast_rcv_packets";
        /// Packets sent that had one destination.
        unicast_xmit_packets, "unicast_xmit_packets";
        /// Packets received that went to a group.
        multicast_rcv_packets, "multicast_rcv_packets";
        /// Packets sent to a group.
        multicast_xmit_packets, "multicast_xmit_packets";
    }
}

impl Device {
    /// The counters that InfiniBand defines for this port (`ports/<port>/counters`), of as many as the device
    /// has; `None` where it has no such folder, as software devices. A file read for each; needs no open device,
    /// nor permission on its node.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPort`]; [`Error::DeviceGone`]; [`Error::Sysfs`] when the folder cannot be read. A file in it
    /// that cannot is [told with the rest](Counters::skipped).
    pub fn port_counters(&self, port: PortNum) -> Result<Option<Counters>> {
        self.counters_in(Some(port), format!("ports/{port}/counters").into())
    }

    /// The counters that the device's driver defines for this port (`ports/<port>/hw_counters`), by the names of
    /// that driver: `out_of_sequence`, `rnr_nak_retry_err`, `sent_pkts`; `None` where there are none.
    ///
    /// # Errors
    ///
    /// As [`port_counters`](Device::port_counters).
    pub fn port_hw_counters(&self, port: PortNum) -> Result<Option<Counters>> {
        self.counters_in(Some(port), format!("ports/{port}/hw_counters").into())
    }

    /// The counters that the device's driver defines for all of it (`hw_counters`); `None` where there are none.
    ///
    /// # Errors
    ///
    /// As [`port_counters`](Device::port_counters).
    pub fn hw_counters(&self) -> Result<Option<Counters>> {
        self.counters_in(None, "hw_counters".into())
    }

    fn counters_in(&self, port: Option<PortNum>, folder: PathBuf) -> Result<Option<Counters>> {
        let read = read(&RealFiles::new(self.sysfs_path()), self.name(), port, &folder);
        // What is no longer there, of the folder or of its files, may have gone with the device.
        let complete = matches!(&read, Ok(Some(counters)) if counters.skipped.is_empty());
        if !complete && self.has_gone() { Err(self.gone()) } else { read }
    }
}

/// The most files that are looked at in one folder. The largest drivers have some hundred.
const MOST: usize = 4096;

fn read(
    files: &impl Files,
    device: &str,
    port: Option<PortNum>,
    folder: &Path,
) -> Result<Option<Counters>> {
    let object = || Object { port, ..Object::device(device) };
    let failed = |path: &Path, error: io::Error| {
        let (file, errno) = (path.to_string_lossy().into(), Errno::from(error));
        Error::Sysfs { object: object(), file, errno }
    };
    let mut names = match files.names(folder) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(port) = port else { return Ok(None) };
            let ports = Path::new("ports");
            let there = files.names(ports).map_err(|error| failed(ports, error))?;
            if there.iter().any(|name| *name == port.to_string()) {
                return Ok(None);
            }
            let ports = there.len() as u32;
            return Err(Error::NoSuchPort { device: device.into(), port, ports });
        }
        Err(error) => return Err(failed(folder, error)),
    };
    names.sort();
    let (mut values, mut skipped, mut lifespan) = (Vec::new(), Vec::new(), None);
    for name in names.into_iter().take(MOST) {
        match (value(files, &folder.join(&name)), &*name) {
            (Ok(value), "lifespan") => lifespan = Some(Duration::from_millis(value)),
            (Ok(value), _) => values.push((name.into(), value)),
            (Err(why), _) => skipped.push((name.into(), why.into())),
        }
    }
    Ok(Some(Counters { values: values.into(), skipped: skipped.into(), lifespan }))
}

/// The number in a file, or why there is none.
fn value(files: &impl Files, path: &Path) -> Result<u64, String> {
    let content = files.read(path).map_err(|error| Errno::from(error).to_string())?;
    let text = String::from_utf8_lossy(&content);
    let digits = text.strip_suffix('\n').unwrap_or(&text);
    let number = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
    number.ok_or_else(|| {
        let cut: String = digits.chars().take(64).collect();
        format!("{cut:?} is no number of 64 bits")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Files by their paths: what is in them, or the errno of the read.
    struct Tree(BTreeMap<PathBuf, Result<&'static [u8], i32>>);

    impl Files for Tree {
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            match self.0.get(path) {
                Some(Ok(content)) => Ok(content.to_vec()),
                Some(Err(errno)) => Err(io::Error::from_raw_os_error(*errno)),
                None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
            }
        }

        fn names(&self, path: &Path) -> io::Result<Vec<String>> {
            let below = self.0.keys().filter_map(|file| file.strip_prefix(path).ok());
            let first = below.filter_map(|rest| rest.components().next());
            let mut names: Vec<String> =
                first.map(|name| name.as_os_str().to_string_lossy().into_owned()).collect();
            names.dedup();
            if names.is_empty() {
                Err(io::Error::from_raw_os_error(libc::ENOENT))
            } else {
                Ok(names)
            }
        }
    }

    fn tree() -> Tree {
        let files: [(&str, Result<&[u8], i32>); 12] = [
            ("ports/1/counters/port_xmit_data", Ok(b"1000\n")),
            ("ports/1/counters/port_rcv_data", Ok(b"18446744073709551615\n")),
            ("ports/1/counters/port_xmit_packets", Ok(b"7")),
            ("ports/1/counters/port_xmit_wait", Ok(b"N/A (no PMA)\n")),
            ("ports/1/counters/symbol_error", Ok(b"18446744073709551616\n")),
            ("ports/1/counters/link_downed", Err(libc::EINVAL)),
            ("ports/1/counters/VL15_dropped", Ok(b"\xff\n")),
            ("ports/1/counters/port_rcv_errors", Ok(b"-1\n")),
            ("ports/1/counters/port_rcv_packets", Ok(b"")),
            ("ports/1/hw_counters/lifespan", Ok(b"10\n")),
            ("ports/1/hw_counters/sent_pkts", Ok(b"42\n")),
            ("ports/2/state", Ok(b"4: ACTIVE\n")),
        ];
        Tree(files.into_iter().map(|(path, content)| (path.into(), content)).collect())
    }

    fn of(port: Option<u8>, folder: &str) -> Result<Option<Counters>> {
        read(&tree(), "dev0", port.and_then(PortNum::new), Path::new(folder))
    }

    #[test]
    fn counters_are_numbers_and_the_rest_is_told() {
        let counters = of(Some(1), "ports/1/counters").expect("a folder").expect("counters");
        assert_eq!(
            (counters.get("port_xmit_data"), counters.xmit_bytes()),
            (Some(1000), Some(4000))
        );
        assert_eq!(counters.rcv_bytes(), Some(u64::MAX), "four times that is no number");
        assert_eq!((counters.xmit_packets(), counters.rcv_packets()), (Some(7), None));
        assert_eq!((counters.link_downed(), counters.get("lifespan")), (None, None));
        let names: Vec<&str> = counters.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["port_rcv_data", "port_xmit_data", "port_xmit_packets"]);
        assert_eq!((counters.len(), counters.is_empty()), (3, false));
        let skipped: Vec<(&str, &str)> = counters.skipped().collect();
        let names: Vec<&str> = skipped.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            names,
            [
                "VL15_dropped",
                "link_downed",
                "port_rcv_errors",
                "port_rcv_packets",
                "port_xmit_wait",
                "symbol_error",
            ]
        );
        assert!(skipped[1].1.contains("EINVAL"), "{skipped:?}");
        assert_eq!(skipped[4].1, "\"N/A (no PMA)\" is no number of 64 bits");
    }

    #[test]
    fn a_drivers_own_have_a_lifespan() {
        let counters = of(Some(1), "ports/1/hw_counters").expect("a folder").expect("counters");
        assert_eq!(counters.iter().collect::<Vec<_>>(), [("sent_pkts", 42)]);
        assert_eq!(counters.lifespan(), Some(Duration::from_millis(10)));
    }

    #[test]
    fn no_folder_is_no_counters_and_no_port_is_an_error() {
        assert_eq!(of(Some(2), "ports/2/counters").expect("the port is there"), None);
        assert_eq!(of(None, "hw_counters").expect("the device is there"), None);
        let error = of(Some(3), "ports/3/counters").expect_err("there are two");
        assert_eq!(error.to_string(), "dev0 has no port 3: its ports are 1 to 2");
        let nothing = Tree(BTreeMap::new());
        let port = PortNum::new(1);
        let error = read(&nothing, "dev0", port, Path::new("ports/1/counters"));
        assert!(matches!(error, Err(Error::Sysfs { errno: Errno::ENOENT, .. })), "{error:?}");
    }
}
