//! Peers in C.
