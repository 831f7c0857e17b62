//! Tests properties of the other parsers, on any input: the configuration, tokens, costs, keys, replies of Redis.

use super::mutation::{fuzz, is_bug_planted};
use base::time::{Clock, Micros, Timestamp};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use config::{Config, Environment};
use http::HeaderValue;
use identity::jwt::keys::{Key, KeySet};
use identity::jwt::{Issuer, KeySource, OnInvalid, OnMissing, Settings, Verifier};
use ledger::algorithm::Algorithm;
use ledger::algorithm::AlgorithmKind;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::{BucketKey, Descriptor, KeySeed, LimitIdentity, LimitTag};
use ledger::charge::{Charge, ChargePurpose, LimitId, Plan};
use ledger::cost::{Cost, ExtraDecimals};
use redis::Value;
use request::attribute::Attribute;
use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;
use stores::redis::codec::Call;

#[test]
pub fn config() {
    let words: &[&[u8]] = &[
        b"rules:", b"limits:", b"store:", b"jwt:", b"{", b"}", b"[", b"]", b": ", b"- ", b"\n", b"\n  ", b"&a ", b"*a",
        b"<<: ", b"!!str ", b"|\n", b"${X}", b"${X:-y}", b"null", b"~", b".nan", b"1e400", b"0x10", b"---\n", b"\"",
        b"'", b"#", b"\t",
    ];
    fuzz("config", words, |bytes| {
        let variable = |_: &str| Some("1".to_owned());
        let read = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
        let surroundings = Environment { variable: &variable, folder: Path::new(""), read: &read };
        match Config::parse("gateway.yaml", bytes, surroundings) {
            Ok(config) => (0, config.listeners.len().min(3), config.rules.limits().len().min(5)),
            Err(problems) => {
                // The planted bug: the last line of a report with four problems has a wrong count.
                let text = problems
                    .to_string()
                    .replace("\n4 problems", if is_bug_planted() { "\n3 problems" } else { "\n4 problems" });
                let lines: Vec<&str> = text.lines().collect();
                let distinct: HashSet<&&str> = lines.iter().filter(|line| line.starts_with("gateway.yaml")).collect();
                let count = problems.problems.len();
                assert!(count > 0 && distinct.len() == count, "a problem is reported twice, or not at all:\n{text}");
                let last = if count == 1 { "1 problem".to_owned() } else { format!("{count} problems") };
                assert_eq!(lines.last(), Some(&&*last));
                let word = |line: &str| line.rsplit(": ").next().map_or(0, |words| words.len());
                (count.min(9), word(lines[0]), 0)
            }
        }
    });
}

const SECRET: &[u8] = b"a secret of thirty-two bytes, or more";

#[test]
pub fn token() {
    let now = Timestamp(1_763_672_400_000_000);
    let settings = Settings {
        issuers: vec![Issuer {
            name: None,
            audience: Vec::new(),
            algorithms: vec![jsonwebtoken::Algorithm::HS256],
            keys: KeySource::Fixed(KeySet::of(Key::secret(SECRET).unwrap())),
            leeway: Micros(0),
        }],
        token_from: vec![Attribute::parse("header:authorization").unwrap()],
        shared_with_keys: Vec::new(),
        on_invalid: OnInvalid::Reject,
        on_missing: OnMissing::Anonymous,
        invalid_limit: TokenBucket::new(Rate { amount: Cost::ONE, period: Micros(1) }, 1).unwrap(),
    };
    // Tokens are signed here, so that the corpus contains no token that looks like a real secret.
    let sign = |header: &str, claims: &str| {
        let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let tag = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SECRET), message.as_bytes());
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag))
    };
    let good = sign(r#"{"alg":"HS256","typ":"JWT"}"#, r#"{"sub":"alice","plan":"free","exp":4102444800}"#);
    let old = sign(r#"{"alg":"HS256"}"#, r#"{"sub":"alice","exp":1}"#);
    let none = format!("{}.", &good[..good.rfind('.').unwrap()].replace("HS256", "none"));
    let words = [
        good.as_bytes(),
        old.as_bytes(),
        none.as_bytes(),
        b".",
        b"=",
        b"Bearer ",
        b"bearer ",
        b"eyJhbGciOiJub25lIn0",
        b"\0",
    ];
    let parts = good.as_bytes();
    fuzz("token", &words, |bytes| {
        // Half of all inputs begin with a part of the valid token, because inputs that are almost valid matter most.
        let bytes = match bytes.first() {
            Some(first) if first % 2 == 0 => [&parts[..usize::from(*first) % parts.len()], &bytes[1..]].concat(),
            _ => bytes.to_vec(),
        };
        let Ok(value) = HeaderValue::from_bytes(&bytes) else { return "no value" };
        let (head, ()) = http::Request::builder().header("authorization", value).body(()).unwrap().into_parts();
        let client = request::client_address::ClientAddress::new(IpAddr::from([127, 0, 0, 1]), 64);
        let request = request::request::Request::new(&head, client);
        let tokens = Verifier::new(&settings, Clock::manual(now));
        let found = tokens.find(&request);
        let token = found.as_deref().unwrap_or(&bytes);
        // The planted bug: the end of a signature is not compared.
        let unsigned = is_bug_planted() && token.len() > 40 && good.as_bytes().starts_with(&token[..token.len() - 1]);
        match tokens.verify(if unsigned { good.as_bytes() } else { token }) {
            Ok(claims) => {
                assert_eq!(token, good.as_bytes(), "a token that nobody signed");
                assert_eq!(claims.text("sub").as_deref(), Some("alice"));
                "good"
            }
            Err(identity::jwt::TokenError::Invalid(why)) => why.name(),
            Err(_) => "unavailable",
        }
    });
}

#[test]
pub fn cost() {
    let words: &[&[u8]] =
        &[b".", b"-", b"+", b"e", b"x", b"nan", b"inf", b"_", b",", b" ", b"\xef\xbc\x91", b"00000000", b"9999999999"];
    fuzz("cost", words, |bytes| {
        let plain = {
            let mut parts = bytes.splitn(2, |byte| *byte == b'.');
            let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
            parts.next().is_some_and(digits) && parts.next().is_none_or(digits)
        };
        // The planted bug: a sign before the number is ignored.
        let read = if is_bug_planted() { bytes.strip_prefix(b"+").unwrap_or(bytes) } else { bytes };
        let found = Cost::parse(read, ExtraDecimals::RoundUp);
        assert_eq!(found.is_some(), plain, "what is a plain decimal");
        if let Some(cost) = found {
            let text: f64 = std::str::from_utf8(bytes).unwrap().parse().unwrap();
            // The bound allows for the rounding of a float.
            let least = if text < 1e9 { text * 1000.0 - 0.001 } else { 0.0 };
            #[allow(clippy::cast_precision_loss, reason = "a comparison of magnitudes")]
            let thousandths = cost.thousandths() as f64;
            assert!(thousandths >= least, "less than was asked for");
            if cost.thousandths() < u64::MAX / 2 {
                assert_eq!(Cost::parse(cost.to_string().as_bytes(), ExtraDecimals::Refuse), found);
            }
            if let Some(exact) = Cost::parse(bytes, ExtraDecimals::Refuse) {
                assert_eq!(exact, cost);
            }
        }
        found.map(|cost| cost.thousandths().checked_ilog2())
    });
}

#[test]
pub fn key() {
    // Two descriptors in one input. Each part ends with 0xFF, and the second descriptor begins after 0xFE.
    let words: &[&[u8]] = &[b"\xff", b"\xfe", b"\0\0\0\x01", b"\0", b"\x01", b":", b"|", b"/", b"a"];
    let keys = ["query:a".to_owned(), "query:b".to_owned()];
    let named = |policy: &str, rule: &str| {
        let (limit, mode, algorithm) = ("", "enforce", AlgorithmKind::TokenBucket);
        KeySeed::new(&LimitIdentity { policy, rule, limit, mode, algorithm, keys: &keys })
    };
    let seed = named("p", "r");
    fuzz("key", words, |bytes| {
        let (first, second) = bytes.split_at(bytes.iter().position(|byte| *byte == 0xfe).unwrap_or(bytes.len()));
        let values = |bytes: &[u8]| -> Vec<Vec<u8>> { bytes.split(|byte| *byte == 0xff).map(<[u8]>::to_vec).collect() };
        let (one, other) = (values(first), values(second.get(1..).unwrap_or_default()));
        let name = |values: &[Vec<u8>]| {
            let mut descriptor = Descriptor::default();
            // The planted bug: values are joined without their lengths.
            let joined = [values.concat()];
            for value in if is_bug_planted() { &joined } else { values } {
                descriptor.push(0, value);
            }
            seed.key(&descriptor)
        };
        assert_eq!(name(&one) == name(&other), one == other, "{one:?} {other:?}");
        // A text that a client sends cannot have the effect of a rule's name.
        if let Ok(text) = std::str::from_utf8(first) {
            let nothing = Descriptor::default();
            let (rule, policy) = (named("p", &format!("r{text}x")), named(&format!("p{text}x"), "r"));
            assert_ne!(rule.key(&nothing), policy.key(&nothing));
        }
        (one.len().min(9), other.len().min(9), one == other)
    });
}

fn plan(key: u8, tokens: u64) -> Plan {
    let rate = Rate { amount: Cost::ONE, period: Micros(1_000_000) };
    let algorithm = Algorithm::TokenBucket(TokenBucket::new(rate, 5).unwrap());
    let charge = Charge {
        key: BucketKey([key; 16]),
        algorithm,
        cost: Cost::from_tokens(tokens),
        limit: LimitId(0),
        variant: 0,
        tag: LimitTag::default(),
        purpose: ChargePurpose::Spend,
    };
    Plan { enforced: vec![charge].into(), ..Plan::default() }
}

#[test]
pub fn reply() {
    let words: &[&[u8]] = &[
        b"*7\r\n",
        b":0\r\n",
        b":1\r\n",
        b":-1\r\n",
        b":9223372036854775807\r\n",
        b"$-1\r\n",
        b"$24\r\n",
        b"*-1\r\n",
        b"_\r\n",
        b"*1\r\n*1\r\n",
        b"\xe8\x03\0\0\0\0\0\0",
        b"\0\0\0\0\0\0\0\0",
        b"-NOSCRIPT x\r\n",
        b"+OK\r\n",
        b"%1\r\n",
        b">2\r\n",
        b"(9999\r\n",
        b",1.5\r\n",
    ];
    // Two equal requests in one run, then another request for the same bucket, and one for another bucket.
    let plans = [plan(1, 2), plan(1, 2), plan(1, 1), plan(2, 5)];
    let call = Call::new(&plans);
    fuzz("reply", words, |bytes| {
        let Ok(value) = redis::parse_redis_value(bytes) else { return "no value" };
        // The planted bug: a bucket with an invalid state in the reply counts as full.
        let mut read = value.clone();
        if is_bug_planted()
            && let Value::Array(parts) = &mut read
            && let Some(last) = parts.last_mut()
        {
            *last = Value::Nil;
        }
        let Ok(reply) = call.settle(&read) else { return "refused" };
        let Value::Array(parts) = &value else { panic!("{value:?} was taken for an answer") };
        let [Value::Int(now), _, grants @ .., first, second] = &parts[..] else { panic!("{value:?}") };
        // Returns how much each bucket can pay, in thousandths of a thousandth of a token. One of these comes back each
        // microsecond.
        let holds = |state: &Value| match state {
            Value::Nil => 5_000_000,
            Value::BulkString(bytes) => {
                let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
                match words[..] {
                    // A state in another unit is not computed here. It is worth at most as much as a full bucket.
                    [_, unit, _] if unit != 1000 && unit > 0 => 5_000_000,
                    // A state may be any time ahead, and holds its amount meanwhile. A number of 2^53 or more is not a
                    // valid time.
                    [spent, 1000, since] if since < 1 << 53 => {
                        let back = u64::try_from(*now).unwrap().saturating_sub(since);
                        5_000_000u64.saturating_sub(spent.saturating_sub(back))
                    }
                    _ => 0,
                }
            }
            _ => panic!("{state:?} was taken for a bucket"),
        };
        let paid = |from: usize, to: usize| -> u64 {
            let granted = (from..to)
                .filter(|index| reply.settlements[*index].as_ref().is_some_and(|settlement| settlement.is_granted()));
            granted.map(|index| plans[index].enforced[0].cost.thousandths() * 1000).sum()
        };
        assert_eq!((reply.settlements.len(), grants.len()), (4, 3));
        assert!(paid(0, 3) <= holds(first) && paid(3, 4) <= holds(second), "a grant out of nothing: {value:?}");
        if paid(0, 4) > 0 { "granted" } else { "settled" }
    });
}
