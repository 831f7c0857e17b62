//! Puts the locations of a server in an order in which the first one that has a path is the one that nginx finds.
//!
//! At each level nginx finds the longest prefix, and looks among the locations inside it. If it finds an exact path or a
//! regular expression there, that decides. Otherwise it tries the regular expressions of the level, unless the prefix has
//! `^~`. So regular expressions stand before the prefixes of their level, except where a prefix has `^~`, or such
//! locations inside: that prefix, and each longer one in it, has the regular expressions that count there before it.

use std::cmp::Reverse;
use std::rc::Rc;

use super::super::Losses;
use super::scopes::{Location, LocationPath, Scope};

/// The most places of a server. Further regular expressions inside of prefixes are left out.
const MOST: usize = 1_000;

/// Some paths of a server, with what applies there.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub paths: Paths,
    pub scope: Rc<Scope>,
}

/// Which paths a place has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Paths {
    All,
    Exact(Rc<str>),
    Prefix(Rc<str>),
    /// Paths that a regular expression matches. With `within`, only those that begin so.
    Regex {
        within: Option<Rc<str>>,
        regex: Rc<str>,
    },
}

impl Paths {
    fn prefix(within: Option<&Rc<str>>) -> Paths {
        within.map_or(Paths::All, |within| Paths::Prefix(Rc::clone(within)))
    }
}

/// Returns the places of a server with these locations. The last one has the paths without a location.
pub(super) fn places(locations: &[Location], rest: &Rc<Scope>, losses: &mut Losses) -> Vec<Place> {
    let mut order = Order { places: Vec::new(), is_full: false, losses };
    order.level(locations, None, &[], rest);
    order.places
}

struct Order<'l> {
    places: Vec<Place>,
    is_full: bool,
    losses: &'l mut Losses,
}

impl Order<'_> {
    /// Adds the places of one level. `within` is the prefix around it, and `own` applies outside of its locations. `later`
    /// are the regular expressions of the levels around it, which nginx tries after those of this level.
    fn level(&mut self, locations: &[Location], within: Option<&Rc<str>>, later: &[&Location], own: &Rc<Scope>) {
        let regexes: Vec<&Location> = locations
            .iter()
            .filter(|location| matches!(location.path, LocationPath::Regex(_)))
            .chain(later.iter().copied())
            .collect();
        let mut prefixes: Vec<(&Rc<str>, &Location)> = Vec::new();
        for location in locations {
            match &location.path {
                LocationPath::Exact(path) => self.add(Paths::Exact(Rc::clone(path)), location),
                LocationPath::Preferred(path) | LocationPath::Prefix(path) => prefixes.push((path, location)),
                LocationPath::Regex(_) => {}
            }
        }
        prefixes.sort_by_key(|(path, _)| Reverse(path.len()));
        let special: Vec<&Rc<str>> =
            prefixes.iter().filter(|(_, location)| is_special(location)).map(|(path, _)| *path).collect();
        let is_apart = |path: &str| special.iter().any(|special| path.starts_with(&***special));
        let (apart, plain): (Vec<_>, Vec<_>) = prefixes.into_iter().partition(|(path, _)| is_apart(path));
        for (path, location) in apart {
            let later = if matches!(location.path, LocationPath::Preferred(_)) { later } else { &*regexes };
            self.level(&location.inner, Some(path), later, &location.scope);
        }
        self.regexes(&regexes, within);
        let mut flat: Vec<(&Rc<str>, &Location)> = Vec::new();
        plain.into_iter().for_each(|(_, location)| flatten(location, &mut flat));
        flat.sort_by_key(|(path, _)| Reverse(path.len()));
        for (path, location) in flat {
            self.add(Paths::Prefix(Rc::clone(path)), location);
        }
        self.places.push(Place { paths: Paths::prefix(within), scope: Rc::clone(own) });
    }

    fn add(&mut self, paths: Paths, location: &Location) {
        self.places.push(Place { paths, scope: Rc::clone(&location.scope) });
    }

    /// Adds places with regular expressions. Those inside of another one stand before it.
    fn regexes(&mut self, regexes: &[&Location], within: Option<&Rc<str>>) {
        for location in regexes {
            let LocationPath::Regex(regex) = &location.path else { continue };
            if within.is_some() && self.places.len() >= MOST {
                if !std::mem::replace(&mut self.is_full, true) {
                    let what = "lies with others in too many prefixes: in some of them it is left out";
                    self.losses.add(&location.scope.file, location.scope.position, "location", what);
                }
                return;
            }
            let inner: Vec<&Location> = location.inner.iter().collect();
            for one in &inner {
                let what = match one.path {
                    LocationPath::Regex(_) => "lies in a regular expression, which is not compared for it",
                    _ => "lies in a regular expression: it is left out",
                };
                self.losses.add(&one.scope.file, one.scope.position, "location", what);
            }
            self.regexes(&inner, within);
            self.add(Paths::Regex { within: within.cloned(), regex: Rc::clone(regex) }, location);
        }
    }
}

/// Whether a prefix decides before the regular expressions of its level.
fn is_special(location: &Location) -> bool {
    let is_final = |path: &LocationPath| matches!(path, LocationPath::Exact(_) | LocationPath::Regex(_));
    let has_final = location.inner.iter().any(|inner| is_final(&inner.path) || is_special(inner));
    matches!(location.path, LocationPath::Preferred(_)) || has_final
}

/// Adds a prefix and the prefixes inside it.
fn flatten<'l>(location: &'l Location, flat: &mut Vec<(&'l Rc<str>, &'l Location)>) {
    if let LocationPath::Prefix(path) = &location.path {
        flat.push((path, location));
        location.inner.iter().for_each(|inner| flatten(inner, flat));
    }
}
