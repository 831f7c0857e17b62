//! Holds the regions whose files were given: the stores with their buckets and purses, and the home of limits over several regions.

use std::path::PathBuf;

use crate::cli::bucket_backend::{Access, Backend};
use crate::cli::bucket_home::Site;
use crate::cli::failure::Failure;
use crate::gateway::bucket_levels::Levels;
use base::endpoint_address::EndpointAddress;
use config::Config;
use ledger::bucket_key::BucketKey;

/// A region whose file was given.
#[derive(Debug)]
pub(super) struct Region {
    /// Empty without a home.
    pub name: String,
    store: Backend,
}

#[derive(Debug)]
pub(super) struct Regions {
    /// The regions that can be read.
    pub read: Vec<Region>,
    /// The number of all regions.
    pub all: u64,
    home: Option<Backend>,
}

impl Regions {
    /// Finds the stores of these files, each of another region. `admin` overrides the admin listener of the first one.
    ///
    /// # Errors
    /// When a store cannot be found, or the files are not those of different regions with one home.
    pub(super) fn of(files: &[(PathBuf, Config)], admin: Option<EndpointAddress>) -> Result<Regions, Failure> {
        let mut admin = admin;
        let mut read = Vec::new();
        for (index, (path, config)) in files.iter().enumerate() {
            check_region(files.get(..index).unwrap_or_default(), path, config)?;
            let name = config.home.as_ref().map(|home| home.region.clone()).unwrap_or_default();
            read.push(Region { name, store: Backend::of(config, path, admin.take(), Access::Read)? });
        }
        let home = files.first().and_then(|(_, config)| config.home.as_ref().map(|home| (config, home)));
        let all = home.map_or(1, |(_, home)| u64::try_from(home.regions.len()).unwrap_or(u64::MAX));
        Ok(Regions { read, all, home: home.map(|(config, _)| Site::backend(config)).transpose()? })
    }

    /// Returns how many regions cannot be read.
    pub(super) fn unread(&self) -> u64 {
        self.all.saturating_sub(u64::try_from(self.read.len()).unwrap_or(u64::MAX))
    }

    /// Reads these buckets in the store of each region.
    ///
    /// # Errors
    /// When a store does not answer.
    pub(super) fn read(&self, keys: &[BucketKey]) -> Result<Vec<Levels>, Failure> {
        self.read.iter().map(|region| region.store.read(keys)).collect()
    }

    /// Reads these buckets at home. `None` without any.
    ///
    /// # Errors
    /// When home does not answer.
    pub(super) fn read_home(&self, keys: &[BucketKey]) -> Result<Option<Levels>, Failure> {
        match &self.home {
            Some(home) if !keys.is_empty() => home.read(keys).map(Some),
            _ => Ok(None),
        }
    }
}

/// Checks that a file is that of another region than the files before it.
fn check_region(before: &[(PathBuf, Config)], path: &std::path::Path, config: &Config) -> Result<(), Failure> {
    let Some((first_path, first)) = before.first() else { return Ok(()) };
    let (path, first_path) = (path.display(), first_path.display());
    let Some(first) = &first.home else {
        return Err(
            format!("{first_path}: store.home: missing; several files must be those of regions with one home").into()
        );
    };
    let Some(home) = &config.home else {
        return Err(
            format!("{path}: store.home: missing; the file must be that of another region than {first_path}").into()
        );
    };
    let sorted = |regions: &[String]| {
        let mut regions = regions.to_vec();
        regions.sort_unstable();
        regions
    };
    if sorted(&home.regions) != sorted(&first.regions) {
        return Err(format!("{path}: store.home.regions: must be the same list as in {first_path}").into());
    }
    for (other_path, other) in before {
        let other_path = other_path.display();
        if other.home.as_ref().is_some_and(|other| other.region == home.region) {
            let region = &home.region;
            return Err(
                format!("{path}: store.home.region: is {region}, as in {other_path}; must be another region").into()
            );
        }
        if config.store.is_shared() && config.store.has_same_buckets(&other.store) {
            return Err(
                format!("{path}: store: is that of {other_path}; each region must have a store of its own").into()
            );
        }
    }
    Ok(())
}
