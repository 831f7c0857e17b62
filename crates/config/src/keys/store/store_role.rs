//! Tells apart the store of a region and that of home, whose `timeout` stands beside it.

use crate::language::key::Mapping;
use crate::language::reader::Section;
use base::time::Micros;

/// For what a file names a store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoreRole {
    /// For the buckets of this region.
    Region,
    /// For limits over several regions. `None`: the timeout was invalid.
    Home { timeout: Option<Micros> },
}

impl StoreRole {
    /// Returns the keys of a store in this role.
    pub(crate) fn of(self, region: &'static Mapping, home: &'static Mapping) -> &'static Mapping {
        match self {
            StoreRole::Region => region,
            StoreRole::Home { .. } => home,
        }
    }

    /// Returns how long an answer of the store is expected. `None` after reporting a problem.
    pub(crate) fn timeout(self, section: &Section<'_>) -> Option<Micros> {
        match self {
            StoreRole::Region => section.positive_duration("timeout"),
            StoreRole::Home { timeout } => timeout,
        }
    }

    /// Reports the unknown keys of the store, which has this name.
    pub(crate) fn close(self, section: Section<'_>, store: &str) {
        match self {
            StoreRole::Region => section.close(),
            StoreRole::Home { .. } => {
                let what =
                    format_args!("must stand beside `{store}`, not in it: it is how long requests wait for home");
                section.unwanted("timeout", what);
                section.close_except(&["timeout"]);
            }
        }
    }
}
