//! A Redis with wrong replies: nothing is granted that its reply does not justify, and no reply ends the gateway.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::cost::Cost;
use redis::Value;
use stores::StoreError;
use stores::redis::codec::Call;

use crate::support::charge::{plan_of, spend};
use crate::support::{Gateway, Lateness, Upstream, now, serve_fake_redis};

/// The time at which the bucket was found, in microseconds since 1970.
const NOW: u64 = 1_763_672_400_123_456;

fn listen(lie: Vec<u8>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let lie: Arc<[u8]> = lie.into();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let lie = Arc::clone(&lie);
            std::thread::spawn(move || serve_fake_redis(stream, &lie));
        }
    });
    port
}

/// Returns the reply to one request for one bucket.
fn reply(now: &str, healed: &str, granted: &str, state: &[u8]) -> Vec<u8> {
    [format!("*4\r\n:{now}\r\n:{healed}\r\n:{granted}\r\n").as_bytes(), state].concat()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn packed(state: &[u64]) -> Vec<u8> {
    [format!("${}\r\n", 8 * state.len()).into_bytes(), words(state), b"\r\n".to_vec()].concat()
}

/// The state of an empty bucket of the rule below: the spent amount, its unit, and the time.
const SPENT: [u64; 3] = [5_000_000, 1000, NOW];

const FULL: &[u8] = b"$-1\r\n";

fn lies() -> Vec<(&'static str, Vec<u8>)> {
    let at = NOW.to_string();
    let granted = |number: &str| reply(&at, "0", number, FULL);
    let found = |state: &[u8]| reply(&at, "0", "1", state);
    let text = |text: &str| text.as_bytes().to_vec();
    vec![
        ("a full bucket that refuses", granted("0")),
        ("more grants than requests", granted("2")),
        ("more healed than there are", reply(&at, "2", "1", FULL)),
        ("a negative grant", granted("-1")),
        ("a grant beyond 64 bits", granted("9223372036854775808")),
        ("a grant in words", granted("one")),
        ("a moment before time", reply("-1", "0", "1", FULL)),
        ("a moment beyond what is exact", reply("9007199254740993", "0", "1", FULL)),
        ("the largest moment", reply("9223372036854775807", "0", "1", FULL)),
        ("a negative count of healed buckets", reply(&at, "-5", "1", FULL)),
        ("a spent bucket that grants", found(&packed(&SPENT))),
        ("a state of nothing that grants", found(b"$0\r\n\r\n")),
        ("a state of seven bytes", found(b"$7\r\nxxxxxxx\r\n")),
        ("a state of one word that grants", found(&packed(&[0]))),
        ("a state of many words that grants", found(&packed(&[0; 1000]))),
        ("a state of words beyond what is exact", found(format!("$24\r\n{}\r\n", "~".repeat(24)).as_bytes())),
        ("a state that is a number", found(b":0\r\n")),
        ("a state that is a list", found(b"*3\r\n:0\r\n:1\r\n:0\r\n")),
        ("a state that is an error", found(b"-ERR no\r\n")),
        ("a state that is a status", found(b"+OK\r\n")),
        ("one part too few", text("*3\r\n:1\r\n:0\r\n:1\r\n")),
        ("the answer to two requests", text("*6\r\n:1\r\n:0\r\n:1\r\n:1\r\n$-1\r\n$-1\r\n")),
        ("an empty list", text("*0\r\n")),
        ("no list", text("*-1\r\n")),
        ("a list of less than nothing", text("*-2\r\n")),
        ("a list as long as can be", text("*9223372036854775807\r\n:1\r\n")),
        ("a list of two billion", text("*2147483647\r\n:1\r\n")),
        ("a text as long as can be", text("$9223372036854775807\r\nx")),
        ("a text of less than nothing", text("$-9\r\n")),
        ("lists in lists", [b"*1\r\n".repeat(10_000), b":1\r\n".to_vec()].concat()),
        ("lists in lists without an end", b"*1\r\n".repeat(500_000)),
        ("a list without an end", [b"*2000000000\r\n".to_vec(), b":1\r\n".repeat(4 << 20)].concat()),
        ("a line without an end", vec![b'+'; 64 << 20]),
        ("nothing but line ends", b"\r\n".repeat(1000)),
        ("HTTP", text("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")),
        ("bytes", (0..=255).cycle().take(5000).collect()),
        ("a map", text("%1\r\n:1\r\n:2\r\n")),
        ("a set", text("~4\r\n:1\r\n:0\r\n:1\r\n_\r\n")),
        ("a message that nobody asked for", text(">2\r\n+message\r\n+hello\r\n")),
        ("yes", text("#t\r\n")),
        ("no number", text(",nan\r\n")),
        ("a large number", [b"(".to_vec(), vec![b'9'; 5000], b"\r\n".to_vec()].concat()),
        ("an attribute", text("|1\r\n+a\r\n+b\r\n:1\r\n")),
        ("an error without a word", text("-\r\n")),
        ("an error", text("-ERR no\r\n")),
        ("a redirection", text("-MOVED 1 10.0.0.1:6379\r\n")),
        ("a script that is never there", text("-NOSCRIPT No matching script\r\n")),
        ("a long error", [b"-ERR ".to_vec(), vec![b'x'; 500_000], b"\r\n".to_vec()].concat()),
    ]
}

const RULES: &str = "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rps: 1, burst: 5}}\non_store_failure: deny\n";

fn start(upstream: &Upstream, port: u16) -> Gateway {
    Gateway::start(upstream, &format!("store: {{redis: {{url: \"redis://127.0.0.1:{port}\"}}}}\n{RULES}"))
}

#[test]
fn an_inconsistent_reply_grants_nothing() {
    let upstream = Upstream::start();
    // Told the truth in the same way, it grants.
    let port = listen(reply(&NOW.to_string(), "0", "1", FULL));
    let honest = Gateway::start(
        &upstream,
        &format!("store: {{redis: {{url: \"redis://127.0.0.1:{port}\", timeout: 10s}}}}\n{RULES}"),
    );
    assert_eq!(honest.client().get("/", &[("X-User", "a")]).number("ratelimit-remaining"), 4);
    assert_eq!(upstream.count(), 1);
    let (lies, late) = (lies(), Lateness::measure());
    assert!(lies.len() >= 40, "{} lies", lies.len());
    let mut wrong = Vec::new();
    for (name, lie) in lies {
        let mut gateway = start(&upstream, listen(lie));
        let mut client = gateway.client();
        let (start, before) = (now(), gateway.cpu_time());
        // What a spent bucket has to refuse, it may refuse.
        let answers = [(); 3].map(|()| client.get("/", &[("X-User", "a")]).status);
        let (took, computed) = (start.elapsed(), gateway.cpu_time() - before);
        // To read much takes its time, where others compute as well; to wait for more does not.
        let most = Duration::from_millis(500) + 3 * late.of_a_request() + 10 * computed;
        let waited = took > most || computed > Duration::from_secs(2);
        if waited || answers != [503; 3] {
            wrong.push(format!("{name}: {answers:?} after {took:?}, of which it computed {computed:?}"));
        }
        let held = gateway.metric("process_resident_memory_bytes", &[]);
        // A megabyte of an answer, which is all that is read of one, can be a quarter of a million values; on each thread.
        if !gateway.is_running() || held > 200e6 || gateway.has_logged("panic") {
            wrong.push(format!("{name}: {held} bytes, {}", gateway.errors()));
        }
    }
    assert!(wrong.is_empty(), "{} of them are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_reply_is_used_only_for_its_own_request() {
    let upstream = Upstream::start();
    // Each answer comes twice, and is one to a request with a single limit.
    let once = reply(&NOW.to_string(), "0", "1", FULL);
    let port = listen([&once[..], &once].concat());
    let rules = "rules:
  - {name: one, match: {path: /one}, limit_keys: [], expose: true, algorithm_config: {rps: 1, burst: 5}}
  - {name: two, limit_keys: [], limits: {second: {rps: 1, burst: 5}, day: {rate: 9/day}}}
on_store_failure: deny
";
    let gateway =
        Gateway::start(&upstream, &format!("store: {{redis: {{url: \"redis://127.0.0.1:{port}\"}}}}\n{rules}"));
    let mut client = gateway.client();
    for _ in 0..20 {
        let one = client.get("/one", &[]);
        assert!(one.status == 503 || one.number("ratelimit-remaining") == 4, "{one:?}");
        assert_eq!(client.get("/two", &[]).status, 503);
    }
}

/// Returns a plan for the bucket with this key, with a cost of this many tokens.
fn plan(key: u8, tokens: u64) -> Plan {
    let rate = Rate { amount: Cost::ONE, period: Micros(1_000_000) };
    let algorithm = Algorithm::TokenBucket(TokenBucket::new(rate, 5).unwrap());
    let (key, cost) = (BucketKey([key; 16]), Cost::from_tokens(tokens));
    plan_of(spend(key, algorithm, cost))
}

#[test]
fn a_reply_with_reordered_parts_is_rejected() {
    let plans = [plan(1, 1), plan(2, 1)];
    let call = Call::new(&plans);
    let int = |number: u64| Value::Int(i64::try_from(number).unwrap());
    // The first is full, and pays; the second has nothing left.
    let parts = [int(NOW), int(0), int(1), int(0), Value::Nil, Value::BulkString(words(&SPENT))];
    let mut accepted = Vec::new();
    let mut order = [0, 1, 2, 3, 4, 5];
    permute(&mut order, 0, &mut |order| {
        let moved = Value::Array(order.iter().map(|index| parts[*index].clone()).collect());
        if let Ok(reply) = call.settle(&moved) {
            let granted: Vec<bool> = reply.settlements.iter().map(|one| one.as_ref().unwrap().is_granted()).collect();
            accepted.push((order[2..].to_vec(), reply.now.0, granted));
        }
    });
    accepted.sort();
    accepted.dedup();
    for (order, _, granted) in &accepted {
        // Nobody is granted anything but by a full bucket in its own place.
        let full = [order[2] == 4, order[3] == 4];
        assert_eq!(granted[..], full, "{order:?}");
    }
    assert!(accepted.contains(&(vec![2, 3, 4, 5], NOW, vec![true, false])), "{accepted:?}");
    for wrong in [&parts[..5], &[&parts[..], &[Value::Nil]].concat(), &[&parts[..], &parts].concat()] {
        assert!(call.settle(&Value::Array(wrong.to_vec())).is_err());
    }
}

#[test]
fn a_plan_that_the_script_left_out_is_neither_granted_nor_refused() {
    let plans = [plan(1, 1), plan(1, 1), plan(2, 1)];
    let call = Call::new(&plans);
    // The first two are one run.
    let parts = |grants: [i64; 2]| {
        let numbers = [i64::try_from(NOW).unwrap(), 0, grants[0], grants[1]].map(Value::Int);
        Value::Array(numbers.into_iter().chain([Value::Nil, Value::Nil]).collect())
    };
    let granted = |grants| -> Result<Vec<Option<bool>>, _> {
        let reply = call.settle(&parts(grants))?;
        let shown: Vec<_> = reply.left.iter().map(|bucket| bucket.key).collect();
        assert!(!shown.contains(&BucketKey([1; 16])), "nothing is known of a bucket that was not asked");
        Ok(reply.settlements.iter().map(|one| one.as_ref().map(|settlement| settlement.is_granted())).collect())
    };
    // Because its numbers do not hold now, or because nothing could be written.
    for left_out in [-1, -2] {
        assert_eq!(granted([left_out, 1]), Ok(vec![None, None, Some(true)]));
        assert_eq!(call.settle(&parts([left_out, 1])).unwrap().out_of_memory, left_out == -2);
    }
    assert_eq!(granted([-3, 1]), Err(StoreError::UnexpectedReply));
    // The bucket can pay, so no ban would have begun.
    assert_eq!(granted([-4, 1]), Err(StoreError::UnexpectedReply));
}

fn permute(order: &mut [usize; 6], from: usize, each: &mut impl FnMut(&[usize; 6])) {
    if from == order.len() {
        return each(order);
    }
    for index in from..order.len() {
        order.swap(from, index);
        permute(order, from + 1, each);
        order.swap(from, index);
    }
}
