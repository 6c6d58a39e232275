//! A link with another host at its far end.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU8, Ordering};

use rdma_verbs::GidDirectory;

use super::rig::{add_namespace, ip, ip_batch, run, wait_until};

/// A veth pair: the near end here, with an rxe device, the far end in a network namespace of its own.
pub(crate) struct Pair {
    pub(crate) device: String,
    pub(crate) near: String,
    pub(crate) far: String,
    pub(crate) namespace: String,
    pub(crate) number: u8,
}

impl Pair {
    /// With 10.77.`n`.1/24 and 2001:db8:77:`n`::1/64 here, and the same with 2 and 3 there.
    pub(crate) fn new(directory: &GidDirectory) -> Pair {
        let pair = Pair::bare();
        pair.add_near("10.77", 1);
        pair.add_far("10.77");
        wait_for(directory, pair.ip(1), &pair.device);
        pair
    }

    /// Without an address.
    pub(crate) fn bare() -> Pair {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let pair = Pair {
            device: format!("pair{number}"),
            near: format!("n{number}"),
            far: format!("f{number}"),
            namespace: format!("far{number}"),
            number,
        };
        let (near, far) = (&*pair.near, &*pair.far);
        add_namespace(&pair.namespace);
        ip_batch(&format!(
            "link add {near} type veth peer name {far}\n\
             link set {far} address {} netns {}\n\
             link set {near} up\n",
            pair.far_mac(),
            pair.namespace
        ));
        pair.inside(&["link", "set", far, "up"]);
        run("/bin/rdma", &["link", "add", &pair.device, "type", "rxe", "netdev", near]);
        pair
    }

    pub(crate) fn far_mac(&self) -> String {
        format!("02:00:00:00:77:{:02x}", self.number)
    }

    pub(crate) fn inside(&self, arguments: &[&str]) {
        ip(&[&["-n", &self.namespace], arguments].concat());
    }

    pub(crate) fn ip(&self, host: u8) -> IpAddr {
        Ipv4Addr::new(10, 77, self.number, host).into()
    }

    pub(crate) fn ipv6(&self, host: u8) -> IpAddr {
        format!("2001:db8:77:{:x}::{host:x}", self.number).parse().expect("an address")
    }

    fn add_near(&self, net: &str, host: u8) {
        let (near, number) = (&self.near, self.number);
        ip_batch(&format!("addr add {net}.{number}.{host}/24 dev {near}\n"));
        ip(&["addr", "add", &format!("{}/64", self.ipv6(host)), "dev", near, "nodad"]);
    }

    fn add_far(&self, net: &str) {
        for host in [2, 3] {
            self.inside(&[
                "addr",
                "add",
                &format!("{net}.{}.{host}/24", self.number),
                "dev",
                &self.far,
            ]);
            let ipv6 = format!("{}/64", self.ipv6(host));
            self.inside(&["addr", "add", &ipv6, "dev", &self.far, "nodad"]);
        }
    }

    /// Makes the kernel ask for neighbours every 50 ms, so that it gives up in a fifth of a second.
    pub(crate) fn ask_fast(&self) {
        let file = format!("/proc/sys/net/ipv4/neigh/{}/retrans_time_ms", self.near);
        fs::write(file, "50").expect("the kernel takes it");
    }

    pub(crate) fn neighbour(&self, host: u8, hw_addr: &str) {
        let address = self.ip(host).to_string();
        ip(&[
            "neigh",
            "replace",
            &address,
            "lladdr",
            hw_addr,
            "dev",
            &self.near,
            "nud",
            "reachable",
        ]);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // A test that failed may still hold the device open.
        if !std::thread::panicking() {
            ip(&["link", "del", &self.near]);
            ip(&["netns", "del", &self.namespace]);
        }
    }
}

/// Waits until a checked lookup finds the address, on this device.
pub(crate) fn wait_for(directory: &GidDirectory, address: IpAddr, device: &str) {
    wait_until("the address is found", || {
        let snapshot = directory.checked().expect("a checked lookup");
        let mut rows = snapshot.by_ip(address);
        rows.any(|row| snapshot.device_of(row).is_some_and(|found| found.name() == device))
    });
}
