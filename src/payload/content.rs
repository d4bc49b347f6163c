//! The types of payloads: those of the protocol, and those of an application.

use std::fmt;

use bytes::Bytes;

use super::{Error, Payload};
use crate::proto::{Frame, FrameKind};

/// A type that is the payload of one kind of frame. Every [`Payload`] of the protocol implements it.
/// For a type of your own, [`content!`](crate::content) implements it as YAML or JSON; for any other
/// format implement it yourself.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use ssntp::payload::{Content, Error};
/// use ssntp::proto::{FrameKind, FrameType};
/// use ssntp::{Bytes, Frame};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// struct Scaled {
///     replicas: u32,
/// }
/// ssntp::content!(Scaled = FrameKind::new(FrameType::EVENT, 0x80), yaml);
///
/// let frame = Frame::try_of(&Scaled { replicas: 3 })?;
/// assert_eq!(frame.payload_bytes()[..], *b"replicas: 3\n");
/// assert_eq!(frame.payload::<Scaled>()?, Scaled { replicas: 3 });
///
/// /// Four bytes, the most significant first.
/// struct Ticks(u32);
///
/// impl Content for Ticks {
///     const FRAME: FrameKind = FrameKind::new(FrameType::EVENT, 0x81);
///
///     fn read(payload: &[u8]) -> Result<Self, Error> {
///         let bytes = payload.try_into().map_err(Error::content)?;
///         Ok(Self(u32::from_be_bytes(bytes)))
///     }
///
///     fn write(&self) -> Result<Bytes, Error> {
///         Ok(Bytes::copy_from_slice(&self.0.to_be_bytes()))
///     }
/// }
/// assert_eq!(Frame::try_of(&Ticks(7))?.payload_bytes()[..], [0, 0, 0, 7]);
/// # Ok::<(), ssntp::payload::Error>(())
/// ```
pub trait Content: Sized {
    /// The kind of frame that carries it.
    const FRAME: FrameKind;

    /// Reads a payload.
    ///
    /// # Errors
    /// The payload is not valid: a mistake of the peer.
    fn read(payload: &[u8]) -> Result<Self, Error>;

    /// Writes a payload that [`read`](Self::read) reads back equal.
    ///
    /// # Errors
    /// The value cannot be written: a mistake of the caller. Payloads of the protocol can always be
    /// written.
    fn write(&self) -> Result<Bytes, Error>;
}

impl<T: Payload> Content for T {
    const FRAME: FrameKind = T::KIND;

    fn read(payload: &[u8]) -> Result<Self, Error> {
        T::decode(payload)
    }

    fn write(&self) -> Result<Bytes, Error> {
        Ok(self.encode())
    }
}

impl Error {
    /// The error for a payload of an application's own type.
    pub fn content(why: impl fmt::Display) -> Self {
        Self::Content(why.to_string())
    }
}

impl Frame {
    /// Reads the frame's payload.
    ///
    /// # Errors
    /// [`Error::OtherKind`] if the frame has another kind than `T`, else as [`Content::read`].
    pub fn payload<T: Content>(&self) -> Result<T, Error> {
        // Many schemas share keys, so the payload of another kind would often be accepted.
        if self.kind() != T::FRAME {
            return Err(Error::OtherKind {
                expected: T::FRAME,
                found: self.kind(),
            });
        }
        T::read(self.payload_bytes())
    }

    /// The frame that carries a payload of the protocol.
    pub fn of<T: Payload>(payload: &T) -> Self {
        Self::with_payload(T::KIND, payload.encode())
    }

    /// The frame that carries a type of the application.
    ///
    /// # Errors
    /// As [`Content::write`].
    pub fn try_of<T: Content>(content: &T) -> Result<Self, Error> {
        Ok(Self::with_payload(T::FRAME, content.write()?))
    }
}

/// Makes a type that serde reads and writes the [`Content`](crate::payload::Content)
/// of a kind of frame: as `yaml`, with the limits of [`payload::yaml`](crate::payload::yaml),
/// or as `json`.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use ssntp::Frame;
/// use ssntp::proto::{FrameKind, FrameType};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// struct Query {
///     key: String,
/// }
/// ssntp::content!(Query = FrameKind::new(FrameType::COMMAND, 0x81), json);
///
/// let frame = Frame::try_of(&Query { key: "a".into() })?;
/// assert_eq!(frame.payload_bytes()[..], *br#"{"key":"a"}"#);
/// assert_eq!(frame.payload::<Query>()?.key, "a");
/// # Ok::<(), ssntp::payload::Error>(())
/// ```
#[macro_export]
macro_rules! content {
    ($name:ty = $kind:expr, $format:ident) => {
        impl $crate::payload::Content for $name {
            const FRAME: $crate::proto::FrameKind = $kind;

            fn read(payload: &[u8]) -> ::std::result::Result<Self, $crate::payload::Error> {
                $crate::payload::$format::decode(payload).map_err(::std::convert::Into::into)
            }

            fn write(&self) -> ::std::result::Result<$crate::Bytes, $crate::payload::Error> {
                $crate::payload::$format::encode(self).map_err(::std::convert::Into::into)
            }
        }
    };
}
