//! The program `gids` as people meet it, in a guest: what it prints, and how it fails.

use std::path::PathBuf;
use std::process::{Command, Output};

/// The example that was built with this test.
fn program() -> PathBuf {
    let me = std::env::current_exe().expect("own path");
    let program = me.ancestors().nth(2).expect("target/<profile>").join("examples/gids");
    assert!(program.exists(), "{} is not built: cargo build --examples", program.display());
    program
}

/// Runs it in a guest with this scene.
fn gids(scene: &str, arguments: &[&str]) -> Output {
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rxe/run"))
        .arg(program())
        .args(arguments)
        .env("RDMA_RXE_SCENE", scene)
        .output()
        .expect("the runner starts")
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("text")
}

/// The one line of a failure: exit 1, nothing on stdout.
fn failure(output: &Output) -> &str {
    let stderr = std::str::from_utf8(&output.stderr).expect("text");
    assert_eq!((output.status.code(), stdout(output)), (Some(1), ""), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr.trim_end()
}

#[test]
fn a_table_of_every_device() {
    let output = gids("default", &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let lines: Vec<Vec<&str>> =
        stdout(&output).lines().map(|line| line.split_whitespace().collect()).collect();
    let heading = ["DEV", "PORT", "INDEX", "GID", "IPv4", "TYPE", "NETDEV", "LINK", "STATE"];
    assert_eq!(lines[0], heading);
    let rows = &lines[1..lines.len() - 1];
    assert_eq!(lines[lines.len() - 1], [format!("n_gids_found={}", rows.len())]);
    for device in ["rxe0", "rxe1", "rxe2"] {
        assert!(rows.iter().any(|row| row[0] == device), "{device}");
    }
    let gid = "0000:0000:0000:0000:0000:ffff:c633:640a";
    let row = rows.iter().find(|row| row[3] == gid).expect("198.51.100.10 is there");
    assert_eq!(row[4..], ["198.51.100.10", "RoCE", "v2", "e0", "Ethernet", "ACTIVE"]);
}

#[test]
fn one_address_by_any_of_its_names() {
    for wanted in ["198.51.100.10", "::ffff:198.51.100.10", "::ffff:c633:640a"] {
        let output = gids("default", &["--find", wanted]);
        assert!(output.status.success(), "{output:?}");
        assert!(stdout(&output).ends_with("n_gids_found=1\n"), "{wanted}: {output:?}");
        assert!(stdout(&output).contains(" 198.51.100.10 "), "{wanted}: {output:?}");
    }
    let output = gids("default", &["--find", "e0.100", "--device", "rxe1", "--port", "1"]);
    assert!(output.status.success(), "{output:?}");
    let of_vlan = stdout(&output).lines().filter(|line| line.contains(" e0.100 ")).count();
    assert_eq!(of_vlan + 2, stdout(&output).lines().count(), "{output:?}");
}

#[test]
fn what_is_not_there_is_told_on_one_line() {
    let output = gids("default", &["--find", "203.0.113.99"]);
    let error = failure(&output);
    assert!(error.starts_with("gids: no row carries IP 203.0.113.99; "), "{error}");
    assert!(error.contains(" of rxe0, "), "{error}");
    let output = gids("default", &["--device", "rxe9"]);
    assert_eq!(failure(&output), "gids: no RDMA device named \"rxe9\"; there is rxe0, rxe1, rxe2");
    let output = gids("default", &["--port", "9"]);
    assert_eq!(failure(&output), "gids: no device here has a port 9; the highest is 1");
}

#[test]
fn a_machine_without_a_device_is_told_what_to_do() {
    // Without any module loaded, libibverbs's own question makes the kernel load the first.
    for scene in ["none", "bare"] {
        let output = gids(scene, &[]);
        assert!(failure(&output).starts_with("gids: no RDMA device: "), "{scene}: {output:?}");
    }
}

#[test]
fn eight_devices_of_two_hundred_and_fifty() {
    let output = gids("8x250", &["--json"]);
    assert!(output.status.success(), "{output:?}");
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = rows.as_array().expect("one array");
    let ipv4 = rows.iter().filter(|row| row["ipv4"].is_string()).count();
    assert_eq!(ipv4, 2000);
}

#[test]
fn towards_an_address_and_why() {
    let output = gids("default", &["--for", "198.51.100.77"]);
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<&str> = stdout(&output).lines().collect();
    assert_eq!(lines[0], "rxe1 port 1 index 2 ::ffff:198.51.100.10 RoCE v2 e0");
    assert!(lines[3].ends_with("best"), "{lines:?}");
    // Every row of the table, with a reason.
    assert_eq!(lines.len(), 3 + 11);
    let json = gids("default", &["--for", "198.51.100.77", "--json"]);
    let rows: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!((&rows[0]["taken"], &rows[0]["index"]), (&true.into(), &2.into()));
    assert!(rows.as_array().expect("rows").iter().all(|row| row["reason"].is_string()));

    let none = gids("default", &["--for", "224.0.0.1"]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    assert_eq!(String::from_utf8_lossy(&none.stderr), "gids: no GID fits peer 224.0.0.1\n");
    assert_eq!(stdout(&none).lines().count(), 1 + 11, "and why not each of them");
    let bad = gids("default", &["--subnet", "198.51.100.0/33"]);
    assert_eq!(bad.status.code(), Some(2), "{bad:?}");
    assert!(String::from_utf8_lossy(&bad.stderr).contains("from 0 to 32"), "{bad:?}");
}

/// Each change, as it happens.
#[test]
fn watching() {
    let script = r#"
        cd /tmp
        until_seen() {
            tries=0
            until grep -q -e "$1" seen; do
                tries=$((tries + 1))
                if [ $tries -eq 1000 ]; then echo "never seen: $1" >&2; exit 9; fi
                sleep 0.02
            done
        }
        gids --watch --seconds 60 --device rxe0 > seen &
        until_seen n_gids_found
        ip addr add 192.0.2.77/32 dev d0
        until_seen '^+ '
        ip addr del 192.0.2.77/32 dev d0
        until_seen '^- '
        kill $!
        cat seen"#;
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rxe/run"))
        .arg("--with")
        .arg(program())
        .args(["sh", "-c", script])
        .output()
        .expect("the runner starts");
    assert!(output.status.success(), "{output:?}");
    let changes: Vec<&str> =
        stdout(&output).lines().skip_while(|line| !line.starts_with("n_gids")).skip(1).collect();
    // The address goes before its row does: by then the row may be of no netdev here.
    let row = "rxe0 port 1 index 2 ::ffff:192.0.2.77 RoCE v2 ";
    let [added, removed] = changes[..] else { panic!("{output:?}") };
    assert!(added.starts_with(&format!("+ {row}")), "{added}");
    assert!(removed.starts_with(&format!("- {row}")), "{removed}");
    assert!(changes.iter().all(|change| change.ends_with(" us)")), "{output:?}");
}
