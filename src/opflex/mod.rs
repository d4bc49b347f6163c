//! The OpFlex control protocol.
