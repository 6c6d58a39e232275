//! Which changes of state a queue pair makes.

use super::rig::*;
use crate::numbers::state;

#[test]
fn a_change_without_an_attribute_it_needs_is_refused() {
    let rig = Rig::unconnected();
    let [a, b] = rig.qps;
    let attr = attributes(b);
    for (to, mask) in [(state::INIT, TO_INIT), (state::RTR, TO_RTR), (state::RTS, TO_RTS)] {
        for bit in (1..=20).map(|bit| 1 << bit).filter(|bit| mask & bit != 0) {
            assert_eq!(modify(a, &attr, to, mask & !bit), libc::EINVAL, "{to} without {bit:#x}");
        }
        assert_eq!(modify(a, &attr, to, mask | 1 << 6), libc::EINVAL, "a Q_Key");
        assert_eq!(modify(a, &attr, to, mask), 0);
        assert_eq!(state_of(a), to);
    }
    assert_eq!(modify(a, &attr, state::INIT, TO_INIT), libc::EINVAL);
    assert_eq!(modify(a, &attr, state::ERR, 1), 0);
    assert_eq!(modify(a, &attr, state::RTS, 1), libc::EINVAL);
    assert_eq!(modify(a, &attr, state::RESET, 1), 0);
    assert_eq!(modify(a, &attr, state::INIT, TO_INIT), 0);
}

#[test]
fn an_address_is_looked_at() {
    let rig = Rig::unconnected();
    let [a, b] = rig.qps;
    let good = attributes(b);
    assert_eq!(modify(a, &good, state::INIT, TO_INIT), 0);
    let with = |change: fn(&mut crate::abi::ibv_qp_attr)| {
        let mut attr = good;
        change(&mut attr);
        modify(a, &attr, state::RTR, TO_RTR)
    };
    assert_eq!(with(|attr| attr.ah_attr.is_global = 0), libc::EINVAL);
    assert_eq!(with(|attr| attr.ah_attr.grh.dgid.raw = [0; 16]), libc::EINVAL);
    assert_eq!(with(|attr| attr.ah_attr.grh.sgid_index = 0), libc::EINVAL, "IPv6 to IPv4");
    assert_eq!(with(|attr| attr.ah_attr.grh.sgid_index = 9), libc::ENODATA);
    assert_eq!(with(|attr| attr.ah_attr.grh.dgid.raw[15] = 99), libc::ETIMEDOUT);
    assert_eq!(with(|attr| attr.max_dest_rd_atomic = 255), libc::EINVAL);
    assert_eq!(with(|_| ()), 0);
}

#[test]
fn posts_are_refused_before_their_time() {
    let rig = Rig::unconnected();
    let [a, b] = rig.qps;
    let attr = attributes(b);
    assert_eq!(post_recv(a, 1, &mut []), libc::EINVAL);
    for (to, mask) in [(state::INIT, TO_INIT), (state::RTR, TO_RTR)] {
        assert_eq!(post_sends(a, &mut [send_wr(1, &[])]), (libc::EINVAL, Some(0)));
        assert_eq!(modify(a, &attr, to, mask), 0);
        assert_eq!(post_recv(a, 1, &mut []), 0);
    }
}

#[test]
fn a_send_waits_for_its_peer_to_be_connected() {
    let rig = Rig::unconnected();
    let [a, b] = rig.qps;
    connect(a, b);
    assert_eq!(modify(b, &attributes(a), state::INIT, TO_INIT), 0);
    assert_eq!(post_recv(b, 7, &mut []), 0);
    post_send(a, send_wr(1, &[]));
    assert!(rig.poll().is_empty());
    assert_eq!(modify(b, &attributes(a), state::RTR, TO_RTR), 0);
    assert_eq!(rig.poll().len(), 2);
}
