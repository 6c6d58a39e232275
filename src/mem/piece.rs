//! What may stand in a work request as local memory.

#![allow(unsafe_code)]
#![allow(private_interfaces, private_bounds)] // `sealed` is named by public traits, and its methods by nobody else

use super::buffer::{Buffer, SharedBuffer};
use super::exposed::ExposedRange;
use super::held::Held;
use super::pages::Fragment;
use crate::sys::abi::ibv_sge;

/// The most of them in one work request.
pub(crate) const MAX_PIECES: usize = crate::sys::qp::MAX_SGE;

/// Memory that a device may read: one entry of a gather list.
///
/// [`Buffer`] and [`Fragment`] (their length), [`SharedBuffer`], [`ExposedRange`].
pub trait Piece: sealed::Piece {}

/// Memory that a device may also write: one entry of a scatter list. [`Buffer`], [`Fragment`],
/// [`ExposedRange`].
///
/// A receive has the whole capacity of a buffer or fragment; an RDMA read or an atomic its length.
pub trait WritablePiece: Piece {}

impl Piece for Buffer {}
impl Piece for SharedBuffer {}
impl Piece for ExposedRange {}
impl WritablePiece for Buffer {}
impl WritablePiece for ExposedRange {}
impl Piece for Fragment {}
impl WritablePiece for Fragment {}

/// What is sent or written to a peer: a [`Piece`], an array or tuple of them, `()` for no bytes at all.
pub trait Gather: sealed::Pieces {}

/// What is received or read into: a [`WritablePiece`], an array or tuple of them, `()` for no bytes at
/// all.
pub trait Scatter: sealed::Pieces {}

pub(crate) use sealed::Pieces;

/// Only this crate's own types are memory that a device can be trusted with.
#[allow(unreachable_pub)] // named by public traits, and by nobody else
pub(crate) mod sealed {
    use super::{Held, ibv_sge};

    pub trait Piece: Sized {
        /// What the device is told: of a receive the whole capacity.
        fn entry(&self, receive: bool) -> ibv_sge;

        /// The protection domain that it is of.
        fn domain(&self) -> usize;

        fn hold(self) -> Held;

        /// The opposite of `hold`, of what `entry` told; `None` for what something else held.
        fn restore(held: Held, entry: &ibv_sge) -> Option<Self>;
    }

    pub trait Pieces: Sized {
        /// How many entries.
        const COUNT: usize;
        /// Whether the bytes are copied into the work request.
        const INLINE: bool = false;

        fn for_each(&self, receive: bool, each: &mut impl FnMut(ibv_sge, usize));

        /// The protection domain of the address handle that goes with it, if one does.
        #[inline]
        fn address_domain(&self) -> Option<usize> {
            None
        }

        fn hold(self, each: &mut impl FnMut(Held));

        /// The opposite of `hold`: `next` gives what was held and what was told of it.
        fn restore(next: &mut impl FnMut() -> Option<(Held, ibv_sge)>) -> Option<Self>;
    }
}

impl sealed::Piece for Buffer {
    #[inline]
    fn entry(&self, receive: bool) -> ibv_sge {
        let length = if receive { self.capacity() } else { self.len() } as u32;
        ibv_sge { addr: self.address(), length, lkey: self.pool().memory.lkey() }
    }

    #[inline]
    fn domain(&self) -> usize {
        self.pool().memory.pd().id()
    }

    #[inline]
    fn hold(self) -> Held {
        Held::buffer(self)
    }

    #[inline]
    fn restore(held: Held, _: &ibv_sge) -> Option<Buffer> {
        held.into_buffer().ok()
    }
}

impl sealed::Piece for SharedBuffer {
    #[inline]
    fn entry(&self, _: bool) -> ibv_sge {
        ibv_sge { addr: self.address(), length: self.len() as u32, lkey: self.pool().memory.lkey() }
    }

    #[inline]
    fn domain(&self) -> usize {
        self.pool().memory.pd().id()
    }

    #[inline]
    fn hold(self) -> Held {
        Held::shared(self.into_parts().0)
    }

    fn restore(held: Held, entry: &ibv_sge) -> Option<SharedBuffer> {
        let slot = held.into_shared().ok()?;
        let part = (SharedBuffer::offset_of(slot, entry.addr), entry.length);
        // SAFETY: the slot was held by a shared buffer of this part.
        Some(unsafe { SharedBuffer::from_parts(slot, Some(part)) })
    }
}

impl sealed::Piece for ExposedRange {
    #[inline]
    fn entry(&self, _: bool) -> ibv_sge {
        ibv_sge {
            addr: self.address(),
            length: self.len() as u32,
            lkey: self.inner().memory().lkey(),
        }
    }

    #[inline]
    fn domain(&self) -> usize {
        self.inner().memory().pd().id()
    }

    #[inline]
    fn hold(self) -> Held {
        Held::exposed(self)
    }

    fn restore(held: Held, _: &ibv_sge) -> Option<ExposedRange> {
        held.into_exposed().ok()
    }
}

impl sealed::Piece for Fragment {
    #[inline]
    fn entry(&self, receive: bool) -> ibv_sge {
        let length = if receive { self.capacity() } else { self.len() } as u32;
        ibv_sge { addr: self.address(), length, lkey: self.memory().lkey() }
    }

    #[inline]
    fn domain(&self) -> usize {
        self.memory().pd().id()
    }

    #[inline]
    fn hold(self) -> Held {
        Held::fragment(self)
    }

    #[inline]
    fn restore(held: Held, _: &ibv_sge) -> Option<Fragment> {
        held.into_fragment().ok()
    }
}

impl<P: sealed::Piece> sealed::Pieces for P {
    const COUNT: usize = 1;

    #[inline]
    fn for_each(&self, receive: bool, each: &mut impl FnMut(ibv_sge, usize)) {
        each(self.entry(receive), self.domain());
    }

    #[inline]
    fn hold(self, each: &mut impl FnMut(Held)) {
        each(sealed::Piece::hold(self));
    }

    #[inline]
    fn restore(next: &mut impl FnMut() -> Option<(Held, ibv_sge)>) -> Option<P> {
        let (held, entry) = next()?;
        <P as sealed::Piece>::restore(held, &entry)
    }
}

impl<P: Piece> Gather for P {}
impl<P: WritablePiece> Scatter for P {}

impl<P: sealed::Piece, const N: usize> sealed::Pieces for [P; N] {
    const COUNT: usize = N;

    #[inline]
    fn for_each(&self, receive: bool, each: &mut impl FnMut(ibv_sge, usize)) {
        self.iter().for_each(|piece| each(piece.entry(receive), piece.domain()));
    }

    #[inline]
    fn hold(self, each: &mut impl FnMut(Held)) {
        self.into_iter().for_each(|piece| each(piece.hold()));
    }

    fn restore(next: &mut impl FnMut() -> Option<(Held, ibv_sge)>) -> Option<[P; N]> {
        // All are taken, whether or not one is missing.
        let pieces = std::array::from_fn(|_| {
            next().and_then(|(held, entry)| <P as sealed::Piece>::restore(held, &entry))
        });
        let mut complete = true;
        let pieces: [Option<P>; N] = pieces;
        complete &= pieces.iter().all(Option::is_some);
        // None is missing where this unwraps.
        complete.then(|| pieces.map(|piece| piece.expect("it was looked at")))
    }
}

impl<P: Piece, const N: usize> Gather for [P; N] {}
impl<P: WritablePiece, const N: usize> Scatter for [P; N] {}

macro_rules! tuples {
    ($($count:literal: $($piece:ident $at:tt),*;)*) => {$(
        impl<$($piece: sealed::Piece),*> sealed::Pieces for ($($piece,)*) {
            const COUNT: usize = $count;

            #[inline]
            fn for_each(&self, _receive: bool, _each: &mut impl FnMut(ibv_sge, usize)) {
                $(_each(self.$at.entry(_receive), self.$at.domain());)*
            }

            #[inline]
            fn hold(self, _each: &mut impl FnMut(Held)) {
                $(_each(sealed::Piece::hold(self.$at));)*
            }

            #[allow(non_snake_case)]
            fn restore(_next: &mut impl FnMut() -> Option<(Held, ibv_sge)>) -> Option<Self> {
                // All are taken, whether or not one is missing.
                $(let $piece = _next()
                    .and_then(|(held, entry)| <$piece as sealed::Piece>::restore(held, &entry));)*
                Some(($($piece?,)*))
            }
        }

        impl<$($piece: Piece),*> Gather for ($($piece,)*) {}
        impl<$($piece: WritablePiece),*> Scatter for ($($piece,)*) {}
    )*};
}

tuples! {
    0:;
    2: A 0, B 1;
    3: A 0, B 1, C 2;
    4: A 0, B 1, C 2, D 3;
}

/// Bytes that are copied into the work request itself (`IBV_SEND_INLINE`): they are the caller's again
/// after the post, and need no registration. At most as many as the queue pair was granted.
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a>(pub &'a [u8]);

impl sealed::Pieces for Inline<'_> {
    const COUNT: usize = 1;
    const INLINE: bool = true;

    #[inline]
    fn for_each(&self, _: bool, each: &mut impl FnMut(ibv_sge, usize)) {
        // The length is checked against the limit before it is cut to 32 bits; see `Refusal`.
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        let addr = self.0.as_ptr().expose_provenance() as u64;
        each(ibv_sge { addr, length, lkey: 0 }, ANY_DOMAIN);
    }

    #[inline]
    fn hold(self, each: &mut impl FnMut(Held)) {
        each(Held::nothing());
    }

    fn restore(next: &mut impl FnMut() -> Option<(Held, ibv_sge)>) -> Option<Self> {
        let (_, entry) = next()?;
        let start = std::ptr::with_exposed_provenance(entry.addr as usize);
        // SAFETY: the entry was made by `for_each` from a slice of this lifetime.
        Some(Inline(unsafe { std::slice::from_raw_parts(start, entry.length as usize) }))
    }
}

impl Gather for Inline<'_> {}

/// The domain of what needs no registration.
pub(crate) const ANY_DOMAIN: usize = 0;
