//! Determines how much memory the process may use: the limits of its control groups (v1 and v2), or the machine's memory.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the memory limit of this process in bytes. `None` if the limit cannot be determined.
pub(crate) fn memory_limit() -> Option<u64> {
    limit_below(Path::new("/"))
}

/// Returns the limit. The kernel's files are read below the folder `root`.
fn limit_below(root: &Path) -> Option<u64> {
    let read = |path: &Path| fs::read_to_string(root.join(path)).ok();
    let groups = read(Path::new("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(limit_files).filter_map(|file| read(&file)?.trim().parse::<u64>().ok());
    let machine = read(Path::new("proc/meminfo")).and_then(|table| total(&table));
    limits.chain(machine).min()
}

/// Returns the files with the limits of a control group and of the groups that contain it. In a container, these files
/// are at the root.
fn limit_files(line: &str) -> Vec<PathBuf> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { return Vec::new() };
    let (mount, file) = if controllers.is_empty() {
        ("sys/fs/cgroup", "memory.max")
    } else if controllers.split(',').any(|controller| controller == "memory") {
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
    } else {
        return Vec::new();
    };
    let group = Path::new(group.trim_start_matches('/'));
    group.ancestors().map(|group| Path::new(mount).join(group).join(file)).collect()
}

/// Returns the memory of the machine in bytes, from the text of /proc/meminfo.
fn total(table: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the limit on a machine with these files. `MACHINE` has 8 GiB.
    #[track_caller]
    fn check(files: &[(&str, &str)], expected: Option<u64>) {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(limit_below(root.path()), expected, "{files:?}");
    }

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:  1 kB\n");

    #[test]
    fn the_smallest_limit_holds() {
        check(&[], None);
        check(&[MACHINE], Some(8 << 30));
        let v2 = ("proc/self/cgroup", "0::/system.slice/tollgate.service\n");
        let own = "sys/fs/cgroup/system.slice/tollgate.service/memory.max";
        check(&[MACHINE, v2, (own, "1073741824\n")], Some(1 << 30));
        check(&[MACHINE, v2, (own, "max\n")], Some(8 << 30));
        check(&[MACHINE, v2, (own, "max\n"), ("sys/fs/cgroup/system.slice/memory.max", "4096\n")], Some(4096));
        // In a container, the group is the root of the visible groups.
        check(&[MACHINE, v2, ("sys/fs/cgroup/memory.max", "536870912\n")], Some(512 << 20));
        let v1 = ("proc/self/cgroup", "12:cpu,cpuacct:/a\n5:memory:/a\n");
        let unlimited = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        check(&[MACHINE, v1, unlimited], Some(8 << 30));
        check(&[MACHINE, v1, ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "268435456\n")], Some(256 << 20));
    }
}
