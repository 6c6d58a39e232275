//! `rping`, ours and C's, at either end.

use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};

use clap::Parser;

use super::super::rig::wait_until;
use super::super::rping_example::{Options, run};
use super::Server;

/// A device with an address, for both ends, and a port of one test's own.
struct Ends {
    _server: Server,
    address: IpAddr,
    port: u16,
}

impl Ends {
    fn new(port: u16) -> Ends {
        let server = Server::new();
        Ends { address: server.at().ip(), _server: server, port }
    }

    /// Arguments for either program.
    fn arguments(&self, role: &str, more: &[&str]) -> Vec<String> {
        let (address, port) = (self.address.to_string(), self.port.to_string());
        let all = [role, "-a", &address, "-p", &port];
        all.iter().chain(more).map(|argument| argument.to_string()).collect()
    }

    fn ours(&self, role: &str, more: &[&str]) -> Result<(), String> {
        let arguments = self.arguments(role, more);
        let named = std::iter::once("rping".to_string()).chain(arguments);
        run(&Options::parse_from(named))
    }

    fn c(&self, role: &str, more: &[&str]) -> Child {
        let mut command = Command::new("rping");
        command.args(self.arguments(role, more)).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("rping of rdma-core")
    }

    /// Whether somebody listens on the port, as the kernel tells it: to bind it would keep others from it.
    fn is_taken(&self) -> bool {
        let all = Command::new("/bin/rdma").args(["resource", "show", "cm_id"]).output();
        let all = String::from_utf8(all.expect("/bin/rdma").stdout).expect("text");
        let at = format!("src-addr {}:{} ", self.address, self.port);
        all.lines().any(|line| line.contains("state LISTEN") && line.contains(&at))
    }
}

/// What a program in C said, when it ended well.
fn ended(mut child: Child) -> String {
    let status = child.wait().expect("it ends");
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
    child.stderr.take().expect("piped").read_to_string(&mut err).expect("text");
    assert!(status.success(), "{status}: {err}");
    out
}

/// 65536 is refused by the program in C, whatever its message says.
const SIZES: [&str; 4] = ["64", "1000", "4096", "65535"];

/// How often: `RDMA_TEST_TURNS` of every size, or 1000 of the shortest and some of the others.
fn turns(size: &str) -> String {
    let few = if size == "64" { "1000" } else { "50" };
    std::env::var("RDMA_TEST_TURNS").unwrap_or_else(|_| few.into())
}

#[test]
fn our_client_with_a_server_in_c() {
    let place = Ends::new(7201);
    for size in SIZES {
        let server = place.c("-s", &["-S", size, "-C", "1000"]);
        wait_until("the server listens", || place.is_taken());
        let count = turns(size);
        let done = place.ours("-c", &["-S", size, "-C", &count, "-V", "--deadline", "300"]);
        done.expect("all came back");
        ended(server);
    }
}

#[test]
fn a_client_in_c_with_our_server() {
    let place = Ends::new(7202);
    for size in SIZES {
        let count = turns(size);
        let client = std::thread::scope(|scope| {
            let server = scope.spawn(|| place.ours("-s", &["--deadline", "300"]));
            wait_until("the server listens", || place.is_taken());
            let client = place.c("-c", &["-S", size, "-C", &count, "-V"]);
            server.join().expect("no panic").expect("served");
            client
        });
        ended(client);
    }
}

/// The text is the C program's, byte for byte.
#[test]
fn the_text_is_the_same() {
    let place = Ends::new(7203);
    let mut server = place.c("-s", &["-v", "-S", "64"]);
    wait_until("the server listens", || place.is_taken());
    place.ours("-c", &["-C", "3", "--deadline", "60"]).expect("all came back");
    let out = BufReader::new(server.stdout.take().expect("piped"));
    let theirs: Vec<_> = out.lines().map(|line| line.expect("text")).collect();
    server.wait().expect("it ends");
    assert!(theirs[0].starts_with("server ping data: rdma-ping-0: ABCDEFG"), "{theirs:?}");
    assert!(theirs[2].starts_with("server ping data: rdma-ping-2: CDEFGHI"), "{theirs:?}");
}

#[test]
fn both_ends_are_ours_and_sizes_are_beyond_c() {
    let place = Ends::new(7204);
    for size in ["28", "65536", "1000000"] {
        let done = place.ours("--both", &["-S", size, "-C", "20", "-V", "--deadline", "60"]);
        done.expect("all came back");
    }
}

#[test]
fn errors_are_told() {
    let place = Ends::new(7205);
    let error = place.ours("-c", &["-C", "1", "--deadline", "5"]).expect_err("nobody listens");
    assert!(error.contains("nobody listens on that port"), "{error}");
    let error = place.ours("-s", &["--deadline", "0"]).expect_err("nobody came");
    assert!(error.contains("before the deadline"), "{error}");
    let error = Options::try_parse_from(["rping", "-c"]).err().expect("no address");
    assert!(error.to_string().contains("--address"), "{error}");
}
