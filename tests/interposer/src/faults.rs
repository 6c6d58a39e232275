//! What is to go wrong.

use std::ffi::c_int;

use crate::abi::ibv_wc;
use crate::cq::Cqe;
use crate::verbs::Verb;

/// A completion that is held back.
pub(crate) struct Held {
    pub(crate) cq: usize,
    pub(crate) qp: usize,
    pub(crate) cqe: Cqe,
}

/// How a post fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PostMode {
    /// One work request is refused and named; those before it are taken.
    RefuseAt,
    /// All are taken, and none is named: what rxe does when its doorbell fails.
    TakenUnnamed,
    /// None is taken, and none is named.
    LostUnnamed,
    /// All are taken, and one is named that is in no chain.
    TakenForeign,
    /// None is taken, and one is named that is in no chain.
    LostForeign,
    /// Those before one work request are taken, and none is named.
    TakenBefore,
}

impl PostMode {
    pub(crate) fn from_number(number: c_int) -> Option<PostMode> {
        Some(match number {
            0 => PostMode::RefuseAt,
            1 => PostMode::TakenUnnamed,
            2 => PostMode::LostUnnamed,
            3 => PostMode::TakenForeign,
            4 => PostMode::LostForeign,
            5 => PostMode::TakenBefore,
            _ => return None,
        })
    }

    pub(crate) fn loses(self) -> bool {
        matches!(self, PostMode::LostUnnamed | PostMode::LostForeign)
    }

    /// Whether it ends at one work request.
    pub(crate) fn is_at(self) -> bool {
        matches!(self, PostMode::RefuseAt | PostMode::TakenBefore)
    }

    pub(crate) fn is_foreign(self) -> bool {
        matches!(self, PostMode::TakenForeign | PostMode::LostForeign)
    }
}

/// A post that fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostFault {
    pub(crate) verb: Verb,
    pub(crate) mode: PostMode,
    /// The work request that it ends at, counted from 0; only chains that have it fail.
    pub(crate) at: u32,
    pub(crate) errno: c_int,
    pub(crate) left: u32,
}

/// What is done to completions to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spoil {
    pub(crate) what: What,
    pub(crate) value: u64,
    pub(crate) left: u32,
}

/// What of a completion is spoilt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    WrId,
    Status,
    Opcode,
    ByteLen,
    ImmData,
    QpNum,
    WcFlags,
    /// It comes so many times; 0: it never does.
    Copies,
}

impl What {
    pub(crate) fn named(name: &str) -> Option<What> {
        Some(match name {
            "wr_id" => What::WrId,
            "status" => What::Status,
            "opcode" => What::Opcode,
            "byte_len" => What::ByteLen,
            "imm_data" => What::ImmData,
            "qp_num" => What::QpNum,
            "wc_flags" => What::WcFlags,
            "copies" => What::Copies,
            _ => return None,
        })
    }
}

/// The faults asked for.
pub(crate) struct Faults {
    pub(crate) posts: Vec<PostFault>,
    pub(crate) spoils: Vec<Spoil>,
    /// Completions are held back.
    pub(crate) holding: bool,
    /// Nothing is carried out.
    pub(crate) stalled: bool,
    /// As on rxe, a receive that is posted in ERR never comes back.
    pub(crate) recv_in_err_vanishes: bool,
    /// Devices say that they have none.
    pub(crate) no_atomics: bool,
    /// As on rxe, devices say that they have none.
    pub(crate) no_clock: bool,
    /// How much memory can be registered.
    pub(crate) most_memory: u64,
}

impl Faults {
    pub(crate) const fn new() -> Faults {
        Faults {
            posts: Vec::new(),
            spoils: Vec::new(),
            holding: false,
            stalled: false,
            recv_in_err_vanishes: false,
            no_atomics: false,
            no_clock: false,
            most_memory: u64::MAX,
        }
    }

    /// How this post of so many work requests fails, if it does.
    pub(crate) fn post_fault(&mut self, verb: Verb, count: usize) -> Option<PostFault> {
        let has_it = |fault: &PostFault| !fault.mode.is_at() || (fault.at as usize) < count;
        let mut left = self.posts.iter_mut().filter(|fault| fault.verb == verb && fault.left > 0);
        let fault = left.find(|fault| has_it(fault))?;
        fault.left -= 1;
        Some(*fault)
    }

    /// Spoils a completion, and tells how often it comes.
    pub(crate) fn spoil(&mut self, wc: &mut ibv_wc) -> u64 {
        let mut copies = 1;
        for spoil in self.spoils.iter_mut().filter(|spoil| spoil.left > 0) {
            spoil.left -= 1;
            let (long, short) = (spoil.value, spoil.value as u32);
            match spoil.what {
                What::WrId => wc.wr_id = long,
                What::Status => wc.status = short,
                What::Opcode => wc.opcode = short,
                What::ByteLen => wc.byte_len = short,
                What::ImmData => wc.imm_data = short,
                What::QpNum => wc.qp_num = short,
                What::WcFlags => wc.wc_flags = short,
                What::Copies => copies = long,
            }
        }
        self.spoils.retain(|spoil| spoil.left > 0);
        copies
    }
}
