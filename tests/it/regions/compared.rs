//! `tollgate records check` with limits over several regions: the records of all regions are what home counts as spent, less what is
//! unspent in purses.

use std::path::PathBuf;

use super::{REGIONS, Region, ask, on_redis, store};
use crate::support::{Answers, Gateway, Redis, Relay, Upstream, eventually, tollgate};

/// A limit over all regions, and one of each region. A region does not return what it holds while a test runs.
const RULES: &str = "
check: {allow: [unverified_key, home_local]}
rules:
  - name: both
    limit_keys: [header:x-user]
    limits:
      year: {algorithm: fixed_window, limit: 1000, window: year, scope: global, lease: {share: 2%}, meter: everywhere}
      here: {algorithm: fixed_window, limit: 1000, window: year, meter: here}
records: {to: records.jsonl, every: 1d, meters: [everywhere, here], subject: [header:x-user]}
";

/// Starts a gateway in each of the first regions.
fn start<const N: usize>(home: &Redis, rules: &str, upstream: &Upstream) -> [Region; N] {
    std::array::from_fn(|index| Region::start(REGIONS[index], home.port, rules, upstream))
}

/// Starts gateways in two regions whose home has these settings.
fn start_with(home: &Redis, upstream: &Upstream, settings: &str) -> [Region; 2] {
    ["eu", "us"].map(|name| {
        let (redis, relay) = (Redis::start(), Relay::start(home.port));
        let store = store(&redis, name, &on_redis(relay.port))
            .replace("timeout: 2s\n    region", &format!("{settings}\n    region"));
        let gateway = Gateway::start(upstream, &(store + RULES));
        gateway.expect_logged("home is up");
        Region { gateway, redis, relay }
    })
}

fn send(region: &Region, times: usize, user: &str) {
    let mut client = region.gateway.client();
    for _ in 0..times {
        assert_eq!(ask(&mut client, user).status, 200);
    }
}

/// Ends the gateways, so that their records are whole.
fn end(regions: &mut [Region]) {
    for Region { gateway, .. } in regions {
        gateway.signal("TERM");
        assert_eq!(gateway.wait().0.code(), Some(0), "{}", gateway.errors());
    }
}

fn file(gateway: &Gateway, name: &str) -> String {
    gateway.file(name).display().to_string()
}

/// Compares the records of some regions with the stores of some.
fn check(recorded: &[&Region], read: &[&Region]) -> (Option<i32>, String) {
    let records = recorded.iter().map(|region| file(&region.gateway, "records.jsonl"));
    let files = read.iter().flat_map(|region| ["-c".to_owned(), file(&region.gateway, "gateway.yaml")]);
    let arguments: Vec<String> =
        ["records", "check"].map(str::to_owned).into_iter().chain(records).chain(files).collect();
    let output = tollgate(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    (output.code, output.out + &output.err)
}

/// Returns the line about a meter and a user.
fn line<'o>(output: &'o str, meter: &str, user: &str) -> &'o str {
    let start = format!("{meter} header:x-user={user},");
    output.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{meter} {user}: {output}"))
}

#[test]
fn records_of_all_regions_are_what_home_counts_as_spent_less_what_is_in_purses() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let mut regions = start::<3>(&home, RULES, &upstream);
    send(&regions[0], 3, "a");
    send(&regions[1], 27, "a");
    send(&regions[2], 1, "b");
    end(&mut regions);
    let [eu, us, ap] = &regions;
    let all = [eu, us, ap];

    let (code, out) = check(&all, &all);
    assert_eq!(code, Some(0), "{out}");
    let of_a = line(&out, "everywhere", "a");
    assert!(of_a.contains("30 requests recorded") && of_a.ends_with(" unspent in purses: equal"), "{out}");
    assert!(line(&out, "here", "a").ends_with("30 spent: equal"), "{out}");
    assert!(out.ends_with("4 equal, 0 different, 0 not compared\n"), "{out}");

    // The purses of the others are not read. Their sums at home say how much can lie there.
    let (code, out) = check(&all, &[eu]);
    assert!(line(&out, "everywhere", "a").contains("more spent, of up to 20 in a purse that was not read"), "{out}");
    assert!(out.contains("explained: what regions hold whose gateway.yaml is not given"), "{out}");
    // A limit of each region has a bucket in each of them.
    assert!(line(&out, "here", "a").ends_with("3 spent: 27 less spent"), "{out}");
    assert!(out.contains("a limit of each region is compared with the stores of the regions whose files"), "{out}");
    assert!(out.ends_with("0 equal, 2 explained, 2 different, 0 not compared\n") && code == Some(1), "{out}");

    // A file of records is missing.
    let (code, out) = check(&[eu, us], &all);
    assert_eq!(code, Some(0), "no line is about b: {out}");
    let (code, out) = check(&[eu, ap], &all);
    assert!(line(&out, "everywhere", "a").ends_with("unspent in purses: 27 more spent"), "{out}");
    assert!(out.contains("a lease that was lost on its way") && code == Some(1), "{out}");
    // More is missing than the purse that is not read can hold.
    let (code, out) = check(&[eu, ap], &[eu, ap]);
    assert!(line(&out, "everywhere", "a").contains(" more spent") && code == Some(1), "{out}");
    assert!(!line(&out, "everywhere", "a").contains("explained"), "{out}");
}

#[test]
fn what_is_on_its_way_to_a_purse_is_unspent() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let mut regions = start::<1>(&home, RULES, &upstream);
    send(&regions[0], 2, "a");
    // Home gives another lease when little of the first is left, and nobody hears of it.
    regions[0].relay.set(Answers::Lost);
    send(&regions[0], 18, "a");
    let text = std::fs::read_to_string(regions[0].gateway.file("gateway.yaml")).unwrap();
    let text = text.replace(&regions[0].relay.port.to_string(), &home.port.to_string());
    std::fs::write(regions[0].gateway.file("direct.yaml"), text).unwrap();
    let direct = file(&regions[0].gateway, "direct.yaml");
    let at_home = ["bucket", "show", "everywhere", "header:x-user=a", "--home", "--json", "-c", &direct];
    let left = || {
        let shown = tollgate(&at_home).json();
        shown["buckets"][0]["left"].as_u64().unwrap_or_else(|| panic!("{shown}"))
    };
    // The first lease is 20.
    eventually("home has heard of it", || left() < 980);
    let spent = 1000 - left();
    end(&mut regions);
    regions[0].relay.set(Answers::Pass);
    let [eu] = &regions;
    let (code, out) = check(&[eu], &[eu]);
    let of_a = line(&out, "everywhere", "a");
    let unspent = spent - 20;
    let expected = format!("{spent} spent at home, {unspent} of it unspent in purses: equal");
    assert!(code == Some(0) && of_a.ends_with(&expected), "{out}");
}

#[test]
fn what_was_passed_without_home_is_not_spent_there() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let mut regions = start_with(&home, &upstream, "timeout: 300ms\n    on_failure: local");
    send(&regions[0], 1, "a");
    regions.iter().for_each(|region| region.relay.set(Answers::Lost));
    send(&regions[0], 40, "a");
    send(&regions[1], 5, "a");
    end(&mut regions);
    regions.iter().for_each(|region| region.relay.set(Answers::Pass));
    let [eu, us] = &regions;
    let (code, out) = check(&[eu, us], &[eu, us]);
    let of_a = line(&out, "everywhere", "a");
    assert!(
        code == Some(0) && of_a.contains("46 requests recorded") && of_a.ends_with(" passed without home: equal"),
        "{out}"
    );
    let (_, out) = check(&[eu, us], &[eu]);
    let explained = ": explained: 5 less spent, of up to 666.666 that other regions can have passed without home";
    assert!(line(&out, "everywhere", "a").ends_with(explained), "{out}");
}

#[test]
fn what_a_region_has_returned_needs_no_file_of_it() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let mut regions = start_with(&home, &upstream, "timeout: 2s\n    return_after: 1s");
    send(&regions[1], 3, "a");
    let labels = ["rule=\"both.year\""];
    let returned = || regions[1].gateway.metric("rate_limiter_returned_total", &labels);
    eventually("the rest of the lease is returned", || returned() > 0.0);
    end(&mut regions);
    let [eu, us] = &regions;
    let (_, out) = check(&[us], &[eu]);
    let of_a = line(&out, "everywhere", "a");
    assert!(of_a.ends_with("3 spent at home, 0 of it unspent in purses: equal"), "{out}");
}

#[test]
fn a_period_that_began_with_a_request_is_one_in_all_regions() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let rules = RULES.replace("window: year, scope", "window: 1h, anchor: first_request, scope");
    let mut regions = start::<2>(&home, &rules, &upstream);
    // Each lease ends by what home said, and by the clock of the region.
    send(&regions[0], 45, "a");
    send(&regions[1], 25, "a");
    end(&mut regions);
    let [eu, us] = &regions;
    let (code, out) = check(&[eu, us], &[eu, us]);
    let of_a = line(&out, "everywhere", "a");
    assert!(code == Some(0) && of_a.contains("70 requests recorded") && of_a.ends_with(": equal"), "{out}");
    assert!(out.ends_with("2 equal, 0 different, 0 not compared\n"), "{out}");
}

#[test]
fn files_that_are_not_those_of_several_regions_are_errors() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let regions = start::<2>(&home, RULES, &upstream);
    let [eu, us] = &regions;
    std::fs::write(eu.gateway.file("records.jsonl"), "").unwrap();
    let changed = |from: &str, to: &str| {
        let text = std::fs::read_to_string(us.gateway.file("gateway.yaml")).unwrap();
        assert!(text.contains(from), "{text}");
        let path: PathBuf = us.gateway.file("other.yaml");
        std::fs::write(&path, text.replace(from, to)).unwrap();
        path.display().to_string()
    };
    let wrong = |other: &str, message: &str| {
        let (records, own) = (file(&eu.gateway, "records.jsonl"), file(&eu.gateway, "gateway.yaml"));
        let output = tollgate(&["records", "check", &records, "-c", &own, "-c", other]);
        assert!(output.code == Some(1) && output.err.contains(message), "{message}: {output:?}");
    };
    wrong(&file(&eu.gateway, "gateway.yaml"), "gateway.yaml: store.home.region: is eu, as in ");
    let of_eu = format!("127.0.0.1:{}\", timeout", eu.redis.port);
    wrong(&changed(&format!("127.0.0.1:{}\", timeout", us.redis.port), &of_eu), "other.yaml: store: is that of ");
    wrong(&changed("regions: [eu, us, ap]", "regions: [us, eu]"), "store.home.regions: must be the same list as in ");
}
