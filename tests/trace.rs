//! What an operator sees by the feature `tracing`, on the interposer's device, with a subscriber of our own.

#![cfg(feature = "tracing")]

mod interposed;

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use interposed::rig::{Rig, open};
use interposed::{faults, interposed};
use rdma_verbs::{Connector, DeviceList, GidDirectory, InitOptions, PortNum, Resolver};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps every event and span of this crate as a line: level, text, fields.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl Subscriber for Seen {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "rdma_verbs"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line(format!("span {}", span.metadata().name()));
        span.record(&mut line);
        self.0.lock().expect("nobody panics").push(line.0);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().expect("nobody panics").push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Seen {
    /// What was seen since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("nobody panics"))
    }
}

/// What is seen while `act` runs.
fn seen<T>(act: impl FnOnce(&Seen) -> T) -> T {
    let seen = Seen::default();
    tracing::subscriber::with_default(seen.clone(), || act(&seen))
}

#[track_caller]
fn assert_seen(lines: &[String], wanted: &[&str]) {
    for wanted in wanted {
        assert!(lines.iter().any(|line| line.contains(wanted)), "{wanted:?} in {lines:#?}");
    }
}

interposed! {
    fn opening_and_a_refresh() {
        seen(|seen| {
            let context = open("loop0");
            let lines = seen.take();
            let opened = "INFO opened device=\"loop0\" ports=";
            assert_seen(&lines, &["span open device=\"loop0\"", opened]);
            assert_seen(&lines, &["INFO a GID table changed device=\"loop0\" port=1 came="]);
            // A lookup that finds nothing to take in says nothing.
            context.gids().checked().expect("from memory");
            context.gids().cached();
            assert_eq!(seen.take(), [] as [String; 0]);
            faults::gid_move(1, 9);
            context.gids().checked().expect("a read");
            let lines = seen.take();
            assert_seen(&lines, &["DEBUG an asynchronous event device=\"loop0\" event=GID_CHANGE port 1"]);
            assert_seen(&lines, &["DEBUG a GID row went device=\"loop0\" row=port 1 index 1 "]);
            assert_seen(&lines, &["DEBUG a GID row came device=\"loop0\" row=port 1 index 9 "]);
            assert_seen(&lines, &["INFO a GID table changed device=\"loop0\" port=1 came=1 went=1 rows="]);
            // Announced, and the same as before.
            assert_eq!(faults::raise(Some("loop0"), 18, 1), 1);
            context.gids().checked().expect("a read");
            assert_eq!(seen.take().len(), 1, "the event alone");
            faults::fail_every("_ibv_query_gid_table", libc::EIO, 1, None);
            context.gids().fresh().expect_err("it cannot be read");
            assert_seen(&seen.take(), &["WARN the GID tables could not be read device=\"loop0\" error="]);
        });
    }

    fn what_fails() {
        seen(|seen| {
            let list = DeviceList::new().expect("a list");
            faults::fail("ibv_open_device", libc::ENOMEM);
            list.find("loop0").expect("it is listed").open().expect_err("it fails");
            assert_seen(&seen.take(), &["WARN could not be opened device=\"loop0\" error=ibv_open_device"]);
            let rig = Rig::new();
            let queue_pair = rig.make();
            seen.take();
            faults::fail("ibv_modify_qp", libc::EINVAL);
            let failed = queue_pair.init(&InitOptions::new(PortNum::FIRST)).expect_err("it fails");
            let wanted = "WARN a queue pair's state could not be changed fault=loop0 ";
            assert_seen(&seen.take(), &[wanted]);
            interposed::leaks_on_purpose();
            faults::fail("ibv_destroy_qp", libc::EBUSY);
            drop(failed);
            let wanted = "ERROR an object could not be destroyed and stays device=\"loop0\" what=\"queue pair\"";
            assert_seen(&seen.take(), &[wanted]);
        });
    }

    fn a_directory_and_a_connection_that_fails() {
        seen(|seen| {
            let directory = GidDirectory::open().expect("a directory");
            let lines = seen.take();
            assert_seen(&lines, &["span rescan", "INFO a device came device=\"loop0\""]);
            let rig = Rig::new();
            let resolver = Resolver::open(&directory).expect("a resolver");
            seen.take();
            // A port that nobody listens on: one that was free a moment ago.
            let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = socket.local_addr().expect("an address");
            drop(socket);
            let connector = Connector::new(&resolver);
            let failed = connector.connect(address, rig.init(), rig.options(), Duration::from_secs(5));
            failed.expect_err("nobody listens");
            let wanted = format!("WARN not connected peer={address} error=");
            assert_seen(&seen.take(), &[&wanted]);
        });
    }

    /// Without a subscriber nothing is done for one.
    fn nobody_who_listens() {
        let context = open("loop0");
        faults::gid_move(1, 9);
        context.gids().checked().expect("a read");
        assert!(context.gids().cached().row(PortNum::FIRST, 9).is_some());
    }
}
