//! What a device can do at all, by name.

use std::fmt;

/// Declares the capabilities, their texts, and the list of all.
macro_rules! capabilities {
    ($($(#[$doc:meta])* $name:ident, $text:literal;)*) => {
        /// Something that some devices can do and others cannot: see
        /// [`Context::supports`](crate::Context::supports).
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum Capability {
            $($(#[$doc])* $name,)*
        }

        impl Capability {
            /// All that this crate knows.
            pub const ALL: &[Capability] = &[$(Capability::$name),*];

            const fn text(self) -> &'static str {
                match self {
                    $(Capability::$name => $text,)*
                }
            }
        }
    };
}

capabilities! {
    /// Compare-and-swap, fetch-and-add: atomic among the queue pairs of the device, at least.
    Atomics, "atomics";
    /// Atomics that are atomic with the processor's own as well.
    AtomicsWithCpu, "atomics that are atomic with the processor's";
    /// Memory windows of type 1.
    MemoryWindow1, "memory windows of type 1";
    /// Memory windows of type 2, tied to a queue pair by its number (2A).
    MemoryWindow2A, "memory windows of type 2A";
    /// Memory windows of type 2, tied to a queue pair and its protection domain (2B).
    MemoryWindow2B, "memory windows of type 2B";
    /// Keys that are invalidated by a work request: local invalidate, send with invalidate.
    Invalidate, "invalidating keys";
    /// Shared receive queues.
    SharedReceiveQueues, "shared receive queues";
    /// XRC queue pairs.
    Xrc, "XRC";
    /// Multicast on UD queue pairs.
    Multicast, "multicast";
    /// Raw packet queue pairs.
    RawPackets, "raw packets";
    /// Flow steering.
    FlowSteering, "flow steering";
    /// Memory that is registered without being locked (on-demand paging).
    OnDemandPaging, "on-demand paging";
    /// Memory of the device itself.
    DeviceMemory, "device memory";
    /// Completions with the device's time.
    CompletionTimestamps, "completion timestamps";
    /// Completion queues that notify of several at a time (moderation).
    CompletionModeration, "moderation of completion events";
    /// Shared receive queues that match tags.
    TagMatching, "tag matching";
    /// Messages that the device cuts into packets (TSO).
    SegmentationOffload, "segmentation offload";
    /// Packets at a rate of the program's (packet pacing).
    PacketPacing, "packet pacing";
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

/// A set of [`Capability`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Capabilities(u32);

impl Capabilities {
    /// Whether this one is among them.
    pub const fn contains(self, capability: Capability) -> bool {
        self.0 >> capability as u32 & 1 != 0
    }

    /// Those that are, in the order of [`Capability::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Capability> {
        Capability::ALL.iter().copied().filter(move |capability| self.contains(*capability))
    }

    pub(crate) fn set(&mut self, capability: Capability, there: bool) {
        self.0 |= u32::from(there) << capability as u32;
    }
}

const _: () = assert!(Capability::ALL.len() <= 32);

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_there_and_nothing_else() {
        let mut set = Capabilities::default();
        set.set(Capability::PacketPacing, true);
        set.set(Capability::Atomics, true);
        set.set(Capability::Xrc, false);
        let all: Vec<_> = set.iter().collect();
        assert_eq!(all, [Capability::Atomics, Capability::PacketPacing]);
        assert_eq!(format!("{set:?}"), "{Atomics, PacketPacing}");
        assert_eq!(Capability::MemoryWindow2B.to_string(), "memory windows of type 2B");
        assert!(!set.contains(Capability::Xrc));
    }
}
