//! `write_lat` with peers that mean it ill, and with what cannot be.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::pingpong::{port, rig, say, stay, wait_until_listening};
use super::rig::Rig;
use super::write_lat::{options, ours};
use super::write_lat_example::Options;
use super::write_lat_example::exchange::Plan;

fn failure(arguments: &[&str]) -> String {
    let begun = Instant::now();
    let error = ours(arguments).expect_err("it cannot be done");
    let most = options(arguments).timeout + Duration::from_secs(20);
    assert!(begun.elapsed() < most, "{arguments:?}: {:?}", begun.elapsed());
    assert!(!error.contains('\n'), "{arguments:?}: one line: {error}");
    error
}

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

/// Either of them.
type End = fn(&Rig, &[&str], fn(TcpStream)) -> String;

/// The key of a queue pair that there is not, at this GID.
fn key_at(gid: &str) -> String {
    format!("0000:0001:000777:123456:00000352:000055fbb914f000:{gid}:00000000:\0")
}

/// The same at the rig's second address.
fn key(rig: &Rig) -> String {
    key_at(&format!("00:00:00:00:00:00:00:00:00:00:ff:ff:c6:12:{:02x}:02", rig.number()))
}

/// All that C's says before its key.
const HELLO: &str = "6.06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0@3\0";
const SHORT: [&str; 2] = ["--timeout", "4"];

/// Hears so much, or less where the other end has gone.
fn hear(mut stream: &TcpStream, bytes: usize) {
    let _ = stream.read_exact(&mut vec![0; bytes]);
}

#[test]
fn peers_that_speak_otherwise() {
    let rig = rig();
    let ends: [End; 2] =
        [|rig, way, peer| server_of(rig, way, peer), |rig, way, peer| client_of(rig, way, peer)];
    for of in ends {
        let error = of(&rig, &[], drop);
        assert!(error.contains("closed the connection"), "{error}");
        let error = of(&rig, &SHORT, stay);
        assert!(
            error.contains("the peer's version, 5.70 or later did not come within 4s"),
            "{error}"
        );
        let error = of(&rig, &[], |stream| {
            say(&stream, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n<html>");
            stay(stream);
        });
        assert!(error.contains("the peer is no ib_write_lat"), "{error}");
        let error = of(&rig, &[], |stream| {
            say(&stream, "5.60\0\0\0\0\0\0\0\0\0\0\0\0");
            stay(stream);
        });
        assert!(error.contains("5.70 or later it sent \"5.60"), "{error}");
        let error = of(&rig, &[], |stream| {
            say(&stream, &HELLO.replace("3\0", "9\0"));
            stay(stream);
        });
        assert!(error.contains("instead of the peer's MTU it sent \"9\\0\""), "{error}");
        let error = of(&rig, &[], |stream| {
            say(&stream, HELLO);
            say(&stream, &"?".repeat(4000));
            stay(stream);
        });
        assert!(error.contains("instead of the peer's key it sent"), "{error}");
        let error = of(&rig, &[], |stream| {
            say(&stream, HELLO);
            say(&stream, "0000:0001:");
            hear(&stream, 26);
        });
        assert!(error.contains("closed the connection after 10 of 108 bytes"), "{error}");
        // A byte now and then does not move the deadline.
        let error = of(&rig, &SHORT, |stream| {
            for byte in HELLO.chars() {
                say(&stream, &byte.to_string());
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        assert!(error.contains("did not come within 4s"), "{error}");
    }
}

#[test]
fn keys_that_cannot_be() {
    let rig = rig();
    for (gid, what) in [
        ("00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00", ["told no GID"; 2]),
        (
            "20:01:0d:b8:00:00:00:00:00:00:00:00:00:00:00:01",
            ["no GID fits", "addresses of different families"],
        ),
    ] {
        let all = HELLO.to_owned() + &key_at(gid).repeat(2);
        let error = server_of(&rig, &[], |stream| {
            say(&stream, &all);
            stay(stream);
        });
        assert!(error.contains(what[0]), "{error}");
        let error = client_of(&rig, &[], |stream| {
            say(&stream, &all);
            stay(stream);
        });
        assert!(error.contains(what[1]), "{error}");
    }
    // There is no such queue pair: nobody answers, and nobody writes.
    for way in [&SHORT[..], &["--timeout", "4", "--write-with-imm"]] {
        // Enough of them for either way.
        let all = HELLO.to_owned() + &key(&rig).repeat(5);
        let error = client_of(&rig, way, |stream| {
            say(&stream, &all);
            stay(stream);
        });
        assert!(error.contains("write 1 of 1000 was not seen within 4s (--timeout)"), "{error}");
        let error = server_of(&rig, way, |stream| {
            say(&stream, &all);
            stay(stream);
        });
        assert!(error.starts_with("write 1 of 1000"), "{error}");
    }
}

/// Two of ours that mean to do different things find out at once.
#[test]
fn ends_that_differ() {
    let rig = rig();
    for (server, client, what) in [
        (&["-n", "10"][..], &["-n", "20"][..], "--iters 20 here and 10 at the peer"),
        (&["-s", "8"], &["-s", "16"], "--size 16 here and --size 8 at the peer"),
        (&["-a"], &["-s", "16"], "--size 16 here and --all at the peer"),
        (&["--write-with-imm"], &[], "--write-with-imm at the peer"),
        (&["--batch", "2"], &[], "here and --batch at the peer"),
    ] {
        let port = port();
        let place = ["-d", &rig.device, "-p", &port];
        std::thread::scope(|scope| {
            let told = scope.spawn(|| failure(&[&place[..], server].concat()));
            wait_until_listening(&port);
            let error = failure(&[&place[..], client, &["localhost"]].concat());
            assert!(error.contains(what), "{error}");
            let told = told.join().expect("no panic");
            assert!(told.contains("at the peer: it must be the same at both ends"), "{told}");
        });
    }
    // With C's, batches cannot be.
    let error = server_of(&rig, &["--batch", "2"], |stream| {
        say(&stream, HELLO);
        stay(stream);
    });
    assert!(error.contains("does not know of it"), "{error}");
}

/// A client of batches that says it goes on, then nothing, or nonsense.
#[test]
fn batches_that_do_not_come() {
    let rig = rig();
    let plan = Plan { iters: 1000, size: 2, imm: false, batch: true };
    let mut all = plan.bytes().to_vec();
    all.extend(&HELLO.as_bytes()[16..]);
    all.extend(key(&rig).repeat(4).bytes());
    for (end, what) in [
        ("m", "more of the client's batches did not come within 4s"),
        ("mm?", "instead of more of the client's batches it sent \"?\""),
    ] {
        let told = [&all, end.as_bytes()].concat();
        let error = server_of(&rig, &["--batch", "2", "--timeout", "4"], move |mut stream| {
            let _ = stream.write_all(&told);
            stay(stream);
        });
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn bad_input() {
    let rig = rig();
    for (arguments, what) in [
        (&["-s", "0"][..], "--size 0: a message can be 1 to 8388608 bytes"),
        (&["-s", "8388609"], "--size 8388609: a message can be 1 to 8388608 bytes"),
        (&["-s", "18446744073709551615"], "a message can be 1 to 8388608 bytes"),
        (&["-n", "0"], "--iters 0: it can be 3 to 4294967295"),
        (&["--batch", "1,0"], "--batch 0: it can be 1 to 64"),
        (&["--batch", "65"], "--batch 65: it can be 1 to 64"),
        (&["-i", "2"], "has no port 2"),
        (&["-x", "77"], "port 1 index 77 is empty"),
        (&["-x", "1024"], "port 1 index 1024 is outside the table of 1024"),
        (&["-m", "4096", "-x", "4294967295"], "is outside the table of 1024"),
        (&["--cpu", "4000"], "--cpu 4000"),
        (&["--svg", "/no/such/folder/x.svg"], "/no/such/folder/x.svg: No such file"),
    ] {
        let both = ["--both", "-d", &rig.device, "--timeout", "8"];
        let error = failure(&[&both[..], arguments].concat());
        assert!(error.contains(what), "{arguments:?}: {error}");
    }
    let error = failure(&["--both", "-d", "no-such-device", "--svg", "/tmp/none.svg"]);
    assert!(error.contains("no RDMA device named \"no-such-device\""), "{error}");
    assert!(!Path::new("/tmp/none.svg").exists());
    let error = failure(&["-p", &port(), "-d", &rig.device, "localhost"]);
    assert!(error.contains("Connection refused"), "{error}");
    let error = failure(&["-p", &port(), "-d", &rig.device, "--timeout", "0.2"]);
    assert!(error.contains("a client did not come within 200ms"), "{error}");
    let error = failure(&["-d", &rig.device, "--doorbell", "default,plain"]);
    assert!(error.contains("--both"), "{error}");
    use clap::Parser;
    for arguments in [&["-n", "-1"][..], &["-m", "1000"], &["-a", "-s", "2"], &["--doorbell", "x"]]
    {
        let all = [&["write_lat"], arguments].concat();
        assert!(Options::try_parse_from(all).is_err(), "{arguments:?}");
    }
}

/// Too many bytes inline: as many as the device grants, and it goes on.
#[test]
fn too_much_inline() {
    let rig = rig();
    let rows = ours(&["--both", "-d", &rig.device, "-n", "20", "-I", "100000"]).expect("a row");
    let inline = rows[0]["inline"].as_u64().expect("a number");
    assert!((1..100_000).contains(&inline), "{inline}");
}
