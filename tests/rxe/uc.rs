//! Queue pairs of the unreliable connected transport, on rxe.

use std::time::Duration;

use rdma_verbs::transport::Uc;
use rdma_verbs::wr::{Inline, Receive, Send, Write};
use rdma_verbs::{
    CompletionQueue, Exposed, Init, InitOptions, Pool, QueuePair, RemoteAccess, Rts, WcOpcode,
    WcStatus,
};

use super::rc::{Ground, bytes, completions, everything};
use super::rig::Rig;

fn in_init(ground: &Ground, cq: &CompletionQueue, access: RemoteAccess) -> QueuePair<Init, Uc> {
    let made = QueuePair::uc(&ground.pd, cq, cq).max_inline(64).max_send_sge(2);
    let made = made.send_depth(16).recv_depth(16).build().expect("a queue pair");
    made.init(&InitOptions::new(ground.row.port()).access(access)).expect("to INIT")
}

/// Two, connected to each other; the second has so many receives, numbered from 100.
fn pair(
    ground: &Ground,
    cq: &CompletionQueue,
    pool: &Pool,
    receives: u64,
    access: RemoteAccess,
) -> (QueuePair<Rts, Uc>, QueuePair<Rts, Uc>) {
    let (a, mut b) = (in_init(ground, cq, access), in_init(ground, cq, access));
    for wr_id in 100..100 + receives {
        let receive = Receive::new(pool.take().expect("a buffer")).wr_id(wr_id);
        b.recv_queue().post(receive).expect("room");
    }
    let options = ground.options();
    let at_a = a.endpoint(&options).expect("an address");
    let at_b = b.endpoint(&options).expect("an address");
    let a = a.connect(&at_b, &options).expect("connected");
    let b = b.connect(&at_a, &options).expect("connected");
    (a, b)
}

#[test]
fn messages_and_writes() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut cq = ground.cq(128);
    let pool = Pool::new(&ground.pd, 4096, 16).expect("a pool");
    let (mut a, b) = pair(&ground, &cq, &pool, 4, everything());
    assert_eq!(b.source().map(|row| row.gid()), Some(ground.row.gid()));
    let exposed = Exposed::new(&ground.pd, 4096, everything()).expect("memory");
    let remote = exposed.remote();
    let long: Vec<u8> = (0..4096_u32).map(|at| at as u8).collect();
    let mut buffer = pool.take().expect("a buffer");
    buffer.fill_from(&long).expect("it fits");
    let sends = a.send_queue();
    sends.post(Send::new(Inline(b"inline")).imm(7).wr_id(1)).expect("room");
    // Of several packets.
    sends.post(Send::new(buffer).wr_id(2)).expect("room");
    sends.post(Write::new(Inline(b"written"), remote).wr_id(3)).expect("room");
    let at = remote.slice(100, 5).expect("inside");
    sends.post(Write::new(Inline(b"named"), at).imm(0xfeed).wr_id(4)).expect("room");
    sends.post(Send::new(()).wr_id(5).signaled()).expect("room");
    let seen = completions(&mut cq, 9);
    assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{seen:?}");
    let came = &seen[5..];
    assert_eq!((bytes(&came[0].memory[0]), came[0].imm), (&b"inline"[..], Some(7)));
    assert_eq!(bytes(&came[1].memory[0]), long);
    assert_eq!((came[2].opcode, came[2].imm), (WcOpcode::RECV_RDMA_WITH_IMM, Some(0xfeed)));
    assert_eq!(came[3].byte_len, 0);
    let mut there = [0; 5];
    exposed.read(100, &mut there).expect("inside");
    assert_eq!(&there, b"named");
    exposed.read(0, &mut there).expect("inside");
    assert_eq!(&there, b"writt");
    drop((seen, a, b));
    assert_eq!(pool.available(), 16);
    assert_eq!((cq.strays(), ground.context.leaks()), (0, 0));
}

/// A flush needs no leave of the peer: one that allows no writes drops it, and goes on.
#[test]
fn flushed_where_writes_are_not_allowed() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut cq = ground.cq(128);
    let pool = Pool::new(&ground.pd, 256, 16).expect("a pool");
    let (mut a, mut b) = pair(&ground, &cq, &pool, 2, RemoteAccess::from_bits(0));
    let sends = a.send_queue();
    for wr_id in 0..2 {
        sends.post(Send::new(Inline(b"before")).wr_id(wr_id)).expect("room");
        assert!(sends.flush().expect("no leave is needed"));
        let seen = completions(&mut cq, 2);
        assert!(seen.iter().all(|seen| seen.status == WcStatus::SUCCESS), "{seen:?}");
        assert!(seen[0].silent && !sends.flush().expect("nothing to flush"));
    }
    b.recv_queue().post(Receive::new(pool.take().expect("a buffer")).wr_id(9)).expect("room");
    sends.post(Send::new(Inline(b"after")).signaled()).expect("room");
    let seen = completions(&mut cq, 2);
    assert_eq!(bytes(&seen[1].memory[0]), b"after");
    assert_eq!(b.state().expect("a state"), rdma_verbs::QpState::RTS);
}

/// What is lost nobody is told of: a message that finds no receive is complete, and the next arrives.
#[test]
fn a_message_that_finds_no_receive_is_lost() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut cq = ground.cq(128);
    let pool = Pool::new(&ground.pd, 256, 16).expect("a pool");
    let (mut a, mut b) = pair(&ground, &cq, &pool, 0, everything());
    a.send_queue().post(Send::new(Inline(b"lost")).signaled()).expect("room");
    assert_eq!(completions(&mut cq, 1)[0].status, WcStatus::SUCCESS);
    // It is carried out when its completion comes, or on its way: the device takes the next after it.
    b.recv_queue().post(Receive::new(pool.take().expect("a buffer")).wr_id(9)).expect("room");
    a.send_queue().post(Send::new(Inline(b"comes")).signaled()).expect("room");
    let seen = completions(&mut cq, 2);
    let text = bytes(&seen[1].memory[0]);
    assert!(text == b"comes" || text == b"lost", "{seen:?}");
}

#[test]
fn closed_and_finished() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut cq = ground.cq(128);
    let pool = Pool::new(&ground.pd, 256, 16).expect("a pool");
    let (mut a, b) = pair(&ground, &cq, &pool, 8, everything());
    for wr_id in 0..3 {
        a.send_queue().post(Send::new(Inline(b"silent")).wr_id(wr_id)).expect("room");
    }
    let mut seen = Vec::new();
    for queue_pair in [a, b] {
        let each = |completion: rdma_verbs::Completion<'_>| seen.push(completion.wr_id());
        queue_pair.finish_polling(&mut [&mut cq], Duration::from_secs(5), each).expect("polled");
    }
    seen.sort();
    let all: Vec<u64> = (0..3).chain(100..108).collect();
    assert_eq!(seen, all);
    assert_eq!(pool.available(), 16);
}

/// Any order of dropping, with messages in flight and completions not looked at.
#[test]
fn everything_in_any_order() {
    let rig = Rig::new();
    let ground = Ground::new(&rig);
    let mut random = super::seed::Random::new("uc::everything_in_any_order");
    for _ in 0..40 {
        let cq = ground.cq(128);
        let pool = Pool::new(&ground.pd, 256, 16).expect("a pool");
        let (mut a, b) = pair(&ground, &cq, &pool, 4, everything());
        for _ in 0..8 {
            let buffer = pool.take().expect("a buffer");
            a.send_queue().post(Send::new(buffer)).expect("room");
        }
        let (send, recv) = a.split();
        let mut all: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(cq), Box::new(pool), Box::new(send), Box::new(recv), Box::new(b)];
        while !all.is_empty() {
            drop(all.swap_remove(random.below(all.len() as u32) as usize));
        }
    }
    assert_eq!(ground.context.leaks(), 0);
}
