//! `tollgate import nginx`: nginx with its file and the gateway with the imported one refuse the same requests.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::Duration;

use crate::edges::edge::{Edge, program};
use crate::support::{Client, Gateway, Upstream, eventually, now, short_or_long, tollgate};

/// nginx and a gateway with the same limits, each before an upstream of its own.
struct Pair {
    nginx: Edge,
    gateway: Gateway,
    /// The upstreams of nginx and of the gateway, with the senders that let them answer `/slow`.
    upstreams: [(Upstream, Sender<()>); 2],
    /// What the import has named.
    losses: String,
    imported: String,
}

impl Pair {
    /// Starts both with these directives of `http`. Servers listen at 127.0.0.1:8080, and proxy to 127.0.0.1:9000.
    fn start(nginx: &Path, http: &str) -> Pair {
        let upstreams = [(); 2].map(|()| Upstream::answering_when_told());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("http {{\n{http}\n}}\n")).unwrap();
        let imported = tollgate(&["import", "nginx", file.path().to_str().unwrap()]);
        assert_eq!(imported.code, Some(0), "{}", imported.err);
        let rest: String = imported
            .out
            .lines()
            .filter(|line| !line.starts_with("upstream:"))
            .map(|line| format!("{line}\n"))
            .collect();
        let gateway = Gateway::start(&upstreams[1].0, &rest);
        let main = format!(
            "events {{}}\nhttp {{\naccess_log off;\nlimit_req_status 429;\nlimit_conn_status 429;\n{http}\n}}\n"
        );
        let own = "daemon off; master_process off; error_log stderr; pid nginx.pid;";
        let arguments = ["-p", "FOLDER", "-c", "FOLDER/nginx.conf", "-e", "stderr", "-g", own];
        let nginx = Edge::start(nginx, &arguments, &[("nginx.conf", &main)], &[gateway.http], &upstreams[0].0);
        Pair { nginx, gateway, upstreams, losses: imported.err, imported: imported.out }
    }

    fn clients(&self) -> [Client; 2] {
        [self.nginx.client(), self.gateway.client()]
    }

    /// Sends the same request to both. Returns their statuses.
    fn statuses(&self, target: &str, fields: &[(&str, &str)]) -> [u16; 2] {
        self.clients().map(|mut client| client.get(target, fields).status)
    }

    /// Sends `count` requests at once to each of both. Returns for each the number that passed at once, the number that passed
    /// later, and the number that were refused.
    fn burst(&self, target: &str, count: usize) -> [[usize; 3]; 2] {
        let send = |mut client: Client| {
            let begin = now();
            let status = client.get(target, &[]).status;
            match (status, begin.elapsed() < AT_ONCE) {
                (200, true) => 0,
                (200, false) => 1,
                (429, _) => 2,
                (other, _) => panic!("{other}"),
            }
        };
        std::thread::scope(|scope| {
            let sent: Vec<_> =
                (0..count).map(|_| self.clients().map(|client| scope.spawn(move || send(client)))).collect();
            let mut counts = [[0; 3]; 2];
            for (of_one, sent) in sent.into_iter().flat_map(|sent| [0, 1].into_iter().zip(sent)) {
                counts[of_one][sent.join().unwrap()] += 1;
            }
            counts
        })
    }
}

/// A request that takes longer has waited. At the rate of the test, a place becomes free after 7.5 s.
const AT_ONCE: Duration = Duration::from_secs(3);

const PROXY: &str = "proxy_pass http://127.0.0.1:9000;";

#[test]
fn requests_beyond_the_rate_wait_or_are_refused_alike() {
    let Some(nginx) = program("nginx") else { return };
    let pair = Pair::start(
        &nginx,
        &format!(
            "limit_req_zone $uri zone=a:1m rate=8r/m;
             server {{
               listen 127.0.0.1:8080;
               location /none {{ limit_req zone=a; {PROXY} }}
               location /queue {{ limit_req zone=a burst=1; {PROXY} }}
               location /some {{ limit_req zone=a burst=2 delay=1; {PROXY} }}
               location /now {{ limit_req zone=a burst=3 nodelay; {PROXY} }}
             }}"
        ),
    );
    // The paths have counters of their own, so it makes no difference that those with different delays count apart.
    std::thread::scope(|scope| {
        for (target, expected) in
            [("/none", [1, 0, 3]), ("/now", [4, 0, 2]), ("/queue", [1, 1, 2]), ("/some", [2, 1, 2])]
        {
            let pair = &pair;
            scope.spawn(move || {
                assert_eq!(pair.burst(target, expected.iter().sum()), [expected; 2], "{target}\n{}", pair.imported);
            });
        }
    });
}

#[test]
fn requests_in_flight_are_bounded_alike() {
    let Some(nginx) = program("nginx") else { return };
    let pair = Pair::start(
        &nginx,
        &format!(
            "limit_conn_zone $http_x_key zone=c:1m;
             server {{
               listen 127.0.0.1:8080;
               limit_conn c 2;
               location / {{ {PROXY} }}
               location /slow/one {{ limit_conn c 1; {PROXY} }}
             }}"
        ),
    );
    assert_eq!(pair.losses, "");
    let key = &[("X-Key", "a")];
    std::thread::scope(|scope| {
        for target in ["/slow", "/slow/two"] {
            let seen = pair.upstreams[0].0.count() + 1;
            for mut client in pair.clients() {
                scope.spawn(move || assert_eq!(client.get(target, key).status, 200));
            }
            eventually("both wait", || pair.upstreams.iter().all(|(upstream, _)| upstream.count() >= seen));
        }
        assert_eq!(pair.statuses("/slow/one", key), [429; 2]);
        assert_eq!(pair.statuses("/", key), [429; 2]);
        assert_eq!(pair.statuses("/", &[("X-Key", "b")]), [200; 2]);
        assert_eq!(pair.statuses("/", &[]), [200; 2]);
        pair.upstreams.iter().for_each(|(_, answer)| (0..2).for_each(|_| answer.send(()).unwrap()));
    });
    eventually("the places are free", || pair.statuses("/", key) == [200; 2]);
}

#[test]
fn what_another_limit_refuses_is_charged_nowhere() {
    let Some(nginx) = program("nginx") else { return };
    let pair = Pair::start(
        &nginx,
        &format!(
            "limit_req_zone $http_x_one zone=one:1m rate=1r/m;
             limit_req_zone $http_x_two zone=two:1m rate=1r/m;
             server {{
               listen 127.0.0.1:8080;
               limit_req zone=one burst=1 nodelay;
               limit_req zone=two burst=3 nodelay;
               location / {{ {PROXY} }}
             }}"
        ),
    );
    let sent: Vec<[u16; 2]> =
        [("a", "x"), ("a", "x"), ("a", "x"), ("a", "x"), ("b", "x"), ("b", "x"), ("c", "x"), ("c", "y")]
            .iter()
            .map(|(one, two)| pair.statuses("/", &[("X-One", one), ("X-Two", two)]))
            .collect();
    assert_eq!(sent, [200, 200, 429, 429, 200, 200, 429, 200].map(|status| [status; 2]), "{}", pair.imported);
}

#[test]
fn a_key_that_is_empty_for_some_requests_limits_the_others() {
    let Some(nginx) = program("nginx") else { return };
    let pair = Pair::start(
        &nginx,
        &format!(
            "map $http_x_key $limited {{ default $http_x_user; free \"\"; ~*^staff- \"\"; }}
             limit_req_zone $limited zone=a:1m rate=1r/m;
             server {{ listen 127.0.0.1:8080; limit_req zone=a; location / {{ {PROXY} }} }}"
        ),
    );
    let sent: Vec<[u16; 2]> = ["free", "FREE", "Staff-1", "staff-1", "other", "freed", "other"]
        .iter()
        .map(|key| pair.statuses("/", &[("X-User", "ann"), ("X-Key", key)]))
        .collect();
    assert_eq!(sent, [200, 200, 200, 200, 200, 429, 429].map(|status| [status; 2]), "{}", pair.imported);
}

#[test]
fn a_key_by_a_map_is_named_and_its_limit_left_out() {
    let Some(nginx) = program("nginx") else { return };
    let pair = Pair::start(
        &nginx,
        &format!(
            "map $http_x_key $limited {{ default $binary_remote_addr; free $http_x_user; }}
             limit_req_zone $limited zone=a:1m rate=1r/m;
             server {{ listen 127.0.0.1:8080; limit_req zone=a; location / {{ {PROXY} }} }}"
        ),
    );
    assert!(
        pair.losses.contains("counts by `$limited`, which is no attribute here: zone a is left out"),
        "{}",
        pair.losses
    );
    assert_eq!([(); 2].map(|()| pair.statuses("/", &[])), [[200; 2], [429, 200]]);
}

/// Paths in locations and in requests.
const PATHS: [&str; 10] = ["/", "/a", "/a/", "/a/b", "/a/b/c", "/a/b/x.php", "/a.php", "/b", "/b/x.php", "/B/b"];
const REGEXES: [&str; 5] = ["~ \\.php$", "~ ^/a/b", "~* b", "~ c$", "~ ^/$"];
const HOSTS: [&str; 4] = ["a.example", "b.example", "x.b.example", "other.test"];

/// Writes locations inside of a prefix, with random limits. Each level has each of them once.
fn locations(random: &mut fastrand::Rng, within: &str, depth: usize, text: &mut String) {
    let mut used: Vec<String> = Vec::new();
    for _ in 0..random.usize(..4) {
        let path = PATHS[random.usize(..PATHS.len())];
        let (name, inside) = match random.usize(..8) {
            0 | 1 => (REGEXES[random.usize(..REGEXES.len())].to_owned(), None),
            2 => (format!("= {path}"), None),
            3 => (format!("^~ {path}"), Some(path)),
            _ => (path.to_owned(), Some(path)),
        };
        // A prefix counts once, with `^~` or without. What lies in a prefix begins with it.
        let key = name.trim_start_matches("^~ ").to_owned();
        let is_inside =
            name.starts_with('~') || (path.starts_with(within) && (path != within || name.starts_with('=')));
        if !is_inside || used.contains(&key) {
            continue;
        }
        used.push(key);
        let _ = write!(text, "location {name} {{ ");
        limits(random, text);
        if let (Some(path), true) = (inside, depth < 2 && random.bool()) {
            locations(random, path, depth + 1, text);
        }
        let _ = writeln!(text, "{} }}", if random.usize(..8) == 0 { "return 200;" } else { PROXY });
    }
}

/// Writes the random limits of a block. Without one, it has those around it.
fn limits(random: &mut fastrand::Rng, text: &mut String) {
    if random.usize(..3) > 0 {
        let _ =
            write!(text, "limit_req zone={} burst={} nodelay; ", ["x", "y", "z"][random.usize(..3)], random.u8(1..5));
    }
}

/// Writes the directives of `http` with random servers.
fn random_file(random: &mut fastrand::Rng) -> String {
    let mut text = String::new();
    for zone in ["x", "y", "z"] {
        let key =
            ["$binary_remote_addr", "$http_x_key", "$arg_t", "$host", "$uri", "$request_method$uri"][random.usize(..6)];
        let _ = writeln!(text, "limit_req_zone {key} zone={zone}:1m rate=1r/m;");
    }
    limits(random, &mut text);
    for (names, default) in [("a.example", ""), ("*.b.example b.example", ""), ("_", " default_server")] {
        let _ = write!(text, "server {{ listen 127.0.0.1:8080{default}; server_name {names}; ");
        limits(random, &mut text);
        locations(random, "", 0, &mut text);
        let _ = writeln!(text, "}}");
    }
    text
}

#[test]
fn random_files_refuse_the_same_requests() {
    let Some(nginx) = program("nginx") else { return };
    for seed in 0..short_or_long(12, 1000) {
        let mut random = fastrand::Rng::with_seed(seed);
        let file = random_file(&mut random);
        let pair = Pair::start(&nginx, &file);
        assert_eq!(pair.losses, "", "seed {seed}\n{file}");
        let [mut real, mut ours] = pair.clients();
        for number in 0..120 {
            let path = PATHS[random.usize(..PATHS.len())];
            // If there is a location `/a/`, nginx itself redirects `/a`, and counts nothing.
            if path == "/a" {
                continue;
            }
            let target = [path.to_owned(), format!("{path}?t={}", random.u8(..2))][random.usize(..2)].clone();
            let mut fields = vec![("Host", HOSTS[random.usize(..HOSTS.len())])];
            if random.bool() {
                fields.push(("X-Key", ["one", "two"][random.usize(..2)]));
            }
            let refused = [&mut real, &mut ours].map(|client| client.get(&target, &fields).status == 429);
            assert_eq!(
                refused[0], refused[1],
                "seed {seed}, request {number}: {target} {fields:?}\n{file}\n{}",
                pair.imported
            );
        }
    }
}
