//! Executions in bytes: which blocks ran, and which addresses their accesses used.
//!
//! Encoder and decoder keep the same [`Predictor`]; only what it predicts wrongly is stored. A block
//! costs one *token* byte: bit 0 says that its successor prediction was wrong, bits 1–7 that the
//! addresses of its first seven accesses were; further accesses have further bytes, eight each.
//! Wrong blocks go to the column `ids`, wrong addresses to `codes` (how) and `values` (the bytes).
//! The columns are stored apart because zstd compresses them far better that way.

mod decoder;
mod encoder;
mod payload;
mod predictor;

pub(crate) use self::decoder::Decoder;
pub(crate) use self::encoder::Encoder;
pub(crate) use self::payload::{RUN_ADDRESSES, RUN_BLOCKS, Run};
