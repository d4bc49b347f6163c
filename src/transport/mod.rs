//! Byte streams and the two threads that serve one.
