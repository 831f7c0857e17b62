//! The compose file for a Redis with sentinels: everything that it names exists. Its files, run as processes of this machine,
//! survive the loss of the master.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_yaml::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::{at, parse, read, redis_of, root, text, texts};
use crate::support::sentinel::{after_elections, role_at, sooner};
use crate::support::{Gateway, Upstream, eventually, free_port};

const FOLDER: &str = "deploy/compose-sentinel";
const REDIS_PASSWORD: &str = "deploy/compose/redis-password";

fn merged(file: &str) -> Value {
    let mut value: Value = serde_yaml::from_str(&read(file)).unwrap();
    value.apply_merge().unwrap();
    value.apply_merge().unwrap();
    value
}

fn own() -> Value {
    merged(&format!("{FOLDER}/docker-compose.yml"))
}

fn names(compose: &Value, key: &str) -> Vec<String> {
    let named = compose[key].as_mapping().into_iter().flatten();
    named.map(|(name, _)| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_is_added_names_only_what_exists_and_has_no_more_rights_than_it_needs() {
    let (own, base) = (own(), merged("docker-compose.yml"));
    let all = |key: &str| [names(&own, key), names(&base, key)].concat();
    for name in names(&own, "services") {
        let service = &own["services"][&*name];
        for volume in texts(service, "volumes") {
            let (from, inside) = volume.split_once(':').unwrap();
            match from.strip_prefix("./") {
                Some(file) => assert!(root().join(file).exists() && inside.ends_with(":ro"), "{name}: {volume}"),
                None => assert!(all("volumes").iter().any(|known| known == from), "{name}: {volume}"),
            }
        }
        for (key, listed) in [("networks", texts(service, "networks")), ("secrets", texts(service, "secrets"))] {
            assert!(listed.iter().all(|one| all(key).iter().any(|known| known == one)), "{name}: {listed:?}");
        }
        for (other, _) in service["depends_on"].as_mapping().into_iter().flatten() {
            let [own, base] = [&own, &base].map(|file| &file["services"][other]["healthcheck"]);
            assert!(!own.is_null() || !base.is_null(), "{name} waits for {other:?}");
        }
        if !names(&base, "services").contains(&name) {
            assert_eq!(service["read_only"].as_bool(), Some(true), "{name}");
            assert_eq!(
                (texts(service, "cap_drop"), texts(service, "networks")),
                (vec!["ALL"], vec!["store"]),
                "{name}"
            );
            assert!(service["ports"].is_null(), "{name} is published");
        }
    }
    for secret in names(&own, "secrets") {
        assert!(root().join(text(&own, &format!("secrets {secret} file"))).exists(), "{secret}");
    }
}

#[test]
fn its_gateway_yaml_differs_only_in_where_redis_is_and_names_the_sentinels() {
    let [own_text, base_text] =
        [FOLDER, "deploy/compose"].map(|folder| read(&format!("{folder}/tollgate/gateway.yaml")));
    let around = |file: &str| {
        let (before, rest) = file.split_once("  redis:\n").unwrap();
        let (_, before) = before.split_once("\nlisten:").unwrap();
        (before.to_owned(), rest.split_once("    username: tollgate\n").unwrap().1.to_owned())
    };
    assert_eq!(around(&own_text), around(&base_text));
    let password = read(&format!("{FOLDER}/sentinel-password"));
    let secrets =
        [("/run/secrets/redis-password", &*read(REDIS_PASSWORD)), ("/run/secrets/sentinel-password", &password)];
    let place = redis_of(&parse(&own_text, &secrets)).target.to_string();
    let compose = own();
    let sentinels: Vec<String> =
        names(&compose, "services").into_iter().filter(|name| name.starts_with("sentinel-")).collect();
    assert_eq!(sentinels.len(), 3);
    for sentinel in &sentinels {
        assert!(place.contains(&format!("{sentinel}:26379")), "{place}");
        let line = format!("sentinel announce-ip {sentinel}");
        assert_eq!(texts(&compose, &format!("services {sentinel} command")).last(), Some(&&*line));
    }
    // Users have the rights that the documentation names, and the passwords that the gateways have.
    let page = read("docs/stores.md");
    for (file, user, password) in
        [("users.acl", "tollgate", read(REDIS_PASSWORD)), ("sentinel-users.acl", "gateway", password)]
    {
        let hash: String = Sha256::digest(password.trim_end()).iter().map(|byte| format!("{byte:02x}")).collect();
        let rights = format!("ACL SETUSER {user} reset on >SECRET ");
        let rights = page.lines().find_map(|line| line.strip_prefix(&rights)).unwrap();
        let users = read(&format!("{FOLDER}/redis/{file}"));
        let line = format!("user {user} on #{hash} {rights}");
        assert!(users.lines().any(|found| found == line), "{file} lacks {line}");
    }
    let [own, base] = [FOLDER, "deploy/compose"].map(|folder| read(&format!("{folder}/redis/redis.conf")));
    for line in base.lines().filter(|line| !line.starts_with('#')) {
        assert!(own.lines().any(|found| found == line), "redis.conf lacks {line}");
    }
    assert!(at(&compose, "services redis-2 healthcheck test").is_sequence());
}

/// A container of the file, run as a process with its own data directory.
struct Process {
    /// The directory for its /data and /etc/redis.
    directory: TempDir,
    arguments: Vec<String>,
    child: Child,
}

impl Process {
    /// Starts the process of `start CONFIGURATION LINE…`. `replaced` are texts of the configurations and their replacements.
    #[track_caller]
    fn start(configuration: &str, lines: &[String], replaced: &[(&str, String)]) -> Process {
        let directory = TempDir::new().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        std::fs::create_dir(path("data")).unwrap();
        for file in std::fs::read_dir(root().join(FOLDER).join("redis")).unwrap() {
            let file: PathBuf = file.unwrap().path();
            let mut text = std::fs::read_to_string(&file).unwrap();
            for (from, to) in replaced {
                text = text.replace(from, to);
            }
            text = text.replace("/etc/redis", &path("")).replace("/data", &path("data"));
            std::fs::write(path(file.file_name().unwrap().to_str().unwrap()), text).unwrap();
        }
        let arguments = [&[path("start"), configuration.to_owned()], lines].concat();
        let child = Process::run(&arguments);
        Process { directory, arguments, child }
    }

    fn run(arguments: &[String]) -> Child {
        Command::new("sh").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn role(port: u16) -> String {
    role_at(port, Some(("tollgate", read(REDIS_PASSWORD).trim_end())))
}

#[test]
fn the_second_redis_takes_over_and_the_first_comes_back_as_its_replica() {
    let ports = [free_port(), free_port()];
    let server = |own: u16, more: &[String]| {
        let fixed = ["bind 127.0.0.1", "replica-announce-ip 127.0.0.1", "repl-diskless-sync-delay 0"];
        let lines = [vec![format!("port {own}")], fixed.map(str::to_owned).to_vec()].concat();
        Process::start("redis.conf", &[&lines[..], more].concat(), &[])
    };
    let mut first = server(ports[0], &[]);
    eventually("the first answers", || role(ports[0]) == "master");
    let _second = server(ports[1], &[format!("replicaof 127.0.0.1 {}", ports[0])]);
    eventually("the second is its replica", || role(ports[1]) == "slave connected");
    let replaced = [
        ("monitor mymaster redis 6379", format!("monitor mymaster 127.0.0.1 {}", ports[0])),
        ("down-after-milliseconds mymaster 5000", "down-after-milliseconds mymaster 1500".to_owned()),
        // A vote that was split is repeated after twice that time.
        ("failover-timeout mymaster 30000", "failover-timeout mymaster 2000".to_owned()),
    ];
    let sentinel_ports = [(); 3].map(|()| free_port());
    let _sentinels = sentinel_ports.map(|port| {
        let lines = [format!("port {port}"), "bind 127.0.0.1".to_owned(), "sentinel announce-ip 127.0.0.1".to_owned()];
        Process::start("sentinel.conf", &lines, &replaced)
    });
    let yaml = read(&format!("{FOLDER}/tollgate/gateway.yaml"));
    let mut yaml = format!("store:{}", yaml.split_once("\nstore:").unwrap().1);
    for (number, port) in (1..).zip(sentinel_ports) {
        yaml = yaml.replace(&format!("sentinel-{number}:26379"), &format!("127.0.0.1:{port}"));
    }
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(name).display().to_string();
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream)
        .with(&yaml)
        .variables(&[
            ("STORE_TIMEOUT", "5s"),
            ("REDIS_PASSWORD_FILE", &file(REDIS_PASSWORD)),
            ("SENTINEL_PASSWORD_FILE", &file(&format!("{FOLDER}/sentinel-password"))),
        ])
        .start();
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let ask = |port: u16, words: &[&str]| -> redis::RedisResult<redis::Value> {
        let url = format!("redis://sentinel:an-example-for-sentinels-among-themselves@127.0.0.1:{port}/");
        let mut connection = redis::Client::open(url)?.get_connection()?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    };
    for port in sentinel_ports {
        eventually("a sentinel answers", || ask(port, &sooner("500")).is_ok());
    }
    let known = |port: &u16| {
        let info = ask(*port, &["INFO", "sentinel"]).and_then(|info| Ok(redis::from_redis_value::<String>(info)?));
        info.is_ok_and(|info| info.contains("slaves=1,sentinels=3"))
    };
    eventually("the sentinels know each other and the replica", || sentinel_ports.iter().all(known));
    first.kill();
    after_elections("the second has taken over", || role(ports[1]) == "master");
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let decided = || gateway.client().get("/trial", &[]).field("RateLimit").is_some();
    eventually("the second decides", decided);
    first.child = Process::run(&first.arguments);
    after_elections("the first is its replica", || role(ports[0]) == "slave connected");
    // And would be one after another restart.
    let own = first.directory.path().join("data/redis.conf");
    eventually("it has noted that", || {
        std::fs::read_to_string(&own).unwrap().contains(&format!("replicaof 127.0.0.1 {}", ports[1]))
    });
}
