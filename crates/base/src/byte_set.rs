//! A set of bytes, built at compile time. A lookup is one table access.

#[derive(Clone, Copy, Debug)]
pub struct ByteSet([bool; 256]);

impl ByteSet {
    /// Makes the set of all ASCII letters and digits, and of the bytes in `others`.
    #[allow(clippy::indexing_slicing, reason = "a place beyond the end would not compile where it is a constant")]
    pub const fn letters_digits_and(others: &[u8]) -> ByteSet {
        let mut table = [false; 256];
        let mut byte: u8 = 0;
        while byte < 128 {
            table[byte as usize] = byte.is_ascii_alphanumeric();
            byte += 1;
        }
        let mut index = 0;
        while index < others.len() {
            table[others[index] as usize] = true;
            index += 1;
        }
        ByteSet(table)
    }

    /// Returns this set together with all bytes beyond ASCII.
    #[allow(clippy::indexing_slicing, reason = "a place beyond the end would not compile where it is a constant")]
    pub const fn and_beyond_ascii(self) -> ByteSet {
        let mut table = self.0;
        let mut byte = 128;
        while byte < 256 {
            table[byte] = true;
            byte += 1;
        }
        ByteSet(table)
    }

    /// Whether the byte is in the set.
    pub fn has(&self, byte: u8) -> bool {
        self.0.get(usize::from(byte)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_contains_exactly_its_bytes() {
        let set = ByteSet::letters_digits_and(b"-_");
        for byte in 0..=255u8 {
            assert_eq!(set.has(byte), byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_', "{byte}");
            assert_eq!(set.and_beyond_ascii().has(byte), set.has(byte) || !byte.is_ascii(), "{byte}");
        }
    }
}
