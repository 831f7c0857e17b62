//! Parses and prints numbers of bytes: `512B`, `64KiB`, `10MiB`, `1GiB`.

const KIB: u64 = 1 << 10;

/// Parses a size, such as `64KiB`. `None` for a number without a unit, a fraction, or a number that does not fit into
/// 64 bits.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let unit_at = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let scale = match unit {
        "B" => 1,
        "KiB" => KIB,
        "MiB" => KIB * KIB,
        "GiB" => KIB * KIB * KIB,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

/// Formats a size in the largest unit in which it is whole.
pub(crate) fn print(size: u64) -> String {
    let units = [("GiB", KIB * KIB * KIB), ("MiB", KIB * KIB), ("KiB", KIB)];
    let whole = units.into_iter().find(|(_, scale)| size > 0 && size.is_multiple_of(*scale));
    whole.map_or_else(|| format!("{size}B"), |(unit, scale)| format!("{}{unit}", size / scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_whole_number_with_a_unit() {
        for (text, size) in [("0B", 0), ("512B", 512), ("64KiB", 65_536), ("10MiB", 10 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(parse(text), Some(size), "{text}");
            assert_eq!(print(size), text);
        }
        for text in ["", "5", "KiB", "1.5KiB", "-1B", "5 B", "5kib", "5KB", "5K", "99999999999GiB"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
