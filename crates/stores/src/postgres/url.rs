//! Parses the URL of a database: `postgres://user:password@host:port,host:port/database`, as libpq reads it.

use std::str::FromStr;

use tokio_postgres::Config;
use tokio_postgres::config::Host as ConfigHost;

use super::settings::DEFAULT_PORT;
use base::host_port::HostPort;
use base::secret::Secret;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The servers of the database, at least one.
    pub hosts: Vec<HostPort>,
    pub database: String,
    pub username: String,
    pub password: Option<Secret>,
}

/// The reason why a URL is invalid. It never contains the URL, which could hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidUrl {
    Shape,
    /// The URL has `sslmode` or another parameter for TLS. gateway.yaml has keys in place of these parameters.
    SslMode,
    /// The URL has a parameter other than `target_session_attrs=read-write`.
    Parameter,
    NoUser,
}

impl Url {
    /// Parses the URL of a PostgreSQL database.
    ///
    /// # Errors
    ///
    /// Returns the reason why the URL is invalid.
    pub fn parse(text: &str) -> Result<Url, InvalidUrl> {
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") || text.contains('#') {
            return Err(InvalidUrl::Shape);
        }
        let (base, parameters) = text.split_once('?').unwrap_or((text, ""));
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("target_session_attrs", "read-write")) => {}
                Some(("sslmode" | "sslrootcert" | "sslcert" | "sslkey" | "sslnegotiation", _)) => {
                    return Err(InvalidUrl::SslMode);
                }
                _ => return Err(InvalidUrl::Parameter),
            }
        }
        let config = Config::from_str(base).map_err(|_| InvalidUrl::Shape)?;
        let ports = config.get_ports();
        let host = |(index, host): (usize, &ConfigHost)| match host {
            ConfigHost::Tcp(name) if !name.is_empty() => {
                // A single port is the port of all hosts.
                let port = ports.get(index).or_else(|| ports.first()).copied().unwrap_or(DEFAULT_PORT);
                Ok(HostPort::new(name.trim_start_matches('[').trim_end_matches(']'), port))
            }
            _ => Err(InvalidUrl::Shape),
        };
        let hosts: Vec<HostPort> = config.get_hosts().iter().enumerate().map(host).collect::<Result<_, _>>()?;
        if hosts.is_empty() {
            return Err(InvalidUrl::Shape);
        }
        let username = config.get_user().filter(|user| !user.is_empty()).ok_or(InvalidUrl::NoUser)?.to_owned();
        // `store init --print` prints the user name, and a control character would be unsafe on a terminal.
        if username.contains(char::is_control) {
            return Err(InvalidUrl::Shape);
        }
        let password = config.get_password().map(|password| String::from_utf8(password.to_vec()));
        let password = password.transpose().map_err(|_| InvalidUrl::Shape)?;
        Ok(Url {
            hosts,
            // As in libpq, the database has the name of the user by default.
            database: config.get_dbname().filter(|name| !name.is_empty()).unwrap_or(&username).to_owned(),
            username,
            password: password.filter(|password| !password.is_empty()).map(Secret::new),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, hosts: &[(&str, u16)], database: &str, password: Option<&str>) {
        let hosts = hosts.iter().map(|(name, port)| HostPort::new(*name, *port)).collect();
        let (username, database) = ("u".to_owned(), database.to_owned());
        assert_eq!(
            Url::parse(text),
            Ok(Url { hosts, database, username, password: password.map(Secret::new) }),
            "{text}"
        );
    }

    #[test]
    fn a_url_names_servers_user_and_database() {
        check("postgres://u@db/limits", &[("db", 5432)], "limits", None);
        check("postgresql://u:p%40ss@db:6432/limits", &[("db", 6432)], "limits", Some("p@ss"));
        check(
            "postgres://u@a,b:2,c/d?target_session_attrs=read-write",
            &[("a", 5432), ("b", 2), ("c", 5432)],
            "d",
            None,
        );
        check("postgres://u@[::1]:5433/d", &[("::1", 5433)], "d", None);
        check("postgres://u@db", &[("db", 5432)], "u", None);
        for (text, expected) in [
            ("", InvalidUrl::Shape),
            ("db", InvalidUrl::Shape),
            ("http://u@db/d", InvalidUrl::Shape),
            ("host=db user=u", InvalidUrl::Shape),
            ("postgres://u@/d", InvalidUrl::Shape),
            ("postgres://u@db:x/d", InvalidUrl::Shape),
            ("postgres://u@%2Frun%2Fpostgresql/d", InvalidUrl::Shape),
            ("postgres://u@db/d#x", InvalidUrl::Shape),
            ("postgres://u%1b@db/d", InvalidUrl::Shape),
            ("postgres://db/d", InvalidUrl::NoUser),
            ("postgres://u@db/d?sslmode=require", InvalidUrl::SslMode),
            ("postgres://u@db/d?connect_timeout=3", InvalidUrl::Parameter),
            ("postgres://u@db/d?target_session_attrs=any", InvalidUrl::Parameter),
        ] {
            assert_eq!(Url::parse(text), Err(expected), "{text}");
        }
    }
}
