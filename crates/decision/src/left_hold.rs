//! Defines the lines in which a process that ends leaves its timed holds to the next one, in a file beside its records.
//!
//! If nobody settles such a hold, the store counts what it reserves as spent, and the process that has read the line records this.
//! `tollgate records check` reads the lines too.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record_line::{Moment, Quantity};
use base::printable;
use ledger::bucket_key::BucketKey;
use ledger::holds::Owner;

/// What a timed hold reserves of one recorded budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftHold<'a> {
    /// The number of the hold.
    pub hold: u64,
    /// The bucket's key in hexadecimal digits.
    #[serde(borrow)]
    pub bucket: Cow<'a, str>,
    #[serde(borrow)]
    pub meter: Cow<'a, str>,
    #[serde(borrow)]
    pub rule: Cow<'a, str>,
    /// 0 for the limit's own settings, or the position of an override, from 1.
    pub variant: u32,
    /// The limit at the time of the take. It may come from a credential.
    pub limit: Quantity,
    #[serde(borrow)]
    pub subject: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub subject_from: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub unit: Cow<'a, str>,
    /// What is spent if nobody settles the hold.
    pub quantity: Quantity,
    /// When the hold ends at the latest.
    pub ends: Moment,
    /// The period in which it ends. `None` for algorithms without periods.
    pub period_begin: Option<Moment>,
    pub period_end: Option<Moment>,
}

impl LeftHold<'_> {
    /// Returns the path of the file with the holds that were left by processes which wrote their records to this path.
    pub fn file(records: &Path) -> PathBuf {
        let mut name = OsString::from(records);
        name.push(".holds");
        name.into()
    }

    /// Reads a line.
    ///
    /// # Errors
    /// If the line is no hold, or not the whole of one.
    pub fn read(line: &[u8]) -> serde_json::Result<LeftHold<'_>> {
        serde_json::from_slice(line)
    }

    /// Returns the line, with its end. Hidden characters are escaped.
    pub fn line(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(512);
        // Such a value can always be written.
        if printable::write_json(&mut text, self).is_ok() {
            text.push(b'\n');
        }
        text
    }

    pub fn owner(&self) -> Owner {
        Owner(self.hold)
    }

    /// Returns the bucket. `None` for a text that is no key.
    pub fn key(&self) -> Option<BucketKey> {
        BucketKey::parse(&self.bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::time::Timestamp;

    #[test]
    fn a_hold_is_read_back_and_other_lines_are_errors() {
        let hold = LeftHold {
            hold: u64::MAX - 1,
            bucket: "000102030405060708090a0b0c0d0e0f".into(),
            meter: "pages".into(),
            rule: "month".into(),
            variant: 2,
            limit: Quantity::Whole(100),
            subject: Some("a\"b\u{202e}\n".into()),
            subject_from: Some("descriptor:tenant".into()),
            unit: "requests".into(),
            quantity: Quantity::Decimal("2.5".into()),
            ends: Moment(Timestamp(1_796_083_200_000_001)),
            period_begin: None,
            period_end: None,
        };
        let line = hold.line();
        assert!(line.ends_with(b"}\n") && line.is_ascii(), "{}", String::from_utf8_lossy(&line));
        let read = LeftHold::read(line.trim_ascii()).unwrap();
        assert_eq!((&read, read.key().map(|key| key.0[15]), read.owner()), (&hold, Some(15), Owner(u64::MAX - 1)));
        let (begun, _) = line.split_at(line.len() / 2);
        for other in [begun, b"{}", br#"{"specversion":"1.0"}"#] {
            assert!(LeftHold::read(other).is_err(), "{}", String::from_utf8_lossy(other));
        }
        assert_eq!(LeftHold::file(Path::new("/var/log/r.jsonl")), Path::new("/var/log/r.jsonl.holds"));
    }
}
