//! Reads the lists of bytes in tests/heads.txt and tests/responses.txt.

/// The entries of a list: the first word of each, and its text.
pub(crate) fn entries(list: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').unwrap())
}

/// The bytes that the text of an entry stands for.
pub(crate) fn unescaped(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((before, escape)) = rest.split_once('\\') {
        bytes.extend(before.as_bytes());
        let (one, after) = escape.split_at(1);
        rest = after;
        match one {
            "r" => bytes.push(b'\r'),
            "n" => bytes.push(b'\n'),
            "t" => bytes.push(b'\t'),
            "0" => bytes.push(0),
            "\\" => bytes.push(b'\\'),
            "x" => {
                bytes.push(u8::from_str_radix(&after[..2], 16).unwrap());
                rest = &after[2..];
            }
            "*" => {
                let (times, text) = after.split_once('(').unwrap();
                let (text, after) = text.split_once(')').unwrap();
                bytes.extend(unescaped(text).repeat(times.parse().unwrap()));
                rest = after;
            }
            other => panic!("{other} in {text}"),
        }
    }
    bytes.extend(rest.as_bytes());
    bytes
}
