//! Finds out which limits apply in each server and location of nginx. A level without a `limit_req` or `limit_conn` of its
//! own has those of the level around it.

use std::rc::Rc;

use super::super::Losses;
use super::empty_keys::Variables;
use super::places::{Place, places};
use super::syntax::Directive;
use super::zones::{Zone, ZoneKind, zone};
use base::position::Position;

/// What nginx limits in the imported files.
#[derive(Debug, Default)]
pub(super) struct Limits {
    pub zones: Vec<Zone>,
    pub servers: Vec<Server>,
    variables: Variables,
}

/// A virtual server.
#[derive(Debug)]
pub(super) struct Server {
    pub names: Vec<String>,
    /// The addresses at which it listens, and whether it is named the default server there.
    pub listens: Vec<(String, bool)>,
    /// Its paths with what applies there. The first place that has a path decides.
    pub places: Vec<Place>,
    /// What applies outside of its locations.
    pub rest: Rc<Scope>,
}

/// A location, with what applies there, and the locations inside it.
#[derive(Debug)]
pub(super) struct Location {
    pub path: LocationPath,
    pub scope: Rc<Scope>,
    pub inner: Vec<Location>,
}

/// Which paths a location has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LocationPath {
    Exact(Rc<str>),
    /// `^~`: regular expressions are not tried.
    Preferred(Rc<str>),
    Regex(Rc<str>),
    Prefix(Rc<str>),
}

/// The limits that apply to some requests, and where their location or server stands.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    pub file: Rc<str>,
    pub position: Position,
    pub requests: Vec<UsedZone>,
    pub in_flight: Vec<UsedZone>,
    pub is_dry_run: [bool; 2],
}

/// A `limit_req` or `limit_conn`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UsedZone {
    pub file: Rc<str>,
    pub position: Position,
    pub zone: String,
    /// `burst`, or the number of requests in flight.
    pub number: u64,
    /// How many requests beyond the rate pass without a delay.
    pub undelayed: u64,
}

impl Limits {
    /// Reads the directives of files that no other file includes. Files without `http` are included by one that is not
    /// among the files: their servers have the limits of `http`.
    pub(super) fn read(roots: &[Vec<Directive>], losses: &mut Losses) -> Limits {
        let variables = Variables::read(roots);
        let mut limits = Limits { variables, ..Limits::default() };
        let top = Position { line: 1, column: 1 };
        let none = Scope {
            file: roots.iter().flatten().next().map_or_else(|| "".into(), |first| Rc::clone(&first.file)),
            position: top,
            requests: Vec::new(),
            in_flight: Vec::new(),
            is_dry_run: [false; 2],
        };
        let https = || roots.iter().flatten().filter(|directive| directive.name() == "http");
        let Some(http) = https().find_map(|directive| directive.block.as_ref()) else {
            // All files are parts of one `http`.
            let whole: Vec<&Directive> = roots.iter().flatten().collect();
            limits.level(&whole, &none, losses);
            limits.lose_without_server(roots.iter().flatten(), losses);
            return limits;
        };
        let outer = within(none, &http.iter().collect::<Vec<_>>(), losses);
        for root in roots {
            if !root.iter().any(|directive| directive.name() == "http") {
                for directive in root.iter().filter(|directive| has_limit(directive)) {
                    if !matches!(directive.name(), "server" | "stream") {
                        let what = "stands in no `http` or `server`, and no named file includes it: it is left out";
                        losses.add(&directive.file, directive.position, directive.name(), what);
                    }
                }
                let servers: Vec<&Directive> =
                    root.iter().filter(|one| one.name() == "server" || !has_limit(one)).collect();
                limits.level(&servers, &outer, losses);
            }
            for block in root.iter().filter(|directive| directive.name() == "http") {
                limits.level(&block.block.iter().flatten().collect::<Vec<_>>(), &outer.unlimited(), losses);
            }
        }
        limits.lose_without_server(http.iter(), losses);
        limits
    }

    /// Adds a loss for each of these limits, if there is no server to have them.
    fn lose_without_server<'d>(&self, directives: impl Iterator<Item = &'d Directive>, losses: &mut Losses) {
        for directive in directives.filter(|directive| self.servers.is_empty() && is_limit(directive)) {
            let what = "limits nothing, because no `server` is among the files";
            losses.add(&directive.file, directive.position, directive.name(), what);
        }
    }

    /// Reads the level of `http`.
    fn level(&mut self, directives: &[&Directive], outer: &Scope, losses: &mut Losses) {
        for directive in directives {
            if matches!(directive.name(), "limit_req_zone" | "limit_conn_zone") {
                match zone(directive, &self.variables) {
                    Ok(zone) => {
                        for difference in &zone.differences {
                            losses.add(&directive.file, directive.position, directive.name(), difference.as_str());
                        }
                        self.zones.push(zone);
                    }
                    Err(what) => losses.add(&directive.file, directive.position, directive.name(), what),
                }
            }
        }
        let scope = within(outer.clone(), directives, losses);
        for directive in directives {
            if let ("server", Some(block)) = (directive.name(), &directive.block) {
                self.server(directive, block, &scope, losses);
            }
        }
        let stray = |directive: &&&Directive| directive.name() == "location" && has_limit(directive);
        for directive in directives.iter().filter(stray) {
            let what = "stands in no `server`, and no named file includes it: it is left out";
            losses.add(&directive.file, directive.position, "location", what);
        }
    }

    fn server(&mut self, directive: &Directive, block: &[Directive], outer: &Scope, losses: &mut Losses) {
        let here = outer.at(directive);
        let mut rest = within(here, &block.iter().collect::<Vec<_>>(), losses);
        let of = |name: &'static str| block.iter().filter(move |directive| directive.name() == name);
        let names = of("server_name").flat_map(|directive| directive.arguments());
        let mut unique: Vec<String> = Vec::new();
        for name in names.map(|name| name.to_ascii_lowercase()) {
            if !unique.contains(&name) {
                unique.push(name);
            }
        }
        let mut listens: Vec<_> = of("listen").map(listen).collect();
        if listens.is_empty() {
            listens.push(("*:80".to_owned(), false));
        }
        let mut inner = Vec::new();
        if returns(block) {
            rest = rest.unlimited();
        } else {
            inner = locations(block, &rest, losses);
        }
        let rest = Rc::new(rest);
        let places = places(&inner, &rest, losses);
        self.servers.push(Server { names: unique, listens, places, rest });
    }
}

/// Returns the address of a `listen`, and whether its server is the default there.
fn listen(directive: &Directive) -> (String, bool) {
    let address = directive.argument();
    let is_port = !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_digit());
    let address = if is_port { format!("*:{address}") } else { address.to_owned() };
    (address, directive.arguments().iter().any(|word| matches!(word.as_str(), "default_server" | "default")))
}

/// Whether a block answers every request by a `return`, which comes before the limits.
fn returns(block: &[Directive]) -> bool {
    block.iter().any(|directive| directive.name() == "return")
}

fn is_limit(directive: &Directive) -> bool {
    matches!(directive.name(), "limit_req" | "limit_conn")
}

/// Whether a directive is a limit, or has one in its block.
fn has_limit(directive: &Directive) -> bool {
    is_limit(directive) || directive.block.iter().flatten().any(has_limit)
}

impl Server {
    /// Whether any request to the server has a limit.
    pub(super) fn has_limits(&self) -> bool {
        self.places.iter().any(|place| !(place.scope.requests.is_empty() && place.scope.in_flight.is_empty()))
    }
}

impl Scope {
    /// Returns the same limits at the place of a directive inside.
    fn at(&self, directive: &Directive) -> Scope {
        Scope { file: Rc::clone(&directive.file), position: directive.position, ..self.clone() }
    }

    /// Returns the place without its limits.
    pub(super) fn unlimited(&self) -> Scope {
        Scope { requests: Vec::new(), in_flight: Vec::new(), is_dry_run: [false; 2], ..self.clone() }
    }

    /// Returns the use of this zone here, and whether it only counts.
    pub(super) fn of(&self, zone: &Zone) -> Option<(&UsedZone, bool)> {
        let [requests_dry, in_flight_dry] = self.is_dry_run;
        let (used, is_dry_run) = match zone.kind {
            ZoneKind::Requests(_) => (&self.requests, requests_dry),
            ZoneKind::InFlight => (&self.in_flight, in_flight_dry),
        };
        Some((used.iter().find(|used| used.zone == zone.name)?, is_dry_run))
    }
}

/// Reads the locations of a block.
fn locations(block: &[Directive], outer: &Scope, losses: &mut Losses) -> Vec<Location> {
    let mut locations = Vec::new();
    for directive in block {
        let Some(inner) = &directive.block else { continue };
        let mut lose = |name: &str, what: &str| losses.add(&directive.file, directive.position, name, what);
        if directive.name() != "location" {
            if has_limit(directive) {
                lose(directive.name(), "limits in such a block are left out");
            }
            continue;
        }
        let path = match directive.arguments() {
            [sign, path] if sign == "=" => LocationPath::Exact((&**path).into()),
            [sign, path] if sign == "^~" => LocationPath::Preferred((&**path).into()),
            [sign, path] if sign == "~" => LocationPath::Regex((&**path).into()),
            [sign, path] if sign == "~*" => LocationPath::Regex(format!("(?i){path}").into()),
            [path] if path.starts_with('/') => LocationPath::Prefix((&**path).into()),
            _ => {
                if has_limit(directive) {
                    lose("location", "is no path of requests: it is left out");
                }
                continue;
            }
        };
        if let LocationPath::Regex(regex) = &path
            && regex::bytes::Regex::new(regex).is_err()
        {
            lose("location", "has a regular expression that is not possible here: it is left out");
            continue;
        }
        let mut scope = within(outer.at(directive), &inner.iter().collect::<Vec<_>>(), losses);
        let within = self::locations(inner, &scope, losses);
        if returns(inner) {
            scope = scope.unlimited();
        }
        locations.push(Location { path, scope: Rc::new(scope), inner: within });
    }
    locations
}

/// Returns what applies inside a block with these directives.
fn within(outer: Scope, directives: &[&Directive], losses: &mut Losses) -> Scope {
    let mut scope = outer;
    let of = |name: &'static str| directives.iter().filter(move |directive| directive.name() == name);
    for (name, kind) in [("limit_req", 0), ("limit_conn", 1)] {
        let used: Vec<UsedZone> = of(name)
            .filter_map(|directive| {
                let used = if kind == 0 { used_by_requests(directive) } else { used_in_flight(directive) };
                used.map_err(|what| losses.add(&directive.file, directive.position, name, what)).ok()
            })
            .collect();
        if of(name).next().is_some() {
            if kind == 0 { scope.requests = used } else { scope.in_flight = used }
        }
    }
    for (name, is_dry_run) in ["limit_req_dry_run", "limit_conn_dry_run"].into_iter().zip(&mut scope.is_dry_run) {
        if let Some(directive) = of(name).next() {
            *is_dry_run = directive.argument() == "on";
        }
    }
    for name in ["limit_req_status", "limit_conn_status"] {
        for directive in of(name).filter(|directive| !matches!(directive.argument(), "429" | "503")) {
            let what = format!("is {}: refusals have the status 429", directive.argument());
            losses.add(&directive.file, directive.position, name, what);
        }
    }
    for directive in of("limit_rate") {
        losses.add(&directive.file, directive.position, "limit_rate", "the speed of a response is not limited");
    }
    scope
}

/// Reads a `limit_req`.
fn used_by_requests(directive: &Directive) -> Result<UsedZone, String> {
    let (mut zone, mut burst, mut delay) = (None, 0, Some(0));
    for word in directive.arguments() {
        match word.split_once('=') {
            Some(("zone", name)) => zone = Some(name.to_owned()),
            Some(("burst", number)) => burst = whole(number)?,
            Some(("delay", number)) => delay = Some(whole(number)?),
            None if word == "nodelay" => delay = None,
            _ => return Err(format!("has a parameter `{word}` that is not known: it is left out")),
        }
    }
    let zone = zone.ok_or("must name a zone")?;
    Ok(used(directive, zone, burst, delay.unwrap_or(burst).min(burst)))
}

fn used(directive: &Directive, zone: String, number: u64, undelayed: u64) -> UsedZone {
    UsedZone { file: Rc::clone(&directive.file), position: directive.position, zone, number, undelayed }
}

/// Reads a `limit_conn`.
fn used_in_flight(directive: &Directive) -> Result<UsedZone, String> {
    let [zone, number] = directive.arguments() else { return Err("must have a zone and a number".to_owned()) };
    Ok(used(directive, zone.clone(), whole(number)?, 0))
}

fn whole(number: &str) -> Result<u64, String> {
    let whole = number.parse().ok().filter(|number| *number <= 1_000_000);
    whole.ok_or_else(|| format!("must have a number up to 1000000, has `{number}`"))
}
