//! Reads a log line by line: plain or compressed, from a file or standard input, in bounded memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};

use flate2::read::MultiGzDecoder;

/// The length of the longest line that is read, in bytes.
pub const LONGEST: usize = 256 << 10;

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads the lines of one log, and counts them.
pub struct Lines {
    /// The name of the log for messages: the path from the command line, or `standard input`.
    pub name: String,
    /// The number of the line that was read last. The first line has number 1.
    pub number: u64,
    input: Box<dyn BufRead>,
    line: Vec<u8>,
    /// The file, if the log can be read again from its beginning.
    file: Option<File>,
}

/// A line of a log.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'l> {
    /// The text of the line, without the line end.
    Text(&'l [u8]),
    /// A line that is longer than [`LONGEST`] and was skipped.
    TooLong,
}

impl Lines {
    /// Opens the log file with this name, or standard input if the name is `-`.
    ///
    /// # Errors
    /// When the file cannot be opened, or its beginning cannot be read.
    pub fn open(name: &str) -> io::Result<Lines> {
        match name {
            "-" => Lines::over("standard input", io::stdin()),
            path => {
                let file = File::open(path)?;
                // A pipe can be read only once.
                let again = if file.metadata()?.is_file() { Some(file.try_clone()?) } else { None };
                Ok(Lines { file: again, ..Lines::over(name, file)? })
            }
        }
    }

    /// Whether the log can be read again from its beginning.
    pub fn can_rewind(&self) -> bool {
        self.file.is_some()
    }

    /// Goes back to the beginning of the log. Does nothing if the log cannot be read again.
    ///
    /// # Errors
    /// When seeking or reading the file fails.
    pub fn rewind(&mut self) -> io::Result<()> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        file.rewind()?;
        let again = file.try_clone()?;
        *self = Lines { file: Some(again), ..Lines::over(&self.name, file)? };
        Ok(())
    }

    /// Reads a log from `input`. Compression is detected by the first bytes, not by the name. `name` is for messages.
    ///
    /// # Errors
    /// When the beginning of the input cannot be read.
    pub fn over(name: &str, input: impl Read + 'static) -> io::Result<Lines> {
        let mut input = BufReader::with_capacity(64 << 10, input);
        let mut start = [0; 2];
        let length = read_up_to(&mut input, &mut start)?;
        let input = io::Cursor::new(start).take(length as u64).chain(input);
        let input: Box<dyn BufRead> = match start {
            GZIP => Box::new(BufReader::with_capacity(64 << 10, MultiGzDecoder::new(input))),
            _ => Box::new(input),
        };
        Ok(Lines { name: name.to_owned(), number: 0, input, line: Vec::new(), file: None })
    }

    /// Reads the next line that is not blank. Returns `None` at the end of the log.
    ///
    /// # Errors
    /// When the log cannot be read, or ends within compressed data.
    pub fn read(&mut self) -> io::Result<Option<Line<'_>>> {
        loop {
            self.line.clear();
            let bound = LONGEST as u64 + 1;
            if self.input.by_ref().take(bound).read_until(b'\n', &mut self.line)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.line.len() > LONGEST && self.line.last() != Some(&b'\n') {
                skip_line(&mut self.input)?;
                return Ok(Some(Line::TooLong));
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(Some(Line::Text(self.line.trim_ascii_end())));
            }
        }
    }
}

fn read_up_to(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(rest) = bytes.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let part = input.fill_buf()?;
        let (length, ended) = match memchr::memchr(b'\n', part) {
            Some(end) => (end + 1, true),
            None => (part.len(), part.is_empty()),
        };
        input.consume(length);
        if ended {
            return Ok(());
        }
    }
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lines({}:{})", self.name, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[track_caller]
    fn check(bytes: Vec<u8>, expected: &[(u64, &str)]) {
        let mut lines = Lines::over("log", io::Cursor::new(bytes)).unwrap();
        let mut found = Vec::new();
        while let Some(line) = lines.read().unwrap() {
            let text = match line {
                Line::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
                Line::TooLong => "TOO LONG".to_owned(),
            };
            found.push((lines.number, text));
        }
        let expected: Vec<_> = expected.iter().map(|(number, text)| (*number, (*text).to_owned())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn lines_are_counted_and_empty_ones_skipped() {
        check(b"a\n\n \nb\r\nc".to_vec(), &[(1, "a"), (4, "b"), (5, "c")]);
        check(Vec::new(), &[]);
        check(b"a".to_vec(), &[(1, "a")]);
        check(b"\n".to_vec(), &[]);
    }

    #[test]
    fn compression_is_detected_by_the_content() {
        check(gzip(b"a\nb\n"), &[(1, "a"), (2, "b")]);
        // `cat one.gz two.gz` makes a file of several compressed parts.
        check([gzip(b"a\n"), gzip(b"b\n")].concat(), &[(1, "a"), (2, "b")]);
        check(gzip(b""), &[]);
    }

    #[test]
    fn a_compressed_log_that_ends_too_soon_is_an_error() {
        let whole = gzip("a line\n".repeat(1000).as_bytes());
        let mut lines = Lines::over("log", io::Cursor::new(whole[..whole.len() - 9].to_vec())).unwrap();
        let end = loop {
            match lines.read() {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(error) => break Some(error.kind()),
            }
        };
        assert_eq!(end, Some(io::ErrorKind::UnexpectedEof));
    }

    #[test]
    fn a_line_without_an_end_takes_bounded_memory() {
        let longest = "x".repeat(LONGEST);
        check([longest.as_bytes(), b"\nb\n"].concat(), &[(1, &longest), (2, "b")]);
        check([longest.as_bytes(), b"y\nb\n"].concat(), &[(1, "TOO LONG"), (2, "b")]);
        check("x".repeat(3 * LONGEST).into_bytes(), &[(1, "TOO LONG")]);
        let mut lines = Lines::over("log", io::repeat(b'x').take(64 << 20)).unwrap();
        assert_eq!(lines.read().unwrap(), Some(Line::TooLong));
        assert!(lines.line.capacity() <= 4 * LONGEST);
    }
}
