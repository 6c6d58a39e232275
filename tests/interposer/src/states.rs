//! Which attributes a change of a queue pair's state needs and admits: the kernel's table.

use std::ffi::{c_int, c_uint};

use crate::abi::ibv_qp_attr;
use crate::device::Kind;
use crate::gids::Gids;
use crate::numbers::{limit, state, transport};

/// `enum ibv_qp_attr_mask`.
pub(crate) const STATE: c_int = 1 << 0;
const CUR_STATE: c_int = 1 << 1;
const SQD_NOTIFY: c_int = 1 << 2;
const ACCESS: c_int = 1 << 3;
const PKEY: c_int = 1 << 4;
const PORT: c_int = 1 << 5;
const QKEY: c_int = 1 << 6;
const AV: c_int = 1 << 7;
const MTU: c_int = 1 << 8;
const TIMEOUT: c_int = 1 << 9;
const RETRY: c_int = 1 << 10;
const RNR_RETRY: c_int = 1 << 11;
const RQ_PSN: c_int = 1 << 12;
const READS: c_int = 1 << 13;
const ALT_PATH: c_int = 1 << 14;
const RNR_TIMER: c_int = 1 << 15;
const SQ_PSN: c_int = 1 << 16;
const DEST_READS: c_int = 1 << 17;
const MIG_STATE: c_int = 1 << 18;
const DEST_QPN: c_int = 1 << 20;

/// Needed and admitted attributes.
fn row(kind: c_uint, from: c_uint, to: c_uint) -> Option<(c_int, c_int)> {
    // Of the others, what is not the same.
    match (kind, from, to) {
        (transport::UC, state::INIT, state::RTR) => {
            return Some((AV | MTU | DEST_QPN | RQ_PSN, ALT_PATH | ACCESS | PKEY));
        }
        (transport::UC, state::RTR, state::RTS) => {
            return Some((SQ_PSN, CUR_STATE | ALT_PATH | ACCESS | MIG_STATE));
        }
        (transport::UD, state::RESET, state::INIT) => return Some((PKEY | PORT | QKEY, 0)),
        (transport::UD, state::INIT, state::RTR) => return Some((0, PKEY | QKEY)),
        (transport::UD, state::RTR, state::RTS) => return Some((SQ_PSN, CUR_STATE | QKEY)),
        _ => {}
    }
    Some(match (from, to) {
        (_, state::RESET | state::ERR) => (0, 0),
        (state::RESET, state::INIT) => (PKEY | PORT | ACCESS, 0),
        (state::INIT, state::INIT) => (0, PKEY | PORT | ACCESS),
        (state::INIT, state::RTR) => {
            (AV | MTU | DEST_QPN | RQ_PSN | DEST_READS | RNR_TIMER, ALT_PATH | ACCESS | PKEY)
        }
        (state::RTR, state::RTS) => (
            TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | READS,
            CUR_STATE | ALT_PATH | ACCESS | RNR_TIMER | MIG_STATE,
        ),
        (state::RTS, state::RTS) | (state::SQD | state::SQE, state::RTS) => {
            (0, CUR_STATE | ACCESS | ALT_PATH | RNR_TIMER | MIG_STATE)
        }
        (state::RTS, state::SQD) => (0, SQD_NOTIFY),
        (state::SQD, state::SQD) => (
            0,
            PORT | AV
                | TIMEOUT
                | RETRY
                | RNR_RETRY
                | READS
                | DEST_READS
                | ALT_PATH
                | ACCESS
                | PKEY
                | RNR_TIMER
                | MIG_STATE,
        ),
        _ => return None,
    })
}

/// The state after it, if the change is one and has what it needs.
pub(crate) fn check(
    kind: c_uint,
    now: c_uint,
    asked: &ibv_qp_attr,
    mask: c_int,
) -> Result<c_uint, c_int> {
    if mask & CUR_STATE != 0 {
        let known = matches!(asked.cur_qp_state, state::RTR..=state::SQE);
        if !known || asked.cur_qp_state != now {
            return Err(libc::EINVAL);
        }
    }
    let next = if mask & STATE == 0 { now } else { asked.qp_state };
    let (needed, admitted) = row(kind, now, next).ok_or(libc::EINVAL)?;
    let complete = mask & needed == needed && mask & !(needed | admitted | STATE) == 0;
    if complete { Ok(next) } else { Err(libc::EINVAL) }
}

pub(crate) fn is_v4(gid: &[u8; 16]) -> bool {
    gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
}

/// Whether the values that the mask names are ones that the device takes.
pub(crate) fn check_values(
    kind: Option<Kind>,
    gids: &Gids,
    asked: &ibv_qp_attr,
    mask: c_int,
) -> Result<(), c_int> {
    let wrong = |bit: c_int, is_wrong: bool| mask & bit != 0 && is_wrong;
    if wrong(PORT, asked.port_num != 1)
        || wrong(PKEY, asked.pkey_index != 0)
        || wrong(MTU, !(1..=5).contains(&asked.path_mtu))
        || wrong(READS, asked.max_rd_atomic > limit::READS)
        || wrong(DEST_READS, asked.max_dest_rd_atomic > limit::READS)
        || wrong(TIMEOUT, asked.timeout > 31)
        || wrong(RETRY, asked.retry_cnt > 7)
        || wrong(RNR_RETRY, asked.rnr_retry > 7)
        || wrong(RNR_TIMER, asked.min_rnr_timer > 31)
    {
        return Err(libc::EINVAL);
    }
    if mask & AV != 0 {
        check_address(kind, gids, &asked.ah_attr)?;
    }
    Ok(())
}

/// Whether an address is one that the device takes.
pub(crate) fn check_address(
    kind: Option<Kind>,
    gids: &Gids,
    asked: &crate::abi::ibv_ah_attr,
) -> Result<(), c_int> {
    let target = asked.grh.dgid.raw;
    if asked.is_global == 0 || target == [0; 16] || asked.port_num != 1 {
        return Err(libc::EINVAL);
    }
    let source = kind.and_then(|kind| gids.row(kind, asked.grh.sgid_index.into()));
    let source = source.ok_or(libc::ENODATA)?;
    if is_v4(&source) != is_v4(&target) {
        return Err(libc::EINVAL);
    }
    // Nobody answers there: a real device asks for a second.
    if gids.is_here(target) { Ok(()) } else { Err(libc::ETIMEDOUT) }
}

/// Takes over what the mask names.
pub(crate) fn apply(to: &mut ibv_qp_attr, asked: &ibv_qp_attr, mask: c_int) {
    macro_rules! take {
        ($($bit:ident: $($field:ident),*;)*) => {
            $(if mask & $bit != 0 { $(to.$field = asked.$field;)* })*
        };
    }
    take!(
        ACCESS: qp_access_flags;
        PKEY: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        AV: ah_attr;
        MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        READS: max_rd_atomic;
        ALT_PATH: alt_ah_attr, alt_pkey_index, alt_port_num, alt_timeout;
        RNR_TIMER: min_rnr_timer;
        SQ_PSN: sq_psn;
        DEST_READS: max_dest_rd_atomic;
        MIG_STATE: path_mig_state;
        DEST_QPN: dest_qp_num;
        SQD_NOTIFY: en_sqd_async_notify;
    );
}
