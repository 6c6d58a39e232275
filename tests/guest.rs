//! The rxe guest, seen from outside: `tests/rxe/run` with real programs, and what comes of each.
//!
//! This test runs on the host. It fails where the guest is not set up: run `tests/rxe/setup`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rxe/run");

/// The exit codes of `tests/rxe/run` itself.
const GUEST_GONE: i32 = 123;
const DEADLINE: i32 = 124;
const NO_GUEST: i32 = 125;
const NOT_STARTED: i32 = 126;
const NOT_FOUND: i32 = 127;
const SIGNAL: i32 = 128;

/// A call of the runner, without what the caller's own environment says of scenes and guests.
fn runner(args: &[&str]) -> Command {
    let mut command = Command::new(RUN);
    command.args(args).stdin(Stdio::null());
    for variable in
        ["RDMA_RXE", "RDMA_RXE_SCENE", "RDMA_RXE_IN", "RDMA_RXE_WITH", "RDMA_RXE_TIMEOUT"]
    {
        command.env_remove(variable);
    }
    // Nothing here takes long: what hangs shall not hang for the default ten minutes.
    command.env("RDMA_RXE_TIMEOUT", "60");
    command
}

/// A script in the guest.
fn script(text: &str) -> Command {
    runner(&["sh", "-euc", text])
}

fn output(command: &mut Command) -> Output {
    command.output().expect("tests/rxe/run can be started")
}

/// Standard output of a call that must succeed.
fn success(command: &mut Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, stderr(&output));
    stdout(&output)
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder of one test, gone after it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("guest-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_program_says_how_it_ended() {
    assert_eq!(success(&mut runner(&["echo", "a  b", "", "ü"])), "a  b  ü\n");
    for code in [1, 7, 255] {
        assert_eq!(output(&mut script(&format!("exit {code}"))).status.code(), Some(code));
    }
}

#[test]
fn death_by_signal_is_told_by_name() {
    for (name, number) in [("SEGV", 11), ("KILL", 9)] {
        let output = output(&mut script(&format!("kill -{name} $$")));
        assert_eq!(output.status.code(), Some(SIGNAL + number));
        assert_eq!(stderr(&output), format!("rxe: sh was killed by SIG{name}\n"));
    }
}

#[test]
fn a_hang_ends_at_the_deadline() {
    let begin = Instant::now();
    let mut command = script("echo before; sleep 1000; echo after");
    let output = output(command.env("RDMA_RXE_TIMEOUT", "1"));
    assert_eq!(output.status.code(), Some(DEADLINE));
    assert_eq!(stdout(&output), "before\n");
    assert!(stderr(&output).contains("did not end within 1 s"), "{}", stderr(&output));
    assert!(console_log(&output).is_file());
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn a_guest_that_answers_no_more_ends_at_the_deadline() {
    // The parent is the guest's agent, which alone could end the program.
    let mut command = script("kill -STOP $PPID; sleep 1000");
    let output = output(command.env("RDMA_RXE_TIMEOUT", "1"));
    assert_eq!(output.status.code(), Some(DEADLINE));
}

#[test]
fn a_kernel_panic_is_told_with_the_log() {
    let output = output(&mut script("echo before; echo c >/proc/sysrq-trigger; sleep 1000"));
    assert_eq!(output.status.code(), Some(GUEST_GONE));
    assert!(stderr(&output).contains("the guest's kernel panicked"), "{}", stderr(&output));
    let log = fs::read_to_string(console_log(&output)).unwrap();
    assert!(log.contains("Kernel panic"), "{log}");
}

#[test]
fn a_file_that_cannot_come_back_is_told() {
    let folder = Folder::new("unwritten");
    fs::create_dir(folder.0.join("there")).unwrap();
    let output = output(script("echo text >there").current_dir(&folder.0));
    assert_eq!(output.status.code(), Some(NO_GUEST));
    assert!(stderr(&output).contains("cannot write"), "{}", stderr(&output));
}

/// The path that the runner's last line names.
fn console_log(output: &Output) -> PathBuf {
    let text = stderr(output);
    let (_, path) = text.trim_end().rsplit_once("console log: ").expect("a console log is named");
    path.into()
}

#[test]
fn what_does_not_exist_is_told() {
    let unknown = output(&mut runner(&["no-such-program"]));
    assert_eq!(unknown.status.code(), Some(NOT_FOUND));
    assert_eq!(stderr(&unknown), "rxe: no program no-such-program in the guest\n");

    let unfit = output(&mut runner(&["--guest", "/etc"]));
    assert_eq!(unfit.status.code(), Some(NOT_STARTED), "{}", stderr(&unfit));

    for (variable, value) in [
        ("RDMA_RXE_SCENE", "no-such-scene"),
        ("RDMA_RXE_SCENE", "/no/such/script"),
        ("RDMA_RXE_DEBIAN", "11"),
        ("RDMA_RXE_TIMEOUT", "soon"),
        ("RDMA_RXE_WITH", "/no/such/file"),
    ] {
        let output = output(runner(&["true"]).env(variable, value));
        assert_eq!(output.status.code(), Some(NO_GUEST), "{variable}={value}");
        assert!(stderr(&output).contains(value), "{variable}={value}: {}", stderr(&output));
    }
}

#[test]
fn the_two_streams_stay_apart_and_whole() {
    const LINES: usize = 500_000;
    let text = format!(
        "yes output | head -n {LINES} & yes errors | head -n {LINES} >&2 & wait; \
         echo kernel >/dev/kmsg"
    );
    let output = output(&mut script(&text));
    assert!(output.status.success());
    assert!(output.stdout == b"output\n".repeat(LINES), "{} bytes", output.stdout.len());
    assert!(output.stderr == b"errors\n".repeat(LINES), "{} bytes", output.stderr.len());
}

#[test]
fn a_reader_who_leaves_ends_the_program() {
    let mut child = runner(&["yes"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(SIGNAL + 13));
}

#[test]
fn standard_input_arrives() {
    let data: Vec<u8> = (0..3_000_000u32).flat_map(|n| n.to_le_bytes()).collect();
    let mut child = runner(&["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = data.clone();
    let writer = thread::spawn(move || stdin.write_all(&sent));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    assert!(output.stdout == data, "{} bytes", output.stdout.len());
}

#[test]
fn only_named_variables_go_along() {
    let folder = Folder::new("environment");
    let mut command = script("pwd; env | sort");
    command.current_dir(&folder.0).env_clear().env("PATH", "/usr/bin:/bin");
    command.env("RDMA_A", "1 2").env("RUST_B", "").env("OTHER", "x");
    let text = success(&mut command);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(Path::new(lines[0]), folder.0);
    assert!(lines.contains(&"RDMA_A=1 2") && lines.contains(&"RUST_B="), "{text}");
    assert!(!text.contains("OTHER"), "{text}");
}

#[test]
fn files_written_come_back() {
    let folder = Folder::new("files");
    fs::write(folder.0.join("changed"), "before").unwrap();
    fs::write(folder.0.join("kept"), "before").unwrap();
    let text = "mkdir -p a/b; head -c 3000000 /dev/zero >a/b/zeros; echo after >changed; \
                echo run >tool; chmod 755 tool; ln -s a/b/zeros link; echo else >/root/elsewhere; \
                exit 7";
    let output = output(script(text).current_dir(&folder.0));
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(fs::read(folder.0.join("a/b/zeros")).unwrap() == vec![0; 3_000_000]);
    assert_eq!(fs::read_to_string(folder.0.join("changed")).unwrap(), "after\n");
    assert_eq!(fs::read_to_string(folder.0.join("kept")).unwrap(), "before");
    assert_eq!(fs::read_link(folder.0.join("link")).unwrap(), Path::new("a/b/zeros"));
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(folder.0.join("tool")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 5);
}

#[test]
fn every_run_begins_in_the_same_state_but_not_with_the_same_random_numbers() {
    let text = "ls /run/mark 2>/dev/null || true; touch /run/mark; ip link del d0; \
                od -An -tx8 -N16 /dev/urandom; date +%s";
    let [first, second] = [(); 2].map(|()| success(&mut script(text)));
    let [first, second] = [&first, &second].map(|text| text.lines().collect::<Vec<_>>());
    assert_eq!((first.len(), second.len()), (2, 2), "{first:?} {second:?}");
    assert_ne!(first[0], second[0]);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!(second[1].parse::<u64>().unwrap().abs_diff(now) < 30, "{} {now}", second[1]);
}

#[test]
fn programs_can_be_brought_along() {
    let folder = Folder::new("with");
    let peer = folder.0.join("peer");
    fs::write(&peer, "#!/bin/sh\necho peer $1\n").unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&peer, fs::Permissions::from_mode(0o755)).unwrap();
    let peer = peer.to_str().unwrap();

    let text = format!("peer 1; {peer} 2");
    assert_eq!(success(&mut runner(&["--with", peer, "sh", "-euc", &text])), "peer 1\npeer 2\n");
    assert_eq!(success(script("peer 3").env("RDMA_RXE_WITH", peer)), "peer 3\n");
    assert_eq!(success(&mut runner(&["--guest", peer, "4"])), "peer 4\n");
}

#[test]
fn what_is_not_for_the_guest_runs_here() {
    let here = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let release = ["cat", "/proc/sys/kernel/osrelease"];
    assert_eq!(success(&mut runner(&["/bin/cat", release[1]])), here);
    assert_eq!(success(runner(&release).env("RDMA_RXE", "host")), here);
    assert_ne!(success(&mut runner(&release)), here);
}

#[test]
fn the_default_scene_has_three_devices() {
    let text =
        success(&mut script("for device in rxe0 rxe1 rxe2; do ibv_devinfo -v -d $device; done"));
    for gid in [
        "::ffff:192.0.2.10",
        "::ffff:198.51.100.10",
        "::ffff:198.51.100.11",
        "2001:db8:1::10",
        "::ffff:203.0.113.10",
        "::ffff:192.0.2.130",
        "2001:db8:2::10",
    ] {
        assert!(text.lines().any(|line| line.contains(&format!("{gid},"))), "{gid}\n{text}");
    }
    assert_eq!(text.matches("PORT_ACTIVE (").count(), 3, "{text}");
}

#[test]
fn other_scenes_have_what_was_asked_for() {
    let rows = "cat /sys/class/infiniband/*/ports/1/gids/* | grep -cv '^[0:]*$' || true";
    assert_eq!(success(script(rows).env("RDMA_RXE_SCENE", "2x64")), "130\n");

    let modules =
        "ls /sys/class/infiniband 2>/dev/null | wc -l; grep -c ^rdma_rxe /proc/modules || true";
    assert_eq!(success(script(modules).env("RDMA_RXE_SCENE", "bare")), "0\n1\n");
    assert_eq!(success(script(modules).env("RDMA_RXE_SCENE", "none")), "0\n0\n");

    let folder = Folder::new("scene");
    let own = folder.0.join("own");
    fs::write(&own, ". \"${0%/*}/lib\"\nload\necho made >/run/made\n").unwrap();
    assert_eq!(success(script("cat /run/made").env("RDMA_RXE_SCENE", &own)), "made\n");

    let failing = folder.0.join("failing");
    fs::write(&failing, "echo no luck >&2\nfalse\n").unwrap();
    let output = output(runner(&["true"]).env("RDMA_RXE_SCENE", &failing));
    assert_eq!(output.status.code(), Some(NO_GUEST));
    assert!(stderr(&output).contains("no luck"), "{}", stderr(&output));
}

/// A living guest of one test, ended after it.
struct Shared(String);

impl Shared {
    fn new(name: &str) -> Shared {
        Shared(format!("test-{name}-{}", std::process::id()))
    }

    fn script(&self, text: &str) -> Command {
        runner(&["--in", &self.0, "sh", "-euc", text])
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let stopped = runner(&["--stop", &self.0]).status().is_ok_and(|status| status.success());
        assert!(stopped || thread::panicking());
    }
}

#[test]
fn server_and_client_share_a_guest() {
    let guest = Shared::new("pingpong");
    // The index is looked up, not guessed.
    let pingpong = "row=$(grep -l ffff:c000:020a /sys/class/infiniband/rxe0/ports/1/gids/*); \
                    exec ibv_rc_pingpong -d rxe0 -g ${row##*/} -n 100";
    let mut server = guest.script(pingpong);
    let server = thread::spawn(move || output(&mut server));
    let wait = "n=0; until netstat -ltn | grep -q :18515; do \
                n=$((n + 1)); [ $n -lt 500 ]; usleep 20000; done;";
    let client = output(&mut guest.script(&format!("{wait} {pingpong} 127.0.0.1")));
    let server = server.join().unwrap();
    for output in [client, server] {
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains("100 iters in"), "{}", stdout(&output));
        assert!(stdout(&output).contains("GID ::ffff:192.0.2.10"), "{}", stdout(&output));
    }
}

#[test]
fn a_shared_guest_keeps_its_state_and_survives_its_callers() {
    let guest = Shared::new("state");
    success(&mut guest.script("echo kept >/run/state"));
    assert_eq!(success(&mut guest.script("cat /run/state")), "kept\n");

    // A caller who dies takes its program along, and nothing else.
    let mut caller =
        guest.script("echo up; exec sleep 1234").stdout(Stdio::piped()).spawn().unwrap();
    let mut up = [0; 3];
    std::io::Read::read_exact(caller.stdout.as_mut().unwrap(), &mut up).unwrap();
    caller.kill().unwrap();
    caller.wait().unwrap();
    let gone = "n=0; while ps | grep -q 'sleep 123[4]'; do n=$((n + 1)); [ $n -lt 500 ]; usleep 10000; done";
    success(&mut guest.script(&format!("{gone}; cat /run/state")));

    let other = output(guest.script("true").env("RDMA_RXE_SCENE", "bare"));
    assert_eq!(other.status.code(), Some(NO_GUEST));
    assert!(stderr(&other).contains("another scene"), "{}", stderr(&other));

    // After a panic the name stands for a new guest.
    let panic = output(&mut guest.script("echo c >/proc/sysrq-trigger; sleep 1000"));
    assert_eq!(panic.status.code(), Some(GUEST_GONE), "{}", stderr(&panic));
    assert_eq!(success(&mut guest.script("ls /run/state 2>/dev/null || echo new")), "new\n");
}
