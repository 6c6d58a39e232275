//! `ud_pingpong` with itself, with the C program of the same purpose, and with peers that mean it ill.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::Value;

use super::pingpong::{
    c_output, mapped, port, record, rig, say, start, stay, wait_until_listening,
};
use super::rig::{Rig, ip, wait_until};
use super::ud_pingpong_example::{Options, run};

const SIZES: [&str; 3] = ["1", "63", "1024"];
const WAYS: [&[&str]; 3] = [&[], &["-e"], &["-c"]];
const ITERS: &str = "100";

fn options(arguments: &[&str]) -> Options {
    let all = [&["ud_pingpong", "--json"], arguments].concat();
    Options::try_parse_from(all).expect("arguments")
}

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

/// Every size in every way, with few receives, so that they are posted anew many times.
fn each(mut play: impl FnMut(&[&str])) {
    for size in SIZES {
        for way in WAYS {
            play(&[&["-s", size, "-n", ITERS, "-r", "10"], way].concat());
        }
    }
}

#[test]
fn both_ends_are_ours() {
    let rig = rig();
    each(|arguments| {
        let all = [&["--both", "-d", &rig.device, "--timeout", "90"], arguments].concat();
        let told = ours(&all).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        assert_eq!(told["gid_index"], 1, "the first IPv4 address: {told}");
        assert_eq!(told["iters"].to_string(), ITERS);
        assert!(told["usec_per_iter"].as_f64().is_some_and(|usec| usec > 0.0), "{told}");
    });
}

#[test]
fn over_ipv6() {
    let rig = rig();
    let address = format!("2001:db8:{:x}::9", rig.number());
    ip(&["addr", "add", &format!("{address}/128"), "dev", &rig.netdev, "nodad"]);
    let context = rig.open();
    wait_until("the row is there", || {
        context.gids().checked().expect("a lookup").row(rdma_verbs::PortNum::FIRST, 3).is_some()
    });
    let told = ours(&["--both", "-d", &rig.device, "-g", "3", "-n", ITERS]).expect("it plays");
    assert_eq!(told["gid"], *address, "{told}");
}

#[test]
fn the_client_is_cs() {
    let rig = rig();
    each(|arguments| {
        let port = port();
        let place = ["-d", &rig.device, "-p", &port];
        let server = [&place[..], &["--timeout", "90", "-g", "1"], arguments].concat();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| ours(&server));
            wait_until_listening(&port);
            let client = [&place[..], &["-g", "2"], arguments, &["localhost"]].concat();
            c_output(start("ibv_ud_pingpong", &client), ITERS);
            let told = server.join().expect("no panic").expect("it plays");
            assert_eq!(told["gid_index"], 1, "{told}");
        });
    });
}

#[test]
fn the_server_is_cs() {
    let rig = rig();
    each(|arguments| {
        let port = port();
        let place = ["-d", &rig.device, "-p", &port];
        let server = [&place[..], &["-g", "2"], arguments].concat();
        let server = start("ibv_ud_pingpong", &server);
        wait_until_listening(&port);
        let client = [&place[..], &["--timeout", "90"], arguments, &["localhost"]].concat();
        let told = ours(&client).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        assert_eq!(told["gid_index"], 1, "{told}");
        c_output(server, ITERS);
    });
}

/// What our server says of a client that does this.
fn server_of(rig: &Rig, client: impl FnOnce(TcpStream) + Send) -> String {
    let port = port();
    let all = ["-d", &rig.device, "-p", &port, "--timeout", "4"];
    std::thread::scope(|scope| {
        let server = scope.spawn(|| failure(&all));
        wait_until_listening(&port);
        let stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
        scope.spawn(|| client(stream));
        server.join().expect("no panic")
    })
}

#[test]
fn peers_that_mean_it_ill() {
    let rig = rig();
    let own = mapped(&rig, 2);
    let error = server_of(&rig, |stream| {
        say(&stream, &"?".repeat(52));
        stay(stream);
    });
    assert!(error.contains("is no ibv_ud_pingpong"), "{error}");
    let error = server_of(&rig, |stream| say(&stream, &record(&own)[..20]));
    assert!(error.contains("closed the connection after 20 of 52 bytes"), "{error}");
    let error = server_of(&rig, |stream| {
        say(&stream, &record(&"0".repeat(32)));
        stay(stream);
    });
    assert!(error.contains("told no GID"), "{error}");
    let error = server_of(&rig, |stream| {
        say(&stream, &record("20010db8000000000000000000000001"));
        stay(stream);
    });
    assert!(error.starts_with("no GID fits"), "{error}");
    // It says that it is ready, and sends nothing.
    let error = server_of(&rig, |stream| {
        say(&stream, &(record(&own) + "done\0"));
        stay(stream);
    });
    assert!(error.contains("not done within 4s (--timeout): 0 received"), "{error}");
    // A server whose queue pair is nobody's: what is sent there is lost, and nobody answers.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port().to_string();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = listener.accept().expect("a client").0;
            say(&stream, &record(&own));
            stay(stream);
        });
        failure(&["-d", &rig.device, "-p", &port, "--timeout", "2", "127.0.0.1"])
    });
    assert!(error.contains("not done within 2s (--timeout): 0 received and 1 sent"), "{error}");
}

#[test]
fn bad_input() {
    let rig = rig();
    for (arguments, what) in [
        (&["-s", "0"][..], "--size 0: there is nothing to send"),
        (&["-s", "1025"], "a message, in bytes, is to be 1025: it can be 1 to 1024"),
        (&["-s", "18446744073709551615"], "is to be 18446744073709551615: it can be 1 to 1024"),
        (&["-i", "2"], "has no port 2"),
        (&["-g", "77"], "port 1 index 77 is empty"),
        (&["-r", "0"], "--rx-depth 0"),
        (&["-n", "0"], "--iters 0"),
        (&["-l", "16"], "--sl 16: it can be 0 to 15"),
    ] {
        let all = [&["--both", "-d", &rig.device, "--timeout", "30"], arguments].concat();
        let error = failure(&all);
        assert!(error.contains(what), "{arguments:?}: {error}");
    }
    let error = failure(&["--both", "-d", "no-such-device"]);
    assert!(error.contains("no RDMA device named \"no-such-device\""), "{error}");
    let error = failure(&["-p", &port(), "-d", &rig.device, "localhost"]);
    assert!(error.contains("Connection refused"), "{error}");
    let error = failure(&["-p", &port(), "-d", &rig.device, "--timeout", "0.2"]);
    assert!(error.contains("a client did not come within 200ms"), "{error}");
}
