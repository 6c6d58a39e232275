//! Completion channels.

use std::ptr::null_mut;
use std::thread;
use std::time::Duration;

use super::rig::*;
use crate::channel::{ibv_ack_cq_events, ibv_get_cq_event};
use crate::control::*;
use crate::cq::{ibv_destroy_cq, req_notify};
use crate::numbers::flag;
use crate::qp::ibv_destroy_qp;

/// Takes an event: what it gave, or the errno.
fn event(rig: &Rig) -> Result<(), i32> {
    let (mut cq, mut context) = (null_mut(), null_mut());
    // SAFETY: there is room for both.
    match unsafe { ibv_get_cq_event(rig.channel, &mut cq, &mut context) } {
        0 => {
            assert_eq!(cq, rig.cq);
            Ok(())
        }
        _ => Err(std::io::Error::last_os_error().raw_os_error().expect("an errno")),
    }
}

fn never_wait(rig: &Rig) {
    // SAFETY: the channel and its descriptor are there.
    unsafe { libc::fcntl((*rig.channel).fd, libc::F_SETFL, libc::O_NONBLOCK) };
}

fn arm(rig: &Rig, solicited_only: i32) {
    // SAFETY: the queue is there.
    assert_eq!(unsafe { req_notify(rig.cq, solicited_only) }, 0);
}

fn message(rig: &Rig, flags: u32) {
    let [a, b] = rig.qps;
    assert_eq!(post_recv(b, 1, &mut []), 0);
    let mut wr = send_wr(2, &[]);
    wr.send_flags = flags;
    post_send(a, wr);
    rig.poll();
}

#[test]
fn a_channel_tells_once_for_each_time_it_is_asked() {
    let rig = Rig::new();
    never_wait(&rig);
    message(&rig, 0);
    assert_eq!(event(&rig), Err(libc::EAGAIN), "not asked");
    arm(&rig, 0);
    assert_eq!(event(&rig), Err(libc::EAGAIN), "nothing came since");
    message(&rig, 0);
    message(&rig, 0);
    assert_eq!((event(&rig), event(&rig)), (Ok(()), Err(libc::EAGAIN)));
    arm(&rig, 1);
    message(&rig, flag::SIGNALED);
    assert_eq!(event(&rig), Err(libc::EAGAIN), "nobody solicited");
    message(&rig, flag::SOLICITED);
    assert_eq!(event(&rig), Ok(()));
    arm(&rig, 1);
    assert_eq!(rdma_fault_break(rig.qps[0].cast()), 0);
    assert_eq!(event(&rig), Err(libc::EAGAIN), "nothing was flushed");
    assert_eq!(post_recv(rig.qps[0], 3, &mut []), 0);
    assert_eq!(event(&rig), Ok(()), "a failure counts as solicited");
    ibv_ack_cq_events(rig.cq, 3);
}

#[test]
fn a_reader_is_woken_and_a_destruction_waits_for_its_word() {
    let rig = Rig::new();
    arm(&rig, 0);
    let [cq, channel] = [rig.cq.expose_provenance(), rig.channel.expose_provenance()];
    let reader = thread::spawn(move || {
        let (mut told, mut context) = (null_mut(), null_mut());
        let channel = std::ptr::with_exposed_provenance_mut(channel);
        // SAFETY: there is room for both, and the channel is there.
        assert_eq!(unsafe { ibv_get_cq_event(channel, &mut told, &mut context) }, 0);
        thread::sleep(Duration::from_millis(50));
        ibv_ack_cq_events(std::ptr::with_exposed_provenance_mut(cq), 1);
    });
    thread::sleep(Duration::from_millis(20));
    message(&rig, 0);
    // Wait until the reader has it, so that it is not taken from under it.
    while count("get_cq_event") == 0 || !taken(&rig) {
        thread::yield_now();
    }
    for qp in rig.qps {
        assert_eq!(ibv_destroy_qp(qp), 0);
    }
    assert_eq!(ibv_destroy_cq(rig.cq), 0);
    assert_eq!(count("ack_cq_events"), 1);
    reader.join().expect("the reader");
}

fn taken(rig: &Rig) -> bool {
    crate::world::world().cqs.get(&rig.cq.addr()).is_some_and(|cq| cq.acks.taken == 1)
}

#[test]
fn what_nobody_took_goes_with_the_queue() {
    let rig = Rig::new();
    never_wait(&rig);
    arm(&rig, 0);
    message(&rig, 0);
    assert_eq!(rdma_fault_wake(rig.cq), 0);
    for qp in rig.qps {
        assert_eq!(ibv_destroy_qp(qp), 0);
    }
    assert_eq!(ibv_destroy_cq(rig.cq), 0);
    assert_eq!(event(&rig), Err(libc::EAGAIN));
}

/// A reader that arms, drains, then waits, and a writer that does not wait for it: no wake-up is lost.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: usize = 20_000;
    let rig = Rig::new();
    let [a, b] = rig.qps;
    let ids = [rig.cq.expose_provenance(), rig.channel.expose_provenance()];
    let reader = thread::spawn(move || {
        let [cq, channel] = ids;
        let cq = std::ptr::with_exposed_provenance_mut(cq);
        let channel = std::ptr::with_exposed_provenance_mut(channel);
        let (mut told, mut events) = (0, 0);
        while told < ROUNDS * 2 {
            // SAFETY: the queue is there.
            assert_eq!(unsafe { req_notify(cq, 0) }, 0);
            loop {
                let count = poll_all(cq).len();
                told += count;
                if count == 0 {
                    break;
                }
            }
            if told < ROUNDS * 2 {
                let (mut from, mut context) = (null_mut(), null_mut());
                // SAFETY: there is room for both.
                assert_eq!(unsafe { ibv_get_cq_event(channel, &mut from, &mut context) }, 0);
                events += 1;
            }
        }
        ibv_ack_cq_events(cq, events);
    });
    let mut sent = 0;
    while sent < ROUNDS {
        // Full for a moment, when the reader is behind.
        if post_recv(b, 1, &mut []) != 0 {
            thread::yield_now();
            continue;
        }
        while post_sends(a, &mut [send_wr(2, &[])]).0 != 0 {
            thread::yield_now();
        }
        sent += 1;
    }
    reader.join().expect("the reader");
}
