//! Parses the URL of a Redis server: `redis://user:password@host:port/database`, or `rediss://` for TLS.

use redis::{ConnectionAddr, IntoConnectionInfo};

use base::secret::Secret;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    pub database: i64,
    pub username: Option<String>,
    pub password: Option<Secret>,
}

impl Url {
    /// Parses the URL of a Redis server. `None` if the URL is invalid. The reason is not returned, because it could
    /// contain the password.
    pub fn parse(text: &str) -> Option<Url> {
        let (scheme, rest) = text.split_once("://")?;
        let tls = match scheme {
            "redis" => false,
            "rediss" => true,
            _ => return None,
        };
        // The parameters of a URL have keys of their own in gateway.yaml.
        if rest.contains(['?', '#']) {
            return None;
        }
        let info = format!("redis://{rest}").into_connection_info().ok()?;
        let ConnectionAddr::Tcp(host, port) = info.addr() else { return None };
        let settings = info.redis_settings();
        Some(Url {
            tls,
            host: host.clone(),
            port: *port,
            database: settings.db(),
            username: settings.username().map(str::to_owned),
            password: settings.password().map(Secret::new),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, tls: bool, address: (&str, u16, i64), login: (Option<&str>, Option<&str>)) {
        let (host, port, database) = address;
        let (username, password) = (login.0.map(str::to_owned), login.1.map(Secret::new));
        let expected = Url { tls, host: host.to_owned(), port, database, username, password };
        assert_eq!(Url::parse(text), Some(expected), "{text}");
    }

    #[test]
    fn a_url_names_the_server_and_the_user() {
        check("redis://127.0.0.1:6379", false, ("127.0.0.1", 6379, 0), (None, None));
        check("redis://redis.internal", false, ("redis.internal", 6379, 0), (None, None));
        check("rediss://[::1]:6380/3", true, ("::1", 6380, 3), (None, None));
        check("redis://:p%40ss@h/0", false, ("h", 6379, 0), (None, Some("p@ss")));
        check("redis://u:p@h:1/15", false, ("h", 1, 15), (Some("u"), Some("p")));
        for text in [
            "",
            "127.0.0.1:6379",
            "http://h",
            "unix:///run/redis.sock",
            "redis://",
            "redis://h:x",
            "redis://h/x",
            "redis://h/1/2",
            "redis://h?protocol=resp3",
            "rediss://h#insecure",
        ] {
            assert_eq!(Url::parse(text), None, "{text}");
        }
    }
}
