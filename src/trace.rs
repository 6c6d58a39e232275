//! What an operator is told through the crate tracing, by the feature of its name. Without it these macros are
//! nothing: their arguments are not even looked at.
//!
//! Never on the data path, nor in a lookup that finds nothing to take in.

/// An event: its level (`error`, `warn`, `info`, `debug`), its fields, its text.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($told:tt)*) => { ::tracing::$level!(target: "rdma_verbs", $($told)*) };
}

#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($($told:tt)*) => {{}};
}

/// A span of this name and these fields, from here to the end of the block.
#[cfg(feature = "tracing")]
macro_rules! span {
    ($($told:tt)*) => {
        let _span = ::tracing::debug_span!(target: "rdma_verbs", $($told)*).entered();
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! span {
    ($($told:tt)*) => {};
}

pub(crate) use {event, span};

#[cfg(all(test, not(feature = "tracing")))]
mod tests {
    /// This compiles only because nothing of it is compiled.
    #[test]
    fn without_the_feature_nothing_is_compiled() {
        span!("nothing", field = no_such_name);
        event!(info, field = no_such_function(), "{}", no_such_name);
        assert_eq!(size_of_val(&{ event!(no_such_level) }), 0);
    }
}
