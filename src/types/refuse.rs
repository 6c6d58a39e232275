//! Why a connection was refused, as a number that travels.

use std::fmt;

use super::codes::c_enum;

c_enum! {
    /// Why one end of a connection over TCP refused the other. Unknown numbers are carried; those from
    /// [`APPLICATION`](RefuseReason::APPLICATION) on are the applications' own.
    RefuseReason(u16) {
        /// The program does not want it.
        REJECTED = 1, "rejected";
        /// There is no room for another connection.
        BUSY = 2, "no room for another connection";
        /// The records are of versions that do not understand each other.
        VERSION = 3, "another version of the record";
        /// A record that makes no sense, or came out of turn.
        BAD_RECORD = 4, "a bad record";
        /// The two addresses are of families or types that do not reach each other.
        UNLIKE = 5, "addresses of different kinds";
        /// The other end has no row of a GID table to send from, or no longer.
        NO_SOURCE = 6, "no GID to send from";
        /// The other end's network finds no way here, or nobody who answers.
        UNREACHABLE = 7, "this end cannot be reached";
        /// The other end's device refused to connect its queue pair.
        DEVICE = 8, "the device refused";
        /// The other end's time was over.
        TIMED_OUT = 9, "too late";
        /// The other end gave it up.
        ABANDONED = 10, "given up";
        /// The first of the applications' own.
        APPLICATION = 0x8000, "the application's own reason";
    }
}

impl RefuseReason {
    /// An application's own reason, 0 to 32767.
    pub const fn application(number: u16) -> RefuseReason {
        RefuseReason::from_raw(number | RefuseReason::APPLICATION.raw())
    }

    /// The number of an application's own reason; `None` for one of this crate.
    pub const fn as_application(self) -> Option<u16> {
        match self.raw() {
            raw @ 0x8000.. => Some(raw & 0x7fff),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_reasons_and_unknown_ones() {
        let own = RefuseReason::application(7);
        assert_eq!((own.raw(), own.as_application()), (0x8007, Some(7)));
        assert_eq!(RefuseReason::BUSY.as_application(), None);
        assert_eq!(RefuseReason::from_raw(4711).to_string(), "unknown (4711)");
    }
}
