//! Whatever is posted, completions and memory are those of the classic calls.

use std::fmt::Write as _;

use rdma_verbs::wr::{
    Bind, CompareSwap, Datagram, FetchAdd, Inline, LocalInvalidate, Read, Receive, Send, Write,
};
use rdma_verbs::{
    AddressHandle, AddressVector, Calls, Exposed, Memory, MemoryWindow, QKey, QueuePair, RKey,
    RemoteAccess, RemoteSlice, Rts,
};

use crate::interposed::rig::{Random, Rig, everything};
use crate::interposed::{faults, interposed};

/// Everything that can be seen of the completions there are; windows are kept.
fn log(rig: &mut Rig, text: &mut String, windows: &mut Vec<MemoryWindow>) {
    loop {
        let mut drain = rig.cq.poll().expect("it can be polled");
        let mut nothing = true;
        while let Some(mut completion) = drain.next() {
            nothing = false;
            let (status, opcode) = (completion.status(), completion.opcode());
            write!(text, "{} {opcode} {status} ", completion.wr_id()).expect("a text");
            let (len, imm) = (completion.byte_len(), completion.imm());
            let (key, silent) = (completion.invalidated(), completion.is_silent());
            write!(text, "{len} {imm:?} {key:?} {silent} {:?}", completion.datagram())
                .expect("a text");
            while let Some(memory) = completion.take() {
                match memory {
                    Memory::Buffer(buffer) => write!(text, " {:x?}", &buffer[..]),
                    Memory::Shared(buffer) => write!(text, " shared {:x?}", &buffer[..]),
                    Memory::Window(window) => {
                        let remote = window.remote().map(|remote| remote.len());
                        windows.push(window);
                        write!(text, " window of {remote:?}")
                    }
                    other => write!(text, " {other:?}"),
                }
                .expect("a text");
            }
            text.push('\n');
        }
        if nothing {
            return;
        }
    }
}

/// A request of each kind, as chance has it.
fn post(rig: &Rig, qp: &mut QueuePair<Rts>, to: RemoteSlice, random: &mut Random, wr_id: u64) {
    let byte = wr_id as u8;
    let bytes: Vec<u8> = (0..random.below(60)).map(|at| byte.wrapping_add(at as u8)).collect();
    let word = || {
        let mut buffer = rig.take();
        buffer.set_len(8).expect("it fits");
        buffer
    };
    let place = to.slice(8 * random.below(4) as u64, 8).expect("inside");
    let sends = qp.send_queue();
    let signaled = random.once_in(3);
    // What is refused is refused by either, and says the same.
    macro_rules! post {
        ($request:expr) => {{
            let request = $request.wr_id(wr_id);
            let request = if signaled { request.signaled() } else { request };
            sends.post(request).map_err(|refused| refused.to_string())
        }};
    }
    let done = match random.below(12) {
        0 => post!(Send::new(rig.filled(&bytes))),
        1 => post!(Send::new(Inline(&bytes)).imm(wr_id as u32)),
        2 => post!(Send::new((rig.filled(&bytes), rig.filled(b"and").freeze())).solicited()),
        3 => post!(Send::new((rig.filled(b"0"), rig.filled(&bytes), rig.filled(b"2"))).fenced()),
        4 => post!(Send::new(())),
        5 => post!(Write::new(rig.filled(&bytes), to)),
        6 => post!(Write::new(Inline(&bytes), to).imm(7)),
        7 => post!(Write::new((), to)),
        8 => sends.post(Read::new(word(), place).wr_id(wr_id)).map_err(|r| r.to_string()),
        9 => sends.post(FetchAdd::new(word(), place, 3).wr_id(wr_id)).map_err(|r| r.to_string()),
        10 => {
            let request = CompareSwap::new(word(), place, 0, wr_id).wr_id(wr_id);
            sends.post(request).map_err(|r| r.to_string())
        }
        _ => post!(Send::new(rig.filled(&bytes)).invalidate(RKey::new(1))),
    };
    done.unwrap_or_else(|error| panic!("{wr_id}: {error}"));
}

/// The same for whoever plays it.
fn play(seed: u64, polled: Calls, posted: Calls) -> String {
    let mut rig = Rig::new().polled(polled).posted(posted);
    let (mut a, mut b) = rig.pair();
    assert_eq!((rig.cq.calls(), a.calls()), (polled, posted));
    let exposed = Exposed::new(&rig.pd, 256, everything()).expect("memory");
    let mut random = Random::new(seed);
    let (mut text, mut none) = (String::new(), Vec::new());
    for wr_id in 0..120 {
        if b.recv_queue().in_flight() < 10 {
            for _ in 0..6 {
                let list = [rig.take(), rig.take()];
                b.recv_queue().post(Receive::new(list).wr_id(1_000 + wr_id)).expect("room");
            }
        }
        if a.send_queue().in_flight() < 14 {
            post(&rig, &mut a, exposed.remote(), &mut random, wr_id);
        }
        if random.once_in(4) {
            log(&mut rig, &mut text, &mut none);
        }
    }
    if random.once_in(2) {
        a.send_queue().flush().expect("the peer allows writes");
    }
    log(&mut rig, &mut text, &mut none);
    b.close().expect("to the error state");
    a.send_queue().post(Send::new(rig.filled(b"too late")).wr_id(999)).expect("room");
    log(&mut rig, &mut text, &mut none);
    drop((a, b));
    log(&mut rig, &mut text, &mut none);
    let mut there = [0; 256];
    exposed.read(0, &mut there).expect("inside");
    write!(text, "{there:x?}").expect("a text");
    assert_eq!((rig.cq.strays(), rig.out()), (0, 0));
    text
}

const OTHERS: [(Calls, Calls); 3] = [
    (Calls::Classic, Calls::Extended),
    (Calls::Extended, Calls::Classic),
    (Calls::Extended, Calls::Extended),
];

interposed! {
    fn messages_memory_and_the_end() {
        for seed in 1..40 {
            let expected = play(seed, Calls::Classic, Calls::Classic);
            assert!(expected.lines().count() > 100, "{expected}");
            for (polled, posted) in OTHERS {
                let other = play(seed, polled, posted);
                assert!(other == expected, "seed {seed}, {polled:?}, {posted:?}:\n{other}\nnot\n{expected}");
            }
        }
    }

    fn datagrams() {
        const QKEY: QKey = QKey::new(7);
        let play = |(polled, posted)| {
            let mut rig = Rig::new().polled(polled);
            let make = || {
                let made = QueuePair::ud(&rig.pd, &rig.cq, &rig.cq).max_inline(64).max_send_sge(3);
                let made = made.calls(posted).build().expect("a queue pair");
                made.init(&rig.init_options().qkey(QKEY)).expect("to INIT")
            };
            let (a, mut b) = (make(), make());
            for wr_id in 10..16 {
                b.recv_queue().post(Receive::new(rig.take()).wr_id(wr_id)).expect("room");
            }
            let (mut a, b) = (a.activate().expect("to RTS"), b.activate().expect("to RTS"));
            let address = AddressVector::new(&rig.row, rig.row.gid());
            let to = AddressHandle::new(&rig.pd, &address).expect("a handle");
            let sends = a.send_queue();
            sends.post(Datagram::new(rig.filled(b"one"), &to, b.qpn(), QKEY).wr_id(1)).expect("room");
            sends.post(Datagram::new(Inline(b"two"), &to, b.qpn(), QKEY).imm(9)).expect("room");
            sends.post(Datagram::new((), &to, b.qpn(), QKEY).solicited()).expect("room");
            let parts = (rig.filled(b"thr"), rig.filled(b"ee").freeze());
            sends.post(Datagram::new(parts, &to, b.qpn(), QKEY).signaled()).expect("room");
            let mut text = String::new();
            log(&mut rig, &mut text, &mut Vec::new());
            drop((a, b, to));
            log(&mut rig, &mut text, &mut Vec::new());
            rig.end();
            text
        };
        let expected = play((Calls::Classic, Calls::Classic));
        assert!(expected.contains("DatagramSource"), "{expected}");
        for calls in OTHERS {
            // The numbers of queue pairs go on.
            let same = |text: &str| text.split("qpn").map(|part| part.get(12..).unwrap_or(part).to_owned()).collect::<Vec<_>>();
            assert_eq!(same(&play(calls)), same(&expected), "{calls:?}");
        }
    }

    fn windows() {
        // Of those that can be posted, the provider does not take local invalidates when it refuses once, and binds
        // when it refuses twice: they are posted by the plain call.
        let play = |(polled, posted), refuses| {
            let mut rig = Rig::new().polled(polled).posted(posted);
            let make = || {
                if refuses > 0 {
                    faults::fail_every("create_qp_ex", libc::EOPNOTSUPP, 1, Some(refuses));
                }
                rig.init()
            };
            let (mut a, mut b) = rig.connect(make(), make());
            let memory = Exposed::with_windows(&rig.pd, 256, RemoteAccess::default()).expect("memory");
            let (mut text, mut windows) = (String::new(), vec![b.memory_window().expect("a window")]);
            for round in 0..3 {
                let window = windows.pop().expect("it came back");
                let part = memory.range(64 * round, 64).expect("inside");
                let bind = Bind::new(window, part, everything());
                let remote = bind.remote().expect("its key is known");
                b.send_queue().post(bind.wr_id(1)).expect("room");
                log(&mut rig, &mut text, &mut windows);
                a.send_queue().post(Write::new(rig.filled(b"through"), remote).signaled()).expect("room");
                log(&mut rig, &mut text, &mut windows);
                let window = windows.pop().expect("it came back");
                b.send_queue().post(LocalInvalidate::new(window).wr_id(2)).expect("room");
                log(&mut rig, &mut text, &mut windows);
            }
            drop((windows, a, b));
            log(&mut rig, &mut text, &mut Vec::new());
            let plainly = faults::count("ibv_post_send");
            let plain = memory.revoke().expect("nothing is bound");
            write!(text, "{:x?}", &plain[..]).expect("a text");
            drop(plain);
            rig.end();
            faults::reset();
            (text, plainly)
        };
        let (expected, _) = play((Calls::Classic, Calls::Classic), 0);
        assert!(expected.contains("window of Some(64)"), "{expected}");
        for calls in OTHERS {
            assert_eq!(play(calls, 0).0, expected, "{calls:?}");
        }
        for (refuses, plainly) in [(0, 0), (1, 3), (2, 6)] {
            let played = play((Calls::Classic, Calls::Extended), refuses);
            assert_eq!(played, (expected.clone(), plainly), "refused {refuses} times");
        }
    }
}
