//! `rc_pingpong` with itself, with the C program of the same purpose, and with peers that mean it ill.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_verbs::{Error, GidDirectory, PortNum, Reason};
use serde_json::Value;

use super::pingpong_example::exchange::{self, ExchangeError};
use super::pingpong_example::local::Local;
use super::pingpong_example::{Deadline, Options, run};
use super::rig::{Rig, ip, wait_until};

/// Sizes and how often: the largest takes some milliseconds there.
const SIZES: [(&str, &str); 3] = [("1", "100"), ("1024", "100"), ("65536", "20")];
const WAYS: [&[&str]; 4] = [&[], &["-e"], &["-c"], &["-N", "-c"]];

fn options(arguments: &[&str]) -> Options {
    let all = [&["rc_pingpong", "--json"], arguments].concat();
    Options::try_parse_from(all).expect("arguments")
}

/// What our program tells.
fn ours(arguments: &[&str]) -> Result<Value, String> {
    run(&options(arguments)).map(|json| serde_json::from_str(&json).expect("JSON"))
}

fn failure(arguments: &[&str]) -> String {
    let begun = Instant::now();
    let error = ours(arguments).expect_err("it cannot be done");
    let most = options(arguments).timeout + Duration::from_secs(20);
    assert!(begun.elapsed() < most, "{arguments:?}: {:?}", begun.elapsed());
    assert!(!error.contains('\n'), "{arguments:?}: one line: {error}");
    error
}

/// A TCP port of one test's own, below those that the kernel gives away.
pub(crate) fn port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}

pub(crate) fn wait_until_listening(port: &str) {
    let number: u16 = port.parse().expect("a port");
    let local = format!(":{number:04X}");
    wait_until("the server listens", || {
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
            let table = std::fs::read_to_string(file).unwrap_or_default();
            table.lines().any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                fields.next().is_some_and(|address| address.ends_with(&local))
                    && fields.nth(1) == Some("0A")
            })
        })
    });
}

/// A device with two IPv4 addresses, at indices 1 and 2.
pub(crate) fn rig() -> Rig {
    let rig = Rig::new();
    rig.add_addresses(&rig.open(), 2);
    rig
}

fn c_program(arguments: &[&str]) -> Child {
    start("ibv_rc_pingpong", arguments)
}

pub(crate) fn start(program: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect(program)
}

/// The C program's output, when it has succeeded.
pub(crate) fn c_output(mut child: Child, iters: &str) {
    let deadline = Instant::now() + Duration::from_secs(90);
    while child.try_wait().expect("a child").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("a child");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains(&format!("{iters} iters in")), "{text}");
    assert!(!text.contains("invalid"), "{text}");
}

/// Every size in every way.
fn each(mut play: impl FnMut(&[&str], &str)) {
    for (size, iters) in SIZES {
        for way in WAYS {
            // Few receives, so that they are posted anew many times.
            play(&[&["-s", size, "-n", iters, "-r", "10"], way].concat(), iters);
        }
    }
}

#[test]
fn both_ends_are_ours() {
    let rig = rig();
    each(|arguments, iters| {
        let all = [&["--both", "-d", &rig.device, "--timeout", "90"], arguments].concat();
        let told = ours(&all).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        assert_eq!(told["gid_index"], 1, "the first IPv4 address: {told}");
        assert_eq!(told["iters"].to_string(), iters);
        let of = |key: &str| told[key].as_f64().expect("a number");
        let bits = of("size") * 16.0;
        assert!(of("usec_per_iter") > 0.0, "{told}");
        assert!((bits / of("usec_per_iter") / of("mbit_per_sec") - 1.0).abs() < 1e-6, "{told}");
    });
}

/// The index is another on either side, which is nobody's business but theirs.
#[test]
fn the_client_is_cs() {
    let rig = rig();
    each(|arguments, iters| {
        let port = port();
        let place = ["-d", &rig.device, "-p", &port];
        let server = [&place[..], &["--timeout", "90", "-g", "1"], arguments].concat();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| ours(&server));
            wait_until_listening(&port);
            let client = [&place[..], &["-g", "2"], arguments, &["localhost"]].concat();
            c_output(c_program(&client), iters);
            let told = server.join().expect("no panic").expect("it plays");
            assert_eq!(told["gid_index"], 1, "{told}");
        });
    });
}

#[test]
fn the_server_is_cs() {
    let rig = rig();
    each(|arguments, iters| {
        let port = port();
        let place = ["-d", &rig.device, "-p", &port];
        let server = c_program(&[&place[..], &["-g", "2"], arguments].concat());
        wait_until_listening(&port);
        let client = [&place[..], &["--timeout", "90"], arguments, &["localhost"]].concat();
        let told = ours(&client).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        assert_eq!(told["gid_index"], 1, "{told}");
        c_output(server, iters);
    });
}

/// Without a GID, C's tells zero: that is said, and not tried.
#[test]
fn a_c_client_that_was_told_no_index() {
    let rig = rig();
    let port = port();
    let place = ["-d", &rig.device, "-p", &port];
    std::thread::scope(|scope| {
        let server = scope.spawn(|| failure(&place));
        wait_until_listening(&port);
        let client = c_program(&[&place[..], &["localhost"]].concat());
        assert!(!client.wait_with_output().expect("a child").status.success());
        let error = server.join().expect("no panic");
        assert!(error.contains("told no GID") && error.contains("-g INDEX"), "{error}");
    });
}

pub(crate) fn record(gid: &str) -> String {
    format!("0000:000777:123456:{gid}\0")
}

/// Until the deadline, of a test that waits for it; what comes before has time enough on a busy machine.
const SHORT: [&str; 2] = ["--timeout", "4"];

/// What our server says of a client that does this.
fn server_of(rig: &Rig, arguments: &[&str], client: impl FnOnce(TcpStream) + Send) -> String {
    let port = port();
    let all = [&["-d", &rig.device, "-p", &port], arguments].concat();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| failure(&all));
        wait_until_listening(&port);
        let stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
        scope.spawn(|| client(stream));
        server.join().expect("no panic")
    })
}

/// What our client says of a server that does this.
fn client_of(rig: &Rig, arguments: &[&str], server: impl FnOnce(TcpStream) + Send) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port().to_string();
    std::thread::scope(|scope| {
        scope.spawn(move || server(listener.accept().expect("a client").0));
        failure(&[&["-d", &rig.device, "-p", &port, "127.0.0.1"], arguments].concat())
    })
}

/// Keeps the connection until the other end has let go of it.
pub(crate) fn stay(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

pub(crate) fn say(mut stream: &TcpStream, text: &str) {
    // The other end may have gone.
    let _ = stream.write_all(text.as_bytes());
}

#[test]
fn clients_that_mean_it_ill() {
    let rig = rig();
    let own = mapped(&rig, 2);
    let error = server_of(&rig, &[], |stream| {
        say(&stream, &"?".repeat(52));
        stay(stream);
    });
    assert!(error.contains("is no ibv_rc_pingpong"), "{error}");
    let error = server_of(&rig, &[], |stream| say(&stream, &record(&own)[..20]));
    assert!(error.contains("closed the connection after 20 of 52 bytes"), "{error}");
    let error = server_of(&rig, &[], drop);
    assert!(error.contains("closed the connection after 0 of 52 bytes"), "{error}");
    let error = server_of(&rig, &SHORT, stay);
    assert!(error.contains("the peer's address did not come within 4s"), "{error}");
    // A byte now and then does not move the deadline.
    let error = server_of(&rig, &SHORT, |stream| {
        for byte in record(&own).chars() {
            say(&stream, &byte.to_string());
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    assert!(error.contains("the peer's address did not come within 4s"), "{error}");
    let zero = record(&"0".repeat(32));
    let error = server_of(&rig, &[], |stream| {
        say(&stream, &zero);
        stay(stream);
    });
    assert!(error.contains("told no GID"), "{error}");
    let ipv6 = record("20010db8000000000000000000000001");
    let error = server_of(&rig, &[], |stream| {
        say(&stream, &ipv6);
        stay(stream);
    });
    assert!(error.starts_with("no GID fits") && error.contains("family"), "{error}");
    let error = server_of(&rig, &["-g", "1"], |stream| {
        say(&stream, &ipv6);
        stay(stream);
    });
    assert!(error.contains("addresses of different families"), "{error}");
    // It is connected, and then hears no, or nothing, or a yes that nothing follows.
    let error = server_of(&rig, &[], |stream| say(&stream, &record(&own)));
    assert!(error.contains("closed the connection after 0 of 5 bytes"), "{error}");
    let error = server_of(&rig, &[], |stream| {
        say(&stream, &(record(&own) + "gone\0"));
        stay(stream);
    });
    assert!(error.contains("instead of the peer's \"done\" it sent \"gone\\0\""), "{error}");
    for events in [&SHORT[..], &["--timeout", "4", "-e"]] {
        let error = server_of(&rig, events, |stream| {
            say(&stream, &(record(&own) + "done\0"));
            stay(stream);
        });
        assert!(error.contains("not done within 4s (--timeout): 0 received"), "{error}");
    }
}

/// The wire's form of the rig's address.
pub(crate) fn mapped(rig: &Rig, host: u8) -> String {
    format!("{:020x}ffffc612{:02x}{host:02x}", 0, rig.number())
}

#[test]
fn servers_that_mean_it_ill() {
    let rig = rig();
    let error = client_of(&rig, &[], drop);
    assert!(error.contains("the peer closed the connection"), "{error}");
    let error = client_of(&rig, &SHORT, stay);
    assert!(error.contains("the peer's address did not come within 4s"), "{error}");
    let error = client_of(&rig, &[], |stream| {
        say(&stream, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n<html>");
        stay(stream);
    });
    assert!(error.contains("is no ibv_rc_pingpong"), "{error}");
    for (gid, what) in [
        ("0".repeat(32), "told no GID"),
        ("20010db8000000000000000000000001".into(), "addresses of different families"),
    ] {
        let error = client_of(&rig, &[], |stream| {
            say(&stream, &record(&gid));
            stay(stream);
        });
        assert!(error.contains(what), "{error}");
    }
    // There is no such queue pair: nobody answers.
    let error = client_of(&rig, &["--timeout", "10"], |stream| {
        say(&stream, &record(&mapped(&rig, 2)));
        stay(stream);
    });
    assert!(error.contains("no answer") || error.contains("not done within"), "{error}");
}

/// The errors of the exchange have types, which tell them apart.
#[test]
fn exchange_errors_are_typed() {
    let with = |client: fn(TcpStream), after: u64| {
        let listener = exchange::listen(0).expect("a free port");
        let port = listener.local_addr().expect("a port").port();
        let deadline = Deadline::new(Duration::from_millis(after));
        std::thread::scope(|scope| {
            scope.spawn(move || client(TcpStream::connect(("127.0.0.1", port)).expect("a server")));
            exchange::accept(&listener, deadline).expect("a client").hear()
        })
    };
    let closed = with(|stream| say(&stream, "0000:"), 10_000);
    assert!(matches!(closed, Err(ExchangeError::Closed { came: 5, wanted: 52, .. })), "{closed:?}");
    let garbage = with(|stream| say(&stream, &record(&"g".repeat(32))), 10_000);
    assert!(matches!(garbage, Err(ExchangeError::Garbage { .. })), "{garbage:?}");
    let silent = with(stay, 200);
    assert!(matches!(silent, Err(ExchangeError::TimedOut { .. })), "{silent:?}");
    let heard = with(|stream| say(&stream, &record(&"f".repeat(32))), 10_000).expect("an address");
    assert_eq!((heard.lid.0, heard.qpn.get(), heard.psn.get()), (0, 0x777, 0x12_3456));
    let deadline = Deadline::new(Duration::from_millis(100));
    let listener = exchange::listen(0).expect("a free port");
    let nobody = exchange::accept(&listener, deadline);
    assert!(matches!(nobody, Err(ExchangeError::TimedOut { .. })));
    let port = listener.local_addr().expect("a port").port();
    let taken = exchange::listen(port);
    assert!(matches!(taken, Err(ExchangeError::Network { .. })), "{taken:?}");
}

#[test]
fn bad_input() {
    let rig = rig();
    let both = |arguments: &[&str]| {
        let all = [&["--both", "-d", &rig.device, "--timeout", "30"], arguments].concat();
        failure(&all)
    };
    // 8 MiB on older kernels, 2 GiB on newer ones.
    let limit = rig.open().port(PortNum::FIRST).expect("a port").max_message_size;
    let beyond = (u64::from(limit) + 1).to_string();
    for (arguments, what) in [
        (&["-s", "0"][..], "in bytes, is to be 0: it can be 1 to 2147483648"),
        (&["-s", "2147483649"], "a message, in bytes, is to be 2147483649: it can be 1 to "),
        (&["-s", "18446744073709551615"], "is to be 18446744073709551615: it can be 1 to "),
        (&["-s", &beyond], &format!("is to be {beyond}: it can be 1 to {limit}")),
        (&["-i", "2"], "has no port 2"),
        (&["-g", "77"], "port 1 index 77 is empty"),
        (&["-g", "1024"], "port 1 index 1024 is outside the table of 1024"),
        (&["-g", "4294967295"], "is outside the table of 1024"),
        (&["-r", "0"], "--rx-depth 0"),
        (&["-n", "0"], "--iters 0"),
        (&["-l", "16"], "--sl 16: it can be 0 to 15"),
        (&["-s", "1", "-r", "4000000000"], "it can be 1 to 32767"),
        (&["--cpu", "4000"], "--cpu 4000"),
        (&["--ts"], "has no completion timestamps"),
    ] {
        let error = both(arguments);
        assert!(error.contains(what), "{arguments:?}: {error}");
    }
    let error = failure(&["--both", "-d", "no-such-device"]);
    assert!(error.contains("no RDMA device named \"no-such-device\""), "{error}");
    let error = failure(&["-p", &port(), "-d", &rig.device, "localhost"]);
    assert!(error.contains("Connection refused"), "{error}");
    let error = failure(&["-p", &port(), "-d", &rig.device, "--timeout", "0.2"]);
    assert!(error.contains("a client did not come within 200ms"), "{error}");
}

/// A row whose link-local address nobody has any more: told, tried as it was asked, and ended.
#[test]
fn index_0_of_an_address_that_has_gone() {
    let rig = rig();
    let directory = GidDirectory::open().expect("a directory");
    let by_hand = options(&["--both", "-d", &rig.device, "-g", "0", "--timeout", "2"]);
    let choose = |options: &Options| Local::choose(options, &directory, None, false);
    assert_eq!(choose(&by_hand).expect("a row").doubt, None);
    ip(&["-6", "addr", "flush", "dev", &rig.netdev]);
    wait_until("the address has gone", || {
        let doubt = choose(&by_hand).map(|local| local.doubt);
        matches!(doubt, Ok(Some(Reason::NotOnInterface)))
    });
    let begun = Instant::now();
    let outcome = run(&by_hand);
    assert!(outcome.is_err(), "{outcome:?}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // Left alone, it takes another.
    let chosen = choose(&options(&["-d", &rig.device])).expect("a row");
    assert_eq!(chosen.row.map(|row| row.index()), Some(1));
    // And where there is none, it says so.
    ip(&["-4", "addr", "flush", "dev", &rig.netdev]);
    wait_until("there is none", || {
        matches!(choose(&options(&["-d", &rig.device])), Err(Error::NoGidFits { .. }))
    });
    let error = failure(&["--both", "-d", &rig.device]);
    assert!(error.contains("its netdev here lacks the address"), "{error}");
}
