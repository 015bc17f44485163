//! Little-endian integers and LEB128 in byte buffers, read without trusting them.

/// Appends `value` as LEB128: seven bits a byte, least significant first, the top bit set on all
/// but the last.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Folds the sign of a two's complement difference into bit 0, so that small magnitudes are small.
#[inline]
pub(crate) fn zigzag(value: u64) -> u64 {
    (value << 1) ^ (value >> 63).wrapping_neg()
}

/// The inverse of [`zigzag`].
#[inline]
pub(crate) fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

/// Appends a length and the bytes.
pub(crate) fn put_string(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Why the bytes that a [`Cursor`] read are impossible.
pub(crate) type Malformed = &'static str;

/// A later flatwalk may write such: its checksum matches, so it is not damage.
pub(crate) const UNKNOWN_CHUNK: Malformed = "a chunk of an unknown kind";
/// The same.
pub(crate) const UNKNOWN_EVENT: Malformed = "an event of an unknown kind";

/// Reads a buffer from front to back; running off its end is an error, never a panic.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bytes were read so far.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// How many bytes are left.
    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or("it ends too early")?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = *self.bytes.get(self.at).ok_or("it ends too early")?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number has more than 64 bits")
    }

    /// A variable-length number that must not exceed `limit`.
    pub(crate) fn bounded(&mut self, limit: u64) -> Result<u64, Malformed> {
        self.varint().and_then(|value| {
            if value <= limit { Ok(value) } else { Err("a number is larger than it can be") }
        })
    }

    pub(crate) fn string(&mut self) -> Result<String, Malformed> {
        let length = self.bounded(self.remaining() as u64)?;
        let bytes = self.take(length as usize)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| "a text is not UTF-8")
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.remaining() == 0 { Ok(()) } else { Err("bytes are left over") }
    }
}
