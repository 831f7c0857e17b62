//! Keys and costs that a client chooses: it cannot reach another client's bucket, get an extra bucket, or use unbounded
//! memory.

use std::collections::{BTreeSet, HashMap};

use identity::api_key_file;
use request::identity::KnownKey;

use crate::support::{Client, Gateway, Redis, Response, Upstream};

/// Returns the memory store, and a store in a Redis that is stopped after the test.
fn stores(redis: &Redis) -> [(&'static str, String); 2] {
    [("memory", String::new()), ("redis", redis.patient_store())]
}

fn ask(client: &mut Client, target: &str, fields: &[(&str, &[u8])]) -> Response {
    let mut bytes = format!("GET {target} HTTP/1.1\r\nHost: a\r\n").into_bytes();
    for (name, value) in fields {
        bytes.extend([name.as_bytes(), b": ", *value, b"\r\n"].concat());
    }
    client.write_bytes(&[&bytes[..], b"\r\n"].concat()).unwrap();
    client.response("GET").unwrap()
}

#[test]
fn the_method_is_that_of_the_request_line_despite_override_headers() {
    let rule = |name: &str, matched: &str, burst: u64| {
        format!(
            "  - {{name: {name}, {matched}limit_keys: [ip:address], algorithm_config: {{rate: 1/hour, burst: {burst}}}}}\n"
        )
    };
    let rules = format!("rules:\n{}{}", rule("writes", "match: {method: POST}, ", 1), rule("all", "", 4));
    let gateway = Gateway::start(&Upstream::start(), &rules);
    let mut client = gateway.client();
    let overriding =
        |method| ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"].map(|name| (name, method));
    // Two of the four of those that are no POST, whatever they would like to be.
    for method in ["GET", "OPTIONS"] {
        assert_eq!(client.send(method, "/", &overriding("POST"), "").status, 200, "{method}");
    }
    assert_eq!(client.send("POST", "/", &overriding("GET"), "x").status, 200);
    assert_eq!(client.send("POST", "/", &overriding("GET"), "x").status, 429);
    for method in ["HEAD", "PUT"] {
        assert_eq!(client.send(method, "/?_method=POST", &[], "").status, 200, "{method}");
    }
    assert_eq!(client.send("HEAD", "/", &[], "").status, 429);
    // Some frameworks read this as POST, which the rule on POST would not.
    assert_eq!(gateway.client().send("post", "/", &[], "").status, 400);
}

#[test]
fn an_invalid_cost_is_the_default_and_damages_no_bucket() {
    const DEFAULT: u64 = 8;
    // What is left of 10, when the default is 2; none where the request can never be paid.
    let costs: &[(&[u8], Option<u64>)] = &[
        (b"3", Some(7)),
        (b" 3\t", Some(7)),
        (b"0003", Some(7)),
        (b"2.5", Some(7)),
        (b"2.0001", Some(7)),
        (b"0.0001", Some(9)),
        (b"", Some(DEFAULT)),
        (b"0", Some(DEFAULT)),
        (b"0.000", Some(DEFAULT)),
        (b"-1", Some(DEFAULT)),
        (b"-0", Some(DEFAULT)),
        (b"+1", Some(DEFAULT)),
        (b"nan", Some(DEFAULT)),
        (b"NaN", Some(DEFAULT)),
        (b"inf", Some(DEFAULT)),
        (b"-Infinity", Some(DEFAULT)),
        (b"1e308", Some(DEFAULT)),
        (b"1e-9", Some(DEFAULT)),
        (b"0x10", Some(DEFAULT)),
        (b"0b1", Some(DEFAULT)),
        (b"1,5", Some(DEFAULT)),
        (b"1, 1", Some(DEFAULT)),
        (b"1_000", Some(DEFAULT)),
        (b"1 000", Some(DEFAULT)),
        (b"1.", Some(DEFAULT)),
        (b".5", Some(DEFAULT)),
        (b"1.2.3", Some(DEFAULT)),
        (b"1/2", Some(DEFAULT)),
        (b"null", Some(DEFAULT)),
        (b"\"1\"", Some(DEFAULT)),
        (b"\xef\xbc\x91", Some(DEFAULT)),
        (b"\xff", Some(DEFAULT)),
        (b"11", None),
        (b"9007199254740993", None),
        (b"18446744073709551617", None),
        (b"9999999999999999999999999999999999999999", None),
    ];
    let (redis, upstream) = (Redis::start(), Upstream::start());
    for (kind, store) in stores(&redis) {
        let rules = "rules:
  - {name: sent, limit_keys: [header:x-user], algorithm_config: {rate: 10/day, cost_source: header:x-cost, default_cost: 2}}
  - {name: asked, limit_keys: [query:user], algorithm_config: {rate: 10/day, cost_source: query:cost, default_cost: 2}}";
        let gateway = Gateway::start(&upstream, &(store + rules));
        let mut client = gateway.client();
        for (number, (cost, left)) in costs.iter().enumerate() {
            let shown = cost.escape_ascii();
            let user = format!("u{number}");
            let escaped: String = cost.iter().map(|byte| format!("%{byte:02x}")).collect();
            let plain = format!("/?user={user}");
            for (target, fields, free) in [
                ("/", vec![("X-User", user.as_bytes()), ("X-Cost", *cost)], vec![("X-User", user.as_bytes())]),
                (&format!("{plain}&cost={escaped}"), vec![], vec![]),
            ] {
                // A header is trimmed, a parameter is what it is.
                let left = if target != "/" && cost.contains(&b'\t') { Some(DEFAULT) } else { *left };
                let response = ask(&mut client, target, &fields);
                let found = (response.status == 200).then(|| response.number("ratelimit-remaining"));
                assert_eq!(found, left, "{kind}: {target} {shown}: {response:?}");
                if left.is_none() {
                    assert_eq!(response.field("x-tollgate-reason").as_deref(), Some("cost_too_large"), "{shown}");
                    assert_eq!(response.field("retry-after"), None, "{shown}");
                }
                // The bucket counts on from there.
                let next = ask(&mut client, if target == "/" { "/" } else { &plain }, &free);
                assert_eq!(next.number("ratelimit-remaining") + 2, left.unwrap_or(10), "{kind}: {target} {shown}");
            }
        }
        let twice = ask(&mut client, "/", &[("X-User", b"a"), ("X-Cost", b"1"), ("X-Cost", b"1")]);
        assert_eq!((twice.status, twice.field("x-tollgate-reason").as_deref()), (400, Some("ambiguous_request")));
        assert_eq!(ask(&mut client, "/?user=a&cost=1&cost=2", &[]).status, 400);
        // Memory has no calls that could fail, and no such series.
        if kind == "redis" {
            gateway.expect("rate_limiter_store_errors_total", &[], 0.0);
        }
    }
}

#[test]
fn values_that_differ_in_a_byte_are_different_clients() {
    let values: &[&[u8]] = &[
        b"a",
        b"A",
        b"a:b",
        b"a|b",
        b"a/b",
        b"a,b",
        b"a;b",
        b"a b",
        b"a\tb",
        b"a%3Ab",
        b"a%0Ab",
        b"a\\nb",
        b"a\"b",
        b"a'b",
        b"{a}b",
        b"{b}a",
        b"a{b}",
        b"null",
        b"undefined",
        b"0",
        b"00",
        b"-",
        b"*",
        b"../a",
        b"$(a)",
        b"\xe9",
        b"\xc3\xa9",
        b"e\xcc\x81",
        b"\xff",
        b"\xfe",
        b"\xff\xfe",
        b"\xef\xbf\xbd",
        b"\xc0\x80",
        b"\xed\xa0\x80",
    ];
    let long = [vec![b'x'; 60_000], [vec![b'x'; 59_999], vec![b'y']].concat()];
    let (redis, upstream) = (Redis::start(), Upstream::start());
    for (kind, store) in stores(&redis) {
        let rules = "limits: {target_bytes: 32KiB}
rules:
  - {name: sent, limit_keys: [header:x-user], algorithm_config: {rate: 1/day}}
  - {name: asked, limit_keys: [query:user], algorithm_config: {rate: 1/day}}
  - {name: no-one, action: deny}";
        let gateway = Gateway::start(&upstream, &(store + rules));
        let mut client = gateway.client();
        let mut statuses = HashMap::new();
        for _ in 0..2 {
            for value in values.iter().copied().chain(long.iter().map(Vec::as_slice)) {
                let status = ask(&mut client, "/", &[("X-User", value)]).status;
                statuses.entry(("sent", value)).or_insert_with(Vec::new).push(status);
            }
            // Control bytes have no place in a header, but they have in a parameter.
            for value in values.iter().copied().chain([&b"\0"[..], b"a\0", b"\r\n", b"\n", b" ", b"\x1b[31m"]) {
                let escaped: String = value.iter().map(|byte| format!("%{byte:02x}")).collect();
                let status = ask(&mut client, &format!("/?user={escaped}"), &[]).status;
                statuses.entry(("asked", value)).or_insert_with(Vec::new).push(status);
            }
        }
        for ((from, value), statuses) in &statuses {
            assert_eq!(statuses[..], [200, 429], "{kind}: {from} {}", value[..value.len().min(40)].escape_ascii());
        }
        // None is missing, empty and nothing but spaces: the rule does not apply, and the next one does.
        for fields in [&[][..], &[("X-User", &b""[..])], &[("X-User", b" \t ")]] {
            assert_eq!(ask(&mut client, "/?user=", fields).status, 403, "{fields:?}");
        }
        assert!(!gateway.errors().contains('\x1b'));
    }
    // A name of a bucket is as long as any other, whatever it was made of.
    let buckets = redis.keys().into_iter().filter(|key| !key.ends_with(b"gateways"));
    let lengths: Vec<usize> = buckets.map(|key| key.len()).collect();
    assert_eq!(lengths, vec![lengths[0]; 2 * values.len() + 2 + 6]);
}

#[test]
fn a_cookie_has_one_bucket_however_it_is_spelt() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: session, limit_keys: [cookie:sid], algorithm_config: {rate: 3/day}}]";
    let gateway = Gateway::start(&upstream, rules);
    let mut client = gateway.client();
    let mut send = |cookie: &str| {
        let response = client.get("/", &[("Cookie", cookie)]);
        (response.status, response.field("x-tollgate-reason"))
    };
    for cookie in ["sid=abc", "sid=\"%61bc\"", "x=\"; sid=\"abc\""] {
        assert_eq!(send(cookie), (200, None), "{cookie}");
    }
    // One framework or another reads `abc` from most of these.
    let unclear = ["\"abcX", "\"abcY", "\"abc", "abc\"", "\"abc\"\"", "\"abc\"X", "\"abc;X\"", "\"\\141bc\"", "\""];
    for value in unclear {
        let refused = (400, Some("ambiguous_request".to_owned()));
        assert_eq!(send(&format!("sid={value}")), refused, "{value}");
    }
    assert_eq!(send("sid=abc").0, 429);
    assert_eq!(upstream.count(), 3);
}

#[test]
fn a_name_that_becomes_one_that_is_read_is_ambiguous() {
    let upstream = Upstream::start();
    let rules = "
api_keys: {from: query:api_key, file: keys.txt}
rules:
  - {name: keyed, limit_keys: [key:id], algorithm_config: {rate: 100/day}}
  - {name: session, limit_keys: [cookie:sid_x], algorithm_config: {rate: 100/day}}
  - {name: dotted, match: {query:a.b: x, query:a_b: y}, action: deny}
  - {name: anybody, limit_keys: [], algorithm_config: {rate: 100/day}}";
    let keys = api_key_file::line(b"the-key-of-acme-is-long", &KnownKey::new("acme", "free"));
    let gateway = Gateway::before(&upstream).with(rules).file("keys.txt", &keys).start();
    let mut client = gateway.client();
    let mut send = |target: &str, cookie: &str| {
        let response = client.get(target, &[("Cookie", cookie)]);
        (response.status, response.field("x-tollgate-reason"))
    };
    // To PHP 8.2 (`$_GET`, `$_COOKIE`) or to Rack 2.2 each is the name that is read.
    let names = ["api.key", "+api_key", "%20%20api.key", "api+key", "api[key", "api%5bkey", "api_key%00x", "api_key[]"];
    let names = names.into_iter().chain(["api_key[x]", "[api_key]", "api_key]", "%61pi.key"]);
    let mut targets: Vec<String> = names.map(|name| format!("/?{name}=k")).collect();
    targets.extend(
        ["/?x=1;api_key=k", "/?;api_key=k", "/?api_key=k;x", "/?api_key;x=k", "/?x;api.key"].map(str::to_owned),
    );
    targets.push("/?api_key=k&api.key=k".to_owned());
    for target in targets {
        assert_eq!(send(&target, "a=b"), (400, Some("ambiguous_request".to_owned())), "{target}");
    }
    for cookie in
        ["sid.x=k", "sid x=k", "sid[x=k", "sid_x[]=k", "a=b; sid.x=k", "sid%5Fx=k", "sid%2Ex=k", "sid_x=k; sid.x=k"]
    {
        assert_eq!(send("/", cookie), (400, Some("ambiguous_request".to_owned())), "{cookie}");
    }
    assert_eq!(upstream.count(), 0);
    // The file reads both, so it distinguishes them; what is in a value, or in other names, is no name.
    let others =
        ["/?a.b=1&a_b=2", "/?x.y=1&x[]=2;b", "/?x=api.key;y&api-key=1&Api_key=2&api_keys=1", "/?x=%3Bapi_key=1"];
    for target in others {
        assert_eq!(send(target, "a=b; x=sid.x"), (200, None), "{target}");
    }
    assert_eq!(send("/", "a.b=1; sid_x=k; sid_xy=1; SID.x=2; a=[sid_x]"), (200, None));
    assert_eq!(upstream.count(), others.len() + 1);
}

#[test]
fn a_value_of_a_megabyte_is_rejected_before_it_reaches_a_rule() {
    let upstream = Upstream::start();
    let rules = "rules:
  - {name: all, limit_keys: [\"header:x-user|query:user|cookie:user\"], algorithm_config: {rate: 5/day}}";
    let gateway = Gateway::start(&upstream, rules);
    let long = "x".repeat(1 << 20);
    for (target, field, status) in [
        ("/".to_owned(), format!("X-User: {long}"), 431),
        ("/".to_owned(), format!("Cookie: user={long}"), 431),
        (format!("/?user={long}"), "X: y".to_owned(), 414),
        ("/".to_owned(), format!("X-User{long}: y"), 431),
        ("/".to_owned(), "X: y\r\n".repeat(100_000) + "X-User: a", 431),
    ] {
        let mut client = gateway.client();
        // It may have had enough before all is written.
        let _ = client.write_bytes(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n").as_bytes());
        assert_eq!(client.response("GET").unwrap().status, status);
    }
    gateway.expect("rate_limiter_requests_total", &[], 0.0);
    assert_eq!(upstream.count(), 0);
}

#[test]
fn an_unbounded_number_of_clients_takes_no_memory_and_no_series() {
    const CLIENTS: usize = 10_000;
    let upstream = Upstream::start();
    let rules = "store: {memory: {max_buckets: 1000}}
rules:
  - {name: user, limit_keys: [header:x-user], algorithm_config: {rate: 2/day}}";
    let gateway = Gateway::start(&upstream, rules);
    let series = |gateway: &Gateway| {
        let page = Client::connect(gateway.admin).get("/metrics", &[("Connection", "close")]).body;
        page.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect::<BTreeSet<_>>()
    };
    let mut client = gateway.client();
    const METHODS: [&str; 4] = ["QUERY", "PROPFIND", "REPORT", "LINK"];
    // Every request with a name and a path of its own, a hundred at once.
    let mut many = |from: usize, to: usize| {
        for begin in (from..to).step_by(100) {
            let all: String = (begin..begin + 100)
                .map(|number| {
                    let long = "x".repeat(2000);
                    let method = METHODS[number % METHODS.len()];
                    format!("{method} /{number}?{number} HTTP/1.1\r\nHost: h{number}\r\nX-User: {long}{number}\r\n\r\n")
                })
                .collect();
            client.write(&all);
            for _ in 0..100 {
                assert_eq!(client.response("GET").unwrap().status, 200);
            }
        }
    };
    many(0, 2000);
    let (before, resident) = (series(&gateway), gateway.metric("process_resident_memory_bytes", &[]));
    many(2000, CLIENTS);
    assert_eq!(series(&gateway), before);
    let grown = gateway.metric("process_resident_memory_bytes", &[]) - resident;
    // Held for each of them, their names would be four times that.
    assert!(grown < 4e6, "{grown} bytes more");
    gateway.expect("rate_limiter_buckets", &[], 1000.0);
    gateway.expect("rate_limiter_evicted_total", &[], 9_000.0);
}
