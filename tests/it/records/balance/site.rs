//! Gateways on one store that write records, each into a small file system of its own, and the faults that happen to them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use base::time::Clock;

use super::books::{LATE, Loss, LossOf};
use super::lines::{last_interval, of_files};
use crate::support::sentinel::{SentinelGroup, SentinelSetup};
use crate::support::{CommandOutput, Gateway, Orphan, Postgres, Redis, Upstream, eventually, tollgate};

/// Makes the folder of the records one that can be full, if this machine permits a mount.
const DISK: &str =
    "disk=\"$(dirname \"$3\")/disk\"; mkdir \"$disk\"; mount -t tmpfs -o size=2m none \"$disk\" 2> /dev/null || true";

/// On a busy machine, a gateway that waits only briefly for its store may lack an answer at any time.
const LATE_ANSWERS: Loss = Loss { of: LossOf::Answers, time: [0, u64::MAX] };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9` of a gateway, which is started again.
    Kill,
    /// SIGTERM to a gateway, which is started again.
    Restart,
    /// SIGSTOP of a gateway, and SIGCONT.
    Pause,
    /// SIGUSR2: another process takes over.
    Upgrade,
    /// The disk of a gateway is full for a while.
    FullDisk,
    /// The file of a gateway is renamed, and SIGUSR1 is sent.
    Rotation,
    /// The store stands still for longer than gateways wait for it.
    Outage,
    /// The store forgets everything.
    Flush,
    /// `kill -9` of the master. Sentinels promote its replica.
    Failover,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Redis,
    /// A server that gateways wait for only briefly.
    ImpatientRedis,
    Sentinels,
    Postgres,
    Memory,
}

enum Store {
    Redis(Redis),
    Sentinels(SentinelGroup),
    Postgres(Postgres),
    Memory,
}

/// A place at which a gateway runs: after an upgrade, another process than the first.
pub struct Member {
    pub gateway: Gateway,
    next: Option<Orphan>,
    handovers: usize,
    rotations: usize,
    /// Whether the disk was full, so that it may lack lines of the last interval of which it has some.
    was_full: bool,
    /// When its first process was started, in microseconds of the machine's clock.
    started: u64,
}

pub struct Site {
    store: Store,
    pub members: Vec<Member>,
}

pub fn wall() -> u64 {
    Clock::system().wall().0
}

fn wait(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

impl Fault {
    /// Whether calls may meanwhile have no answer.
    pub fn interrupts(self) -> bool {
        matches!(self, Fault::Kill | Fault::Restart | Fault::Outage | Fault::Failover)
    }
}

impl Site {
    /// Starts three gateways, or one with its buckets in memory. `flaw` is a deliberate mistake of all of them.
    pub fn start(kind: StoreKind, upstream: &Upstream, config: &str, flaw: Option<&str>) -> Site {
        let store = match kind {
            StoreKind::Redis | StoreKind::ImpatientRedis => Store::Redis(Redis::start()),
            StoreKind::Sentinels => Store::Sentinels(SentinelGroup::with(&SentinelSetup::default())),
            StoreKind::Postgres => Store::Postgres(Postgres::start()),
            StoreKind::Memory => Store::Memory,
        };
        let section = match &store {
            Store::Redis(redis) if kind == StoreKind::Redis => redis.patient_store(),
            Store::Redis(redis) => redis.patient_store().replace("10s", "300ms"),
            Store::Sentinels(group) => group.store("deny"),
            Store::Postgres(postgres) => {
                postgres.settings();
                postgres.store_with(", timeout: 10s", "deny")
            }
            Store::Memory => "store: {memory: {file: buckets.tgb}}\n".to_owned(),
        };
        let member = || {
            let builder = Gateway::before(upstream).with(&format!("{section}{config}")).shell(DISK);
            let started = wall();
            let gateway = match flaw {
                Some(flaw) => builder.variable("TOLLGATE_TEST_FLAW", flaw).start(),
                None => builder.start(),
            };
            Member { gateway, next: None, handovers: 0, rotations: 0, was_full: false, started }
        };
        let count = if kind == StoreKind::Memory { 1 } else { 3 };
        let site = Site { store, members: (0..count).map(|_| member()).collect() };
        if kind != StoreKind::Memory {
            site.members.iter().for_each(|member| member.gateway.expect("rate_limiter_store_up", &[], 1.0));
        }
        site
    }

    /// Lets a fault happen to a member or to the store. Returns what it may have changed.
    pub fn happen(&mut self, fault: Fault, member: usize, milliseconds: u64) -> Vec<Loss> {
        let begun = wall();
        let mut losses = Vec::new();
        let place = &mut self.members[member];
        match (fault, &mut self.store) {
            (Fault::Kill, _) => {
                place.signal("KILL");
                place.await_exit();
                let written = match last_interval(&of_files(&place.files())) {
                    Some([begin, _]) if place.was_full => begin,
                    Some([_, end]) => end,
                    None => place.started,
                };
                place.start_again();
                let end = wall();
                losses.push(Loss { of: LossOf::Records(member), time: [written, end] });
                losses.push(Loss { of: LossOf::Settled(member), time: [begun - LATE, end] });
            }
            (Fault::Restart, _) => {
                place.signal("TERM");
                place.await_exit();
                place.start_again();
            }
            (Fault::Pause, _) => {
                place.signal("STOP");
                wait(milliseconds);
                place.signal("CONT");
            }
            (Fault::Upgrade, _) => place.upgrade(),
            (Fault::FullDisk, _) => place.fill_the_disk(milliseconds),
            (Fault::Rotation, _) => place.rotate(),
            (Fault::Outage, store) => {
                // A call without an answer may be charged as long as the server has it.
                store.signal("STOP");
                wait(500 + milliseconds);
                store.signal("CONT");
                self.decides();
                losses.push(LATE_ANSWERS);
            }
            (Fault::Flush, Store::Redis(redis)) => {
                redis.command::<()>(&["FLUSHALL"]);
                losses.push(Loss { of: LossOf::Store, time: [0, wall()] });
            }
            (Fault::Failover, Store::Sentinels(group)) => {
                // What was written until now has reached the replica.
                let mut master = group.servers[0].connection();
                ::redis::cmd("SET").arg("mark").arg(1).exec(&mut master).unwrap();
                let reached: u64 = ::redis::cmd("WAIT").arg(1).arg(5_000).query(&mut master).unwrap();
                assert_eq!(reached, 1, "the replica is in step");
                group.servers[0].kill();
                let killed = wall();
                eventually("the successor is named", || group.is_named(1));
                self.decides();
                losses.push(Loss { of: LossOf::Store, time: [begun - LATE, killed] });
                losses.push(LATE_ANSWERS);
            }
            _ => panic!("{fault:?} needs another store"),
        }
        losses
    }

    /// Waits until all gateways reach the store.
    fn decides(&self) {
        eventually("the store decides", || {
            self.members.iter().all(|member| member.gateway.metric("rate_limiter_store_up", &[]) == 1.0)
        });
    }

    /// Ends all gateways with SIGTERM. One with its buckets in memory is started again, because only it can tell what they hold.
    pub fn end(&mut self) {
        self.members.iter().for_each(|member| member.signal("TERM"));
        self.members.iter_mut().for_each(Member::await_exit);
        if matches!(self.store, Store::Memory) {
            self.members[0].start_again();
        }
    }

    /// Returns all files of records.
    pub fn files(&self) -> Vec<PathBuf> {
        self.members.iter().flat_map(Member::files).collect()
    }

    /// Runs a command with the file of the first gateway.
    pub fn command(&self, words: &[&str]) -> CommandOutput {
        let gateway = &self.members[0].gateway;
        let (file, admin) = (gateway.file("gateway.yaml").display().to_string(), gateway.admin.to_string());
        let admin = ["--admin", &admin];
        let of_memory = if matches!(self.store, Store::Memory) { &admin[..] } else { &[] };
        tollgate(&[words, &["-c", &file], of_memory].concat())
    }

    /// Runs `tollgate records check` on these files.
    pub fn check(&self, files: &[PathBuf]) -> CommandOutput {
        let files: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
        self.command(&[&["records", "check"], &files[..]].concat())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for member in &self.members {
            let disk = member.gateway.file("disk");
            if is_mounted(&disk) {
                let _ = Command::new("umount").arg("-l").arg(disk).stderr(Stdio::null()).status();
            }
        }
    }
}

impl Store {
    fn signal(&self, name: &str) {
        match self {
            Store::Redis(redis) => redis.signal(name),
            Store::Postgres(postgres) => postgres.signal(name),
            Store::Sentinels(_) | Store::Memory => panic!("no such fault of this store"),
        }
    }
}

impl Member {
    fn signal(&self, name: &str) {
        match &self.next {
            Some(next) => next.signal(name),
            None => self.gateway.signal(name),
        }
    }

    fn await_exit(&mut self) {
        match &self.next {
            Some(next) => eventually("the process ends", || !next.is_running()),
            None => _ = self.gateway.wait(),
        }
    }

    fn start_again(&mut self) {
        (self.next, self.handovers) = (None, 0);
        self.gateway.start_again();
    }

    fn upgrade(&mut self) {
        self.signal("USR2");
        self.handovers += 1;
        let next = Orphan::of(&self.gateway, self.handovers);
        self.await_exit();
        self.next = Some(next);
    }

    fn file(&self) -> PathBuf {
        self.gateway.file("disk/records.jsonl")
    }

    fn files(&self) -> Vec<PathBuf> {
        let found = std::fs::read_dir(self.gateway.file("disk")).unwrap().map(|entry| entry.unwrap().path());
        // Not a device in the place of a full disk.
        found
            .filter(|path| path.to_str().is_some_and(|path| path.contains("records.jsonl")))
            .filter(|path| path.is_file())
            .collect()
    }

    fn rotate(&mut self) {
        self.rotations += 1;
        std::fs::rename(self.file(), self.gateway.file(&format!("disk/records.jsonl.{}", self.rotations))).unwrap();
        self.signal("USR1");
        eventually("the file is created again", || self.file().exists());
    }

    /// Fills the disk until lines are kept in memory, and a while longer. Without a small disk, the file is replaced by a device
    /// that is always full.
    fn fill_the_disk(&mut self, milliseconds: u64) {
        let ballast = self.gateway.file("disk/ballast");
        self.was_full = true;
        let is_kept = || eventually("lines are kept", || self.gateway.metric("rate_limiter_records_kept", &[]) > 0.0);
        if is_mounted(&self.gateway.file("disk")) {
            // It ends when the disk is full.
            assert!(std::fs::write(&ballast, vec![b'x'; 4 << 20]).is_err());
            is_kept();
            wait(milliseconds);
            std::fs::remove_file(ballast).unwrap();
        } else {
            let kept = self.gateway.file(&format!("disk/records.jsonl.full-{}", self.rotations));
            std::fs::rename(self.file(), kept).unwrap();
            std::os::unix::fs::symlink("/dev/full", self.file()).unwrap();
            self.signal("USR1");
            is_kept();
            wait(milliseconds);
            std::fs::remove_file(self.file()).unwrap();
            self.rotations += 1;
        }
    }
}

fn is_mounted(folder: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|mounted| Path::new(mounted) == folder))
}
