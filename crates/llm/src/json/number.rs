//! The grammar of a JSON number, byte by byte (RFC 8259 §6).

/// The state of reading a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberPlace {
    Minus,
    /// After a zero that is the only digit before the point.
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

/// The meaning of a byte after the earlier bytes of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberStep {
    More(NumberPlace),
    /// The number ended before this byte.
    End,
    /// The number is invalid with this byte.
    Invalid,
}

impl NumberPlace {
    /// Returns the place after the first byte of a number. `None` if no number starts with this byte.
    pub(crate) fn first(byte: u8) -> Option<NumberPlace> {
        match byte {
            b'-' => Some(NumberPlace::Minus),
            b'0' => Some(NumberPlace::Zero),
            b'1'..=b'9' => Some(NumberPlace::Integer),
            _ => None,
        }
    }

    pub(crate) fn next(self, byte: u8) -> NumberStep {
        use NumberPlace::{Exponent, ExponentDigits, ExponentSign, Fraction, Integer, Minus, Point, Zero};
        let place = match (self, byte) {
            (Minus, b'0') => Zero,
            (Minus, b'1'..=b'9') | (Integer, b'0'..=b'9') => Integer,
            (Zero | Integer, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Integer | Fraction, b'e' | b'E') => Exponent,
            (Exponent, b'+' | b'-') => ExponentSign,
            (Exponent | ExponentSign | ExponentDigits, b'0'..=b'9') => ExponentDigits,
            // The number `01` ends after its 0. The digit behind it is then a syntax error.
            _ if self.can_end() => return NumberStep::End,
            _ => return NumberStep::Invalid,
        };
        NumberStep::More(place)
    }

    /// Whether the bytes so far are a whole number.
    pub(crate) fn can_end(self) -> bool {
        matches!(self, NumberPlace::Zero | NumberPlace::Integer | NumberPlace::Fraction | NumberPlace::ExponentDigits)
    }
}
