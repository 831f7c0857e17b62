//! Runs a Redis Cluster of three masters.

use base::host_port::HostPort;
use stores::redis::cluster::{Place, Settings as ClusterSettings};
use stores::redis::{Settings, Target};

use super::redis::{Redis, settings};
use super::{eventually, free_port};

const SLOTS: u16 = 16_384;

pub(crate) struct RedisCluster {
    /// The masters. Each has a third of the slots.
    pub masters: Vec<Redis>,
}

impl RedisCluster {
    pub(crate) fn start() -> RedisCluster {
        let masters: Vec<Redis> = (0..3).map(|_| node()).collect();
        for (number, master) in (0..).zip(&masters) {
            let [first, last] = [number, number + 1].map(|part: u16| u32::from(SLOTS) * u32::from(part) / 3);
            let () = master.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(last - 1).to_string()]);
            let () = master.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        for other in &masters[1..] {
            let bus = bus_port(other).to_string();
            let () = masters[0].command(&["CLUSTER", "MEET", "127.0.0.1", &other.port.to_string(), &bus]);
        }
        eventually("the cluster serves", || {
            masters.iter().all(|node| {
                let info: String = node.command(&["CLUSTER", "INFO"]);
                ["cluster_known_nodes:3", "cluster_slots_assigned:16384", "cluster_state:ok"]
                    .iter()
                    .all(|line| info.contains(line))
            })
        });
        RedisCluster { masters }
    }

    /// Returns the settings of a store that spreads its buckets over this number of hash tags.
    pub(crate) fn settings(&self, hash_tags: u16) -> Settings {
        let nodes = vec![HostPort::new("127.0.0.1", self.masters[2].port)];
        let place = Place::Spread { hash_tags };
        settings(Target::Cluster(Box::new(ClusterSettings { nodes, place })))
    }

    /// Begins to move the slot with this number to another master.
    pub(crate) fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let [source, target] = [from, to].map(|index| &self.masters[index]);
        let [source_id, target_id]: [String; 2] = [source, target].map(|node| node.command(&["CLUSTER", "MYID"]));
        let () = target.command(&["CLUSTER", "SETSLOT", &slot.to_string(), "IMPORTING", &source_id]);
        let () = source.command(&["CLUSTER", "SETSLOT", &slot.to_string(), "MIGRATING", &target_id]);
    }

    /// Moves up to this number of keys of a slot that is moving.
    pub(crate) fn move_keys(&self, slot: u16, most: usize, from: usize, to: usize) {
        let [source, target] = [from, to].map(|index| &self.masters[index]);
        let keys: Vec<Vec<u8>> = source.command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &most.to_string()]);
        let client = ::redis::Client::open(format!("redis://127.0.0.1:{}/", source.port)).unwrap();
        let mut migrate = ::redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(target.port).arg("").arg(0).arg(5000).arg("KEYS").arg(&keys);
        let _: ::redis::Value = migrate.query(&mut client.get_connection().unwrap()).unwrap();
    }

    /// Ends the move of a slot whose keys are all moved.
    pub(crate) fn end_move(&self, slot: u16, from: usize, to: usize) {
        let [source, target] = [from, to].map(|index| &self.masters[index]);
        let id: String = target.command(&["CLUSTER", "MYID"]);
        for node in [target, source] {
            let () = node.command(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id]);
        }
    }

    /// Returns the slot of a key of this master.
    pub(crate) fn slot_of_a_key(&self, master: usize) -> u16 {
        let key: Vec<u8> = self.masters[master].command(&["RANDOMKEY"]);
        let client = ::redis::Client::open(format!("redis://127.0.0.1:{}/", self.masters[master].port)).unwrap();
        let mut command = ::redis::cmd("CLUSTER");
        command.arg("KEYSLOT").arg(key).query(&mut client.get_connection().unwrap()).unwrap()
    }
}

fn node() -> Redis {
    let port = free_port().to_string();
    Redis::start(&["--cluster-enabled", "yes", "--cluster-port", &port, "--cluster-require-full-coverage", "no"])
}

fn bus_port(node: &Redis) -> u16 {
    let nodes: String = node.command(&["CLUSTER", "NODES"]);
    let line = nodes.lines().find(|line| line.contains("myself")).unwrap();
    let (_, bus) = line.split(' ').nth(1).unwrap().split_once('@').unwrap();
    bus.split(',').next().unwrap().parse().unwrap()
}
