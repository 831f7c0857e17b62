//! Reads `limits`: what one client may send, how long it may take, and how many may come at once.

use std::ops::RangeInclusive;

use super::Bounds;
use super::document::or_default;
use super::reader::Field;
use crate::base::time::Micros;

const KIB: u64 = 1 << 10;

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            header_bytes: 64 << 10,
            headers: 100,
            target_bytes: 8 << 10,
            header_timeout: Micros(10_000_000),
            idle_timeout: Micros(60_000_000),
            body_timeout: Micros(30_000_000),
            body_bytes: None,
            connections: 20_000,
            connections_per_client: None,
        }
    }
}

pub fn bounds(field: Option<Field<'_>>) -> Option<Bounds> {
    let default = Bounds::default();
    or_default(field, default, |field| {
        let section = field.section()?;
        // Pingora reads heads of up to 1 MiB with 256 fields, and the `http` crate targets of up to 64 KiB.
        let header_bytes =
            or_default(section.get("header_bytes"), default.header_bytes, |field| length(&field, KIB..=512 * KIB));
        let headers = or_default(section.get("headers"), default.headers, |field| count(&field, 1..=250));
        let target_bytes =
            or_default(section.get("target_bytes"), default.target_bytes, |field| length(&field, 64..=32 * KIB));
        let header_timeout =
            or_default(section.get("header_timeout"), default.header_timeout, |field| field.positive_duration());
        let idle_timeout =
            or_default(section.get("idle_timeout"), default.idle_timeout, |field| field.positive_duration());
        let body_timeout =
            or_default(section.get("body_timeout"), default.body_timeout, |field| field.positive_duration());
        let body_bytes = or_default(section.get("body_bytes"), default.body_bytes, |field| body_bytes(&field));
        let connections =
            or_default(section.get("connections"), default.connections, |field| count(&field, 1..=10_000_000));
        let connections_per_client =
            or_default(section.get("connections_per_client"), default.connections_per_client, |field| {
                connections_per_client(&field)
            });
        section.close();
        Some(Bounds {
            header_bytes: header_bytes?,
            headers: headers?,
            target_bytes: target_bytes?,
            header_timeout: header_timeout?,
            idle_timeout: idle_timeout?,
            body_timeout: body_timeout?,
            body_bytes: body_bytes?,
            connections: connections?,
            connections_per_client: connections_per_client?,
        })
    })
}

fn count(field: &Field<'_>, bounds: RangeInclusive<u64>) -> Option<usize> {
    usize::try_from(field.whole(bounds)?).ok()
}

fn length(field: &Field<'_>, bounds: RangeInclusive<u64>) -> Option<usize> {
    let found = parse_size(field.written()?).filter(|size| bounds.contains(size));
    if found.is_none() {
        field.must(format_args!("be a size from {} to {}", spelt(*bounds.start()), spelt(*bounds.end())));
    }
    usize::try_from(found?).ok()
}

fn body_bytes(field: &Field<'_>) -> Option<Option<u64>> {
    let text = field.written()?;
    if text == "unlimited" {
        return Some(None);
    }
    let size = parse_size(text);
    if size.is_none() {
        field.must("be a size like 512B, 64KiB, 10MiB or 1GiB, or unlimited");
    }
    Some(Some(size?))
}

fn connections_per_client(field: &Field<'_>) -> Option<Option<usize>> {
    let text = field.written()?;
    if text == "unlimited" {
        return Some(None);
    }
    let most = text.parse().ok().filter(|most| (1..=10_000_000).contains(most));
    if most.is_none() {
        field.must("be a whole number from 1 to 10000000, or unlimited");
    }
    Some(Some(most?))
}

/// `512B`, `64KiB`, `10MiB`, `1GiB`.
fn parse_size(text: &str) -> Option<u64> {
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

fn spelt(size: u64) -> String {
    if size < KIB { format!("{size}B") } else { format!("{}KiB", size / KIB) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_whole_number_with_a_unit() {
        for (text, size) in [("0B", 0), ("512B", 512), ("64KiB", 65_536), ("10MiB", 10 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(parse_size(text), Some(size), "{text}");
        }
        for text in ["", "5", "KiB", "1.5KiB", "-1B", "5 B", "5kib", "5KB", "5K", "99999999999GiB"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
