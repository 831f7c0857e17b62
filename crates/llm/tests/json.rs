//! Compares the scanner with serde_json: the same bodies are JSON, and the same values are at the same pointers.

#![allow(unreachable_pub, reason = "a program exports nothing: what its modules share is pub")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test fails by panicking"
)]

#[path = "simple/json.rs"]
mod simple;

use llm::json::{Interest, JsonError, JsonScanner, Lookup, Pointer, PointerSet, Value};
use proptest::prelude::*;
use serde_json::Number;
use simple::{Tree, compare, pointers};

fn tree() -> impl Strategy<Value = Tree> {
    let number = prop_oneof![
        any::<i64>().prop_map(Number::from),
        any::<u64>().prop_map(Number::from),
        (-1e300..1e300).prop_map(|number| Number::from_f64(number).unwrap()),
    ];
    let text = prop_oneof!["[ab0é😀\\\\\"\\n\\x00/]{0,6}", Just("x".repeat(Value::MAX_BYTES + 1))];
    let leaf = prop_oneof![
        Just(Tree::Null),
        any::<bool>().prop_map(Tree::Bool),
        number.prop_map(Tree::Number),
        text.prop_map(Tree::Text),
    ];
    let name = prop_oneof![Just("a"), Just("b"), Just("0"), Just(""), Just("é"), Just("aa"), Just("longer")];
    leaf.prop_recursive(6, 40, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Tree::Array),
            prop::collection::vec((name.clone().prop_map(str::to_owned), inner), 0..5).prop_map(Tree::Object),
        ]
    })
}

/// Writes a value with white space and escapes of any kind.
fn write(tree: &Tree, random: &mut fastrand::Rng, out: &mut String) {
    space(random, out);
    match tree {
        Tree::Null => out.push_str("null"),
        Tree::Bool(value) => out.push_str(&value.to_string()),
        Tree::Number(number) => out.push_str(&number.to_string()),
        Tree::Text(text) => write_text(text, random, out),
        Tree::Array(elements) => {
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                write(element, random, out);
            }
            space(random, out);
            out.push(']');
        }
        Tree::Object(members) => {
            out.push('{');
            for (index, (name, member)) in members.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                space(random, out);
                write_text(name, random, out);
                space(random, out);
                out.push(':');
                write(member, random, out);
            }
            space(random, out);
            out.push('}');
        }
    }
    space(random, out);
}

fn space(random: &mut fastrand::Rng, out: &mut String) {
    if random.u8(..8) == 0 {
        out.push_str([" ", "\n", "\r\n", "\t", "   "][random.usize(..5)]);
    }
}

fn write_text(text: &str, random: &mut fastrand::Rng, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '/' if random.bool() => out.push_str("\\/"),
            '\n' if random.bool() => out.push_str("\\n"),
            _ if character < ' ' || random.u8(..4) == 0 => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let digits = format!("{unit:04x}");
                    out.push_str("\\u");
                    out.push_str(&if random.bool() { digits.to_uppercase() } else { digits });
                }
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn the_same_values_are_at_the_same_pointers(tree in tree(), seed: u64, piece in 1..80usize) {
        let mut body = String::new();
        write(&tree, &mut fastrand::Rng::with_seed(seed), &mut body);
        prop_assert!(compare(body.as_bytes(), body.as_bytes().chunks(piece)).is_some());
    }

    #[test]
    fn the_same_bodies_are_json(tree in tree(), seed: u64, piece in 1..80usize) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut body = String::new();
        write(&tree, &mut random, &mut body);
        let mut body = body.into_bytes();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..=body.len());
            match random.u8(..4) {
                0 => body.truncate(at),
                1 if at < body.len() => _ = body.remove(at),
                2 if at < body.len() => body[at] = random.u8(..),
                _ => body.insert(at, *random.choice(b"{}[]\",:\\-+.eE0123456789ntfu \x80\xc3\xa9\xed\xf0\x01").unwrap()),
            }
        }
        compare(&body, body.chunks(piece));
    }

    #[test]
    fn the_same_numbers_are_json(number in "[-+]{0,2}[0-9]{0,3}[.]{0,2}[0-9]{0,2}[eE]{0,2}[-+]{0,2}[0-9]{0,2}") {
        for body in [number.clone(), format!("[{number}]"), format!("{{\"a\":{number} }}")] {
            compare(body.as_bytes(), body.as_bytes().chunks(1));
            compare(body.as_bytes(), [body.as_bytes()]);
        }
    }
}

#[test]
fn strings_are_unicode() {
    for body in [
        &br#""\ud800""#[..],
        br#""\ude00\ud800""#,
        br#"{"\ud800a":1}"#,
        b"\"\xed\xa0\x80\"",
        b"\"\xc3\"",
        b"\"\xff\"",
        b"\"\x1f\"",
        b"\xef\xbb\xbf1",
        b"\"a\" b",
        b"{\"a\":1,}",
        b"[1,]",
        b"[,1]",
        b"{,}",
        b"[}",
        b"{]",
        b"{\"a\"}",
        b"{1:2}",
        b"nul",
        b"nulls",
        b"True",
        b"'a'",
        b"NaN",
        b"/**/1",
        b"",
        b" ",
        b"01",
        b"1 2",
        b"\x0c1",
    ] {
        for piece in 1..=body.len().max(1) {
            assert_eq!(compare(body, body.chunks(piece)), None, "{}", body.escape_ascii());
        }
    }
}

#[test]
fn errors_name_the_byte() {
    let error = |body: &[u8]| {
        let set = pointers();
        let mut scanner = JsonScanner::new(&set, 200);
        body.chunks(3).for_each(|piece| scanner.push(piece));
        scanner.finish().unwrap_err()
    };
    assert_eq!(error(b"{\"a\": x}"), JsonError::Syntax { offset: 6 });
    assert_eq!(error(b"[\"ab\xff\"]"), JsonError::NotUtf8 { offset: 4 });
    assert_eq!(error(b"[1"), JsonError::Incomplete);
    assert_eq!(error(&[b'['; 150]), JsonError::TooDeep { offset: 127 });
    assert_eq!(error(&[b' '; 201]), JsonError::TooLong);
    assert_eq!(error(br#"["\udc00"]"#), JsonError::LoneSurrogate);
    let deep = ["[".repeat(127), "]".repeat(127)].concat();
    assert!(compare(deep.as_bytes(), [deep.as_bytes()]).is_some());
    let deeper = format!("[{deep}]");
    assert_eq!(compare(deeper.as_bytes(), [deeper.as_bytes()]), None);
}

#[test]
fn bytes_are_counted_as_text_and_as_they_were_sent() {
    let pointer = |text: &str| Pointer::parse(text).unwrap();
    let set = PointerSet::new([
        (pointer("/a"), Interest::TextBytes),
        (pointer("/b"), Interest::SentBytes),
        (pointer("/b/1"), Interest::SentBytes),
        (pointer("/a"), Interest::Value),
        (pointer("/b/0"), Interest::TextBytes),
    ]);
    let body = r#"{"a": "\u00e9\n" , "b" : [12, {"c" : null} , "x"] , "d": "ignored"}"#;
    for piece in 1..=body.len() {
        let mut scanner = JsonScanner::new(&set, 1000);
        body.as_bytes().chunks(piece).for_each(|piece| scanner.push(piece));
        assert_eq!(scanner.finish(), Ok(()));
        let counts = [0, 1, 2, 4].map(|index| scanner.bytes(index));
        assert_eq!(counts, [3, r#"[12, {"c" : null} , "x"]"#.len() as u64, r#"{"c" : null}"#.len() as u64, 0]);
        assert_eq!(scanner.value(3), Lookup::Value(&Value::Text("é\n".to_owned())));
        assert_eq!(scanner.all_bytes(), counts.iter().sum::<u64>());
        assert_eq!(scanner.all_bytes_before(3), 3);
    }
}

#[test]
fn bytes_before_an_error_are_counted_and_none_after_it() {
    let pointer = |text: &str| Pointer::parse(text).unwrap();
    let set = PointerSet::new([(pointer("/a"), Interest::TextBytes), (pointer("/b"), Interest::SentBytes)]);
    for (body, limit, expected) in [
        (&b"{\"a\": \"xy\nz\", \"b\": 1}"[..], 1000, [2, 0]),
        (b"{\"a\": \"x\xe4\xbdz\", \"b\": 1}", 1000, [3, 0]),
        (b"{\"a\": \"x\xff\", \"b\": 1}", 1000, [1, 0]),
        (br#"{"a": "x\u00e9\q", "b": 1}"#, 1000, [3, 0]),
        (b"{\"a\": \"x\", \"b\": [1, 2, x, 3, 4]}", 1000, [1, 7]),
        (b"{\"a\": \"x\", \"b\": [1, 2, 3, 4, 5]}", 23, [1, 7]),
    ] {
        for piece in 1..=body.len() {
            let mut scanner = JsonScanner::new(&set, limit);
            body.chunks(piece).for_each(|piece| scanner.push(piece));
            assert!(scanner.finish().is_err(), "{}", body.escape_ascii());
            let counts = [0, 1].map(|index| scanner.bytes(index));
            assert_eq!(counts, expected, "{} in pieces of {piece}", body.escape_ascii());
        }
    }
}

#[test]
fn text_inside_of_a_value_is_counted_with_names_and_without_data_urls() {
    let pointer = |text: &str| Pointer::parse(text).unwrap();
    let below = ["/m", "/m/1", "/m/1/c/0", "/m/1/ab"].map(|text| (pointer(text), Interest::TextBelow));
    let set = PointerSet::new(below.into_iter().chain([(pointer("/m/1"), Interest::OwnText)]));
    let body = r#"{"x": "ignored", "m": ["\u00e9", {"ab": 12.5, "c": ["DATA:image/png;base64,AAAA", "data", "data:;base64,AA"], "data:": "data :"}, true],
        "n": "data:,"}"#;
    for piece in 1..=body.len() {
        let mut scanner = JsonScanner::new(&set, 1000);
        body.as_bytes().chunks(piece).for_each(|piece| scanner.push(piece));
        assert_eq!(scanner.finish(), Ok(()));
        // A data URL without a pointer of its own is text.
        let inner = "ab12.5cdatadata:;base64,AAdata:data :".len() as u64;
        assert_eq!([scanner.bytes(0), scanner.bytes(1)], [2 + inner, inner], "in pieces of {piece}");
        assert_eq!([scanner.media(0), scanner.media(1)], [1, 1]);
        // A number is text too. An object has no text of its own.
        assert_eq!([2, 3, 4].map(|index| scanner.bytes(index)), [0, 4, 0]);
    }
}
