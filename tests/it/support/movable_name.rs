//! A host name that a test moves from one address to another, as hosting providers do. `libnss_wrapper` makes the gateway's
//! resolver read a hosts file that the test writes, instead of the machine's.

use std::path::PathBuf;

use tempfile::TempDir;

pub(crate) struct MovableName {
    name: &'static str,
    folder: TempDir,
}

impl MovableName {
    /// Makes a name that first resolves to 127.0.0.1.
    pub(crate) fn new(name: &'static str) -> MovableName {
        let movable = MovableName { name, folder: TempDir::new().unwrap() };
        movable.point("127.0.0.1");
        movable
    }

    /// Makes the name resolve to this address.
    pub(crate) fn point(&self, address: &str) {
        self.write(&format!("{address} {}\n127.0.0.1 localhost\n", self.name));
    }

    /// Makes the name unknown.
    pub(crate) fn remove(&self) {
        self.write("127.0.0.1 localhost\n");
    }

    fn write(&self, text: &str) {
        let new = self.hosts().with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.hosts()).unwrap();
    }

    fn hosts(&self) -> PathBuf {
        self.folder.path().join("hosts")
    }

    /// Returns the environment for a process that uses the name.
    pub(crate) fn variables(&self) -> [(&'static str, String); 2] {
        [("LD_PRELOAD", "libnss_wrapper.so".to_owned()), ("NSS_WRAPPER_HOSTS", self.hosts().display().to_string())]
    }
}
