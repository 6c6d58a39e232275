//! What the programs beside this are made of. They are compiled and never run.
//!
//! Each says in its first line which error of the compiler the feature `misuse` brings. Without it the
//! same program compiles, so that it cannot fail for another reason.

use rdma_verbs::transport::{Uc, Ud};
use rdma_verbs::{
    AddressHandle, Buffer, CompletionQueue, ConnectOptions, Context, Exposed, Init, Pool,
    ProtectionDomain, QueuePair, RemoteSlice, Reset, Rtr, Rts, SharedBuffer, SharedReceiveQueue,
};

/// Some value.
macro_rules! some {
    ($($name:ident: $type:ty;)*) => {$(
        pub fn $name() -> $type {
            unimplemented!()
        }
    )*};
}

some! {
    context: Context;
    domain: ProtectionDomain;
    pool: Pool;
    buffer: Buffer;
    shared: SharedBuffer;
    exposed: Exposed;
    remote: RemoteSlice;
    completions: CompletionQueue;
    reset: QueuePair<Reset>;
    init: QueuePair<Init>;
    rtr: QueuePair<Rtr>;
    connected: QueuePair<Rts>;
    unreliable: QueuePair<Rts, Uc>;
    datagrams: QueuePair<Rts, Ud>;
    handle: AddressHandle;
    options: ConnectOptions;
    shared_queue: SharedReceiveQueue;
}

/// Looks at it.
pub fn see<T>(_: T) {}
