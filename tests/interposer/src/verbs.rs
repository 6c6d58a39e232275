//! The verbs by name: how often each was called, and which of its calls fail.

use std::ffi::c_int;

/// Makes the enumeration and the names from one list.
macro_rules! verbs {
    ($($verb:ident $name:literal),* $(,)?) => {
        /// A function of libibverbs, or an operation of a context.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Verb { $($verb),* }

        const NAMES: &[(&str, Verb)] = &[$(($name, Verb::$verb)),*];
    };
}

verbs!(
    GetDeviceList "get_device_list",
    OpenDevice "open_device",
    CloseDevice "close_device",
    QueryDevice "query_device",
    QueryDeviceEx "query_device_ex",
    QueryRtValues "query_rt_values",
    QueryPort "query_port",
    QueryGid "query_gid",
    QueryGidEx "query_gid_ex",
    QueryGidTable "query_gid_table",
    QueryPkey "query_pkey",
    GetAsyncEvent "get_async_event",
    AckAsyncEvent "ack_async_event",
    AllocPd "alloc_pd",
    DeallocPd "dealloc_pd",
    RegMr "reg_mr",
    DeregMr "dereg_mr",
    CreateCompChannel "create_comp_channel",
    DestroyCompChannel "destroy_comp_channel",
    CreateCq "create_cq",
    CreateCqEx "create_cq_ex",
    DestroyCq "destroy_cq",
    GetCqEvent "get_cq_event",
    AckCqEvents "ack_cq_events",
    ReqNotifyCq "req_notify_cq",
    PollCq "poll_cq",
    StartPoll "start_poll",
    NextPoll "next_poll",
    EndPoll "end_poll",
    CreateQp "create_qp",
    CreateQpEx "create_qp_ex",
    QpToQpEx "qp_to_qp_ex",
    ModifyQp "modify_qp",
    QueryQp "query_qp",
    DestroyQp "destroy_qp",
    AllocMw "alloc_mw",
    BindMw "bind_mw",
    DeallocMw "dealloc_mw",
    PostSend "post_send",
    WrStart "wr_start",
    WrComplete "wr_complete",
    WrAbort "wr_abort",
    PostRecv "post_recv",
    CreateSrq "create_srq",
    ModifySrq "modify_srq",
    QuerySrq "query_srq",
    DestroySrq "destroy_srq",
    PostSrqRecv "post_srq_recv",
    CreateAh "create_ah",
    DestroyAh "destroy_ah",
    AttachMcast "attach_mcast",
    DetachMcast "detach_mcast",
);

impl Verb {
    /// The verb of this name, with or without `ibv_` or `_ibv_` before it. `reg_mr_iova2` is
    /// `reg_mr`.
    pub(crate) fn named(name: &str) -> Option<Verb> {
        let name = name.strip_prefix('_').unwrap_or(name);
        let name = name.strip_prefix("ibv_").unwrap_or(name);
        let name = if name.starts_with("reg_mr_iova") { "reg_mr" } else { name };
        NAMES.iter().find(|(there, _)| *there == name).map(|(_, verb)| *verb)
    }
}

/// Which calls of a verb fail, and how.
struct Rule {
    verb: Verb,
    errno: c_int,
    /// Every so many calls.
    every: u32,
    /// How many failures are left; `None` for no end.
    left: Option<u32>,
    calls: u32,
}

/// The calls so far, and the rules.
pub(crate) struct Verbs {
    counts: [u64; NAMES.len()],
    rules: Vec<Rule>,
}

impl Verbs {
    pub(crate) const fn new() -> Verbs {
        Verbs { counts: [0; NAMES.len()], rules: Vec::new() }
    }

    /// Every `every`th call of this verb from now on fails with `errno`, `times` times.
    pub(crate) fn fail(&mut self, verb: Verb, errno: c_int, every: u32, times: Option<u32>) {
        self.rules.push(Rule { verb, errno, every: every.max(1), left: times, calls: 0 });
    }

    /// One more call of a verb: the errno it is to fail with, if it is to fail.
    pub(crate) fn call(&mut self, verb: Verb) -> Result<(), c_int> {
        if let Some(count) = self.counts.get_mut(verb as usize) {
            *count += 1;
        }
        let mut failure = Ok(());
        for rule in self.rules.iter_mut().filter(|rule| rule.verb == verb) {
            rule.calls += 1;
            if rule.calls % rule.every == 0 && rule.left != Some(0) && failure.is_ok() {
                rule.left = rule.left.map(|left| left - 1);
                failure = Err(rule.errno);
            }
        }
        failure
    }

    /// How often a verb was called.
    pub(crate) fn count(&self, verb: Verb) -> u64 {
        self.counts.get(verb as usize).copied().unwrap_or(0)
    }
}

/// Sets errno, as a failing C function does.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: __errno_location gives this thread's own errno, valid while the thread lives.
    unsafe { *libc::__errno_location() = errno }
}

/// For verbs that return NULL and errno.
pub(crate) fn pointer<T>(made: Result<*mut T, c_int>) -> *mut T {
    made.unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// For verbs that return 0 or the errno.
pub(crate) fn errno(done: Result<(), c_int>) -> c_int {
    done.err().unwrap_or(0)
}

/// For verbs that return -1 and errno.
pub(crate) fn minus_one(done: Result<(), c_int>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}
