//! Reads lists of texts and of networks from files. The lists need little memory, and a look-up stays fast with a
//! million entries.
//!
//! A file has one entry on each line. A `#` that begins the line or follows a space begins a comment. Spaces around an
//! entry, and a CR before the LF, are ignored.

use std::borrow::Cow;
use std::fmt;
use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::fast::FixedState;
use ipnet::IpNet;

/// The largest number of entries that a file may have.
pub const MOST_ENTRIES: usize = 1_000_000;

/// The longest entry, in bytes.
const LONGEST_ENTRY: usize = 4096;

/// The largest number of wrong lines that are reported.
const MOST_FAULTS: usize = 20;

/// An invalid line of a file. `line` is the line's number, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongLine {
    pub line: usize,
    pub what: String,
}

/// A list of texts from a file. A text that occurs several times in the file is one entry.
#[derive(Clone)]
pub struct TextList {
    file: Box<str>,
    /// The texts, each with a line end after it.
    texts: Vec<u8>,
    /// A hash table with open addressing, at most half full. A place holds 0 if it is empty, otherwise the offset of a
    /// text in `texts`, plus 1.
    table: Vec<u32>,
    entries: usize,
}

/// A list of networks from a file.
#[derive(Clone)]
pub struct NetworkList {
    file: Box<str>,
    /// The first and last addresses of ranges, in ascending order and without overlap.
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
    entries: usize,
}

impl TextList {
    /// Parses the content of the file with the path `file`. `form` normalises an entry in the same way as the values
    /// that are looked up. For an invalid entry, `form` returns what an entry must be.
    ///
    /// # Errors
    /// If a line is invalid. Returns the first invalid lines.
    pub fn parse(
        file: &str,
        content: &[u8],
        form: impl Fn(&str) -> Result<Vec<u8>, &'static str>,
    ) -> Result<TextList, Vec<WrongLine>> {
        let mut texts = Vec::with_capacity(content.len() + 1);
        let mut offsets = Vec::new();
        each_entry(content, |entry| {
            offsets.push(texts.len());
            texts.extend(form(entry).map_err(Cow::Borrowed)?);
            texts.push(b'\n');
            Ok(())
        })?;
        let mut list = TextList {
            file: file.into(),
            texts,
            table: vec![0; (2 * offsets.len()).next_power_of_two().max(2)],
            entries: 0,
        };
        for offset in offsets {
            list.insert(offset);
        }
        Ok(list)
    }

    fn insert(&mut self, offset: usize) {
        let rest = self.texts.get(offset..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or_default();
        let text = rest.get(..end).unwrap_or_default();
        if self.contains(text) {
            return;
        }
        let mut slot = self.slot(text);
        while self.table.get(slot).is_some_and(|entry| *entry != 0) {
            slot = (slot + 1) & (self.table.len() - 1);
        }
        // A file is at most 64 MiB long, so the offset fits.
        if let (Some(entry), Ok(offset)) = (self.table.get_mut(slot), u32::try_from(offset + 1)) {
            *entry = offset;
            self.entries += 1;
        }
    }

    pub fn contains(&self, value: &[u8]) -> bool {
        let mut slot = self.slot(value);
        loop {
            let offset = match self.table.get(slot) {
                None | Some(0) => return false,
                Some(entry) => usize::try_from(*entry).map_or(0, |entry| entry - 1),
            };
            let rest = self.texts.get(offset..).and_then(|text| text.strip_prefix(value));
            // A value with a line end is never found, because it could match two texts that follow each other.
            if rest.is_some_and(|rest| rest.first() == Some(&b'\n')) && !value.contains(&b'\n') {
                return true;
            }
            slot = (slot + 1) & (self.table.len() - 1);
        }
    }

    /// Returns the place in `table` where the search for a text begins. Only the operator chooses the texts, so the
    /// hash needs no secret.
    fn slot(&self, text: &[u8]) -> usize {
        let hash = FixedState::default().hash_one(text);
        usize::try_from(hash & (self.table.len() as u64 - 1)).unwrap_or_default()
    }

    /// Returns the texts in the order of the file. A text that the file has twice is returned twice.
    pub fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let texts = self.texts.strip_suffix(b"\n");
        texts.into_iter().flat_map(|texts| texts.split(|byte| *byte == b'\n'))
    }

    pub fn entries(&self) -> usize {
        self.entries
    }
}

impl NetworkList {
    /// Parses the content of the file with the path `file`. `parse` reads one entry, and returns `None` if the entry is
    /// invalid. `parse` must read a single address as a network of one address.
    ///
    /// # Errors
    /// If a line is invalid. Returns the first invalid lines.
    pub fn parse(
        file: &str,
        content: &[u8],
        parse: impl Fn(&str) -> Option<IpNet>,
    ) -> Result<NetworkList, Vec<WrongLine>> {
        let mut list = NetworkList { file: file.into(), v4: Vec::new(), v6: Vec::new(), entries: 0 };
        each_entry(content, |entry| {
            match parse(entry).ok_or_else(|| no_network(entry))? {
                IpNet::V4(network) => list.v4.push((network.network().to_bits(), network.broadcast().to_bits())),
                IpNet::V6(network) => list.v6.push((network.network().to_bits(), network.broadcast().to_bits())),
            }
            list.entries += 1;
            Ok(())
        })?;
        merge(&mut list.v4);
        merge(&mut list.v6);
        Ok(list)
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => is_within(&self.v4, address.to_bits()),
            IpAddr::V6(address) => is_within(&self.v6, address.to_bits()),
        }
    }

    pub fn entries(&self) -> usize {
        self.entries
    }
}

/// Returns the message for an entry that is no network. Only what looks like one is shown: the file may be a secret, named by mistake.
fn no_network(entry: &str) -> Cow<'static, str> {
    let must = "must be a network like 10.0.0.0/8 or 2001:db8::/32";
    let is_like = entry.len() <= 50 && entry.bytes().all(|byte| byte.is_ascii_hexdigit() || b".:/".contains(&byte));
    let has_separator = entry.contains(['.', ':']);
    if is_like && has_separator { Cow::Owned(format!("{must}, is `{entry}`")) } else { Cow::Borrowed(must) }
}

fn each_entry<'c>(
    content: &'c [u8],
    mut add: impl FnMut(&'c str) -> Result<(), Cow<'static, str>>,
) -> Result<(), Vec<WrongLine>> {
    let mut wrong = Vec::new();
    let mut entries = 0;
    for (line, text) in (1..).zip(content.split(|byte| *byte == b'\n')) {
        let added = match std::str::from_utf8(text) {
            Ok(text) => {
                let entry = without_comment(text).trim();
                entries += usize::from(!entry.is_empty());
                match entry {
                    "" => Ok(()),
                    _ if entries > MOST_ENTRIES => Err(Cow::Borrowed("is one entry too many: at most 1000000")),
                    entry if entry.len() > LONGEST_ENTRY => Err(Cow::Borrowed("must be at most 4096 bytes long")),
                    entry => add(entry),
                }
            }
            Err(_) => Err(Cow::Borrowed("must be UTF-8")),
        };
        if let Err(what) = added {
            wrong.push(WrongLine { line, what: what.into_owned() });
            if wrong.len() == MOST_FAULTS || entries > MOST_ENTRIES {
                break;
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

fn without_comment(line: &str) -> &str {
    let begins = |at: &usize| line.get(..*at).is_some_and(|before| before.is_empty() || before.ends_with([' ', '\t']));
    let at = line.match_indices('#').map(|(at, _)| at).find(begins);
    at.and_then(|at| line.get(..at)).unwrap_or(line)
}

/// Sorts ranges, and joins overlapping ranges.
fn merge<T: Copy + Ord>(ranges: &mut Vec<(T, T)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, before| {
        let overlaps = next.0 <= before.1;
        if overlaps {
            before.1 = before.1.max(next.1);
        }
        overlaps
    });
    ranges.shrink_to_fit();
}

fn is_within<T: Copy + Ord>(ranges: &[(T, T)], address: T) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= address);
    after.checked_sub(1).and_then(|index| ranges.get(index)).is_some_and(|(_, last)| address <= *last)
}

/// Displays the list as reports do: `in_file partners.txt`.
impl fmt::Display for TextList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in_file {}", self.file)
    }
}

impl fmt::Display for NetworkList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cidr_file {}", self.file)
    }
}

impl fmt::Debug for TextList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({} entries)", self.entries)
    }
}

impl fmt::Debug for NetworkList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({} entries)", self.entries)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn texts(content: &[u8]) -> Result<TextList, Vec<WrongLine>> {
        TextList::parse("a.txt", content, |text| match text {
            "bad" => Err("must be good"),
            text => Ok(text.as_bytes().to_vec()),
        })
    }

    fn networks(content: &str) -> NetworkList {
        let parse = |text: &str| text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        NetworkList::parse("a.txt", content.as_bytes(), parse).unwrap()
    }

    #[test]
    fn an_entry_is_a_line_without_its_comment() {
        let list = texts(b"# all\r\na\r\n\r\n  b # why\nc#d\nb\n\xc3\xa9").unwrap();
        for text in ["a", "b", "c#d", "\u{e9}"] {
            assert!(list.contains(text.as_bytes()), "{text}");
        }
        for text in ["", "c", "d", "# all", "a\r", "a\nb", "b\n", "why"] {
            assert!(!list.contains(text.as_bytes()), "{text:?}");
        }
        assert_eq!(list.entries(), 4);
        assert!(!texts(b"").unwrap().contains(b""));
    }

    #[test]
    fn wrong_lines_are_named() {
        let long = format!("a\nbad\n\n{}\n", "x".repeat(LONGEST_ENTRY + 1));
        let wrong = texts(&[long.as_bytes(), b"\xff\n"].concat()).unwrap_err();
        let wrong: Vec<_> = wrong.iter().map(|wrong| (wrong.line, &*wrong.what)).collect();
        assert_eq!(wrong, [(2, "must be good"), (4, "must be at most 4096 bytes long"), (5, "must be UTF-8")]);
        assert_eq!(texts("bad\n".repeat(50).as_bytes()).unwrap_err().len(), MOST_FAULTS);
    }

    #[test]
    fn networks_may_overlap_and_touch() {
        let list =
            networks("10.0.0.0/8\n10.1.0.0/16\n192.0.2.7\n0.0.0.0/32\n255.255.255.255\n2001:db8::/32\n::1 # this\n");
        assert_eq!(list.entries(), 7);
        for (address, within) in [
            ("10.0.0.0", true),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("9.255.255.255", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("0.0.0.0", true),
            ("0.0.0.1", false),
            ("255.255.255.255", true),
            ("2001:db8:ffff::", true),
            ("2001:db9::", false),
            ("::1", true),
            ("::a00:1", false),
        ] {
            assert_eq!(list.contains(address.parse().unwrap()), within, "{address}");
        }
    }

    proptest! {
        #[test]
        fn a_list_contains_its_entries_and_nothing_else(
            entries in prop::collection::hash_set("[a-c]{1,3}", 0..60),
            asked in prop::collection::vec("[a-c\n]{0,4}", 1..60),
        ) {
            let content = entries.iter().map(|entry| format!("{entry}\n")).collect::<String>();
            let list = texts(content.as_bytes()).unwrap();
            let entries: HashSet<&str> = entries.iter().map(String::as_str).collect();
            for asked in asked.iter().map(String::as_str).chain(entries.iter().copied()) {
                prop_assert_eq!(list.contains(asked.as_bytes()), entries.contains(asked), "{:?}", asked);
            }
        }

        #[test]
        fn an_address_is_in_a_list_if_it_is_in_one_of_its_networks(
            members in prop::collection::vec((0u32..64, 26u8..=32), 0..20),
            asked in prop::collection::vec(0u32..64, 1..40),
        ) {
            let address = |bits: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(0xc000_0200 + bits));
            let members: Vec<IpNet> =
                members.iter().map(|(bits, length)| IpNet::new(address(*bits), *length).unwrap()).collect();
            let list = networks(&members.iter().map(|network| format!("{network}\n")).collect::<String>());
            for bits in asked {
                let expected = members.iter().any(|network| network.contains(&address(bits)));
                prop_assert_eq!(list.contains(address(bits)), expected);
            }
        }
    }
}
