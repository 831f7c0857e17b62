//! Runs a Redis Cluster of three masters, each with a replica if the test needs it.

use base::host_port::HostPort;
use redis::Value;

use super::{Certificates, Redis, eventually, free_port, node_list};

/// The number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// Which masters have replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replicas {
    None,
    OneEach,
}

pub(crate) struct RedisCluster {
    /// The masters. Each has a third of the slots.
    pub masters: Vec<Redis>,
    /// The replicas, in the order of their masters.
    pub replicas: Vec<Redis>,
}

impl RedisCluster {
    #[track_caller]
    pub(crate) fn start(replicas: Replicas) -> RedisCluster {
        RedisCluster::start_with(replicas, &[])
    }

    /// Starts a cluster with settings of redis.conf as arguments of each node.
    #[track_caller]
    pub(crate) fn start_with(replicas: Replicas, settings: &[&str]) -> RedisCluster {
        let masters = (0..3).map(|_| node(settings)).collect();
        let replicas = match replicas {
            Replicas::None => Vec::new(),
            Replicas::OneEach => (0..3).map(|_| node(settings)).collect(),
        };
        RedisCluster::of(masters, replicas)
    }

    /// Starts a cluster of masters only, which also listen with TLS. Also returns the port of the first master.
    #[track_caller]
    pub(crate) fn start_tls(certificates: &Certificates) -> (RedisCluster, u16) {
        let node = |_| {
            let arguments = arguments();
            // So that nodes name the ports for TLS.
            let arguments = arguments.iter().map(String::as_str).chain(["--tls-cluster", "yes"]);
            Redis::start_tls_with(certificates, &arguments.collect::<Vec<_>>())
        };
        let (masters, ports): (Vec<Redis>, Vec<u16>) = (0..3).map(node).unzip();
        (RedisCluster::of(masters, Vec::new()), ports[0])
    }

    #[track_caller]
    fn of(masters: Vec<Redis>, replicas: Vec<Redis>) -> RedisCluster {
        for (number, master) in (0_u32..).zip(&masters) {
            let [first, last] = [number, number + 1].map(|part| u32::from(SLOTS) * part / 3);
            let () = master.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(last - 1).to_string()]);
            // Otherwise all begin with the same, and have to settle that.
            let () = master.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        let cluster = RedisCluster { masters, replicas };
        for other in cluster.masters.iter().skip(1).chain(&cluster.replicas) {
            cluster.meet(other);
        }
        eventually("all nodes know each other", || {
            let count = cluster.masters.len() + cluster.replicas.len();
            cluster.nodes().all(|node| info(node, "cluster_known_nodes:") == count.to_string())
        });
        for (replica, master) in cluster.replicas.iter().zip(&cluster.masters) {
            let id: String = master.command(&["CLUSTER", "MYID"]);
            let () = replica.command(&["CLUSTER", "REPLICATE", &id]);
        }
        cluster.wait_until_it_serves();
        cluster
    }

    /// Returns the `store` section of a gateway.yaml, with an `on_store_failure` and these keys in `redis`. It names one
    /// node.
    pub(crate) fn store(&self, on_store_failure: &str, rest: &str) -> String {
        let nodes = node_list([self.masters[2].port]);
        format!(
            "store: {{redis: {{cluster: {{nodes: {nodes}}}, timeout: 10s{rest}}}}}\n\
             on_store_failure: {on_store_failure}\n"
        )
    }

    /// Returns the addresses of the masters.
    pub(crate) fn addresses(&self) -> Vec<HostPort> {
        self.masters.iter().map(|master| HostPort::new("127.0.0.1", master.port)).collect()
    }

    fn nodes(&self) -> impl Iterator<Item = &Redis> {
        self.masters.iter().chain(&self.replicas)
    }

    /// Waits until all nodes serve, and all replicas have the data of their masters.
    #[track_caller]
    pub(crate) fn wait_until_it_serves(&self) {
        eventually("the cluster serves all slots", || {
            self.nodes().all(|node| info(node, "cluster_state:") == "ok")
                && self.replicas.iter().all(|replica| {
                    let replication: String = replica.command(&["INFO", "replication"]);
                    replication.contains("master_link_status:up")
                })
        });
    }

    /// Starts a node that is in no cluster and has no slots.
    #[track_caller]
    pub(crate) fn lone_node() -> Redis {
        node(&[])
    }

    /// Cuts a master off from all other nodes. It still answers its clients, but reports that the cluster is down. Its
    /// replica replaces it.
    #[track_caller]
    pub(crate) fn cut_off(&self, master: usize) {
        let (cut_off, replica) = (&self.masters[master], &self.replicas[master]);
        let () = cut_off.command(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
        for other in self.nodes().filter(|node| node.port != cut_off.port) {
            let id: String = other.command(&["CLUSTER", "MYID"]);
            let () = cut_off.command(&["CLUSTER", "FORGET", &id]);
        }
        let () = replica.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        eventually("it says that the cluster is down", || info(cut_off, "cluster_state:") == "fail");
    }

    fn meet(&self, other: &Redis) {
        let (port, bus) = (other.port.to_string(), bus_port(other).to_string());
        let () = self.masters[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
    }

    /// Adds a master without slots.
    #[track_caller]
    pub(crate) fn add_master(&mut self) {
        let node = node(&[]);
        self.meet(&node);
        self.masters.push(node);
        eventually("the new node knows the others", || {
            let count = self.masters.len() + self.replicas.len();
            self.nodes().all(|node| info(node, "cluster_known_nodes:") == count.to_string())
        });
        self.wait_until_it_serves();
    }

    /// Begins to move the slot of a bucket from one master to another, and moves only this bucket, whose name ends with
    /// `key`.
    pub(crate) fn begin_move(&self, key: &[u8], from: usize, to: usize) {
        let [source, target] = [from, to].map(|index| &self.masters[index]);
        let [source_id, target_id]: [String; 2] = [source, target].map(|node| node.command(&["CLUSTER", "MYID"]));
        let name = source.keys().into_iter().find(|name| name.ends_with(key)).unwrap();
        let slot: u16 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(&name).query(&mut source.connection()).unwrap();
        let () = target.command(&["CLUSTER", "SETSLOT", &slot.to_string(), "IMPORTING", &source_id]);
        let () = source.command(&["CLUSTER", "SETSLOT", &slot.to_string(), "MIGRATING", &target_id]);
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(target.port).arg(&name).arg(0).arg(5000);
        let () = migrate.query(&mut source.connection()).unwrap();
    }

    /// Moves slots from one master to another, key by key, as `redis-cli --cluster reshard` does.
    pub(crate) fn reshard(&self, slots: impl Iterator<Item = u16>, from: usize, to: usize) {
        let [source, target] = [from, to].map(|index| &self.masters[index]);
        let [source_id, target_id]: [String; 2] = [source, target].map(|node| node.command(&["CLUSTER", "MYID"]));
        for slot in slots.map(|slot| slot.to_string()) {
            let () = target.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]);
            let () = source.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]);
            loop {
                let keys: Vec<Vec<u8>> = source.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]);
                if keys.is_empty() {
                    break;
                }
                let mut migrate = redis::cmd("MIGRATE");
                migrate.arg("127.0.0.1").arg(target.port).arg("").arg(0).arg(5000).arg("KEYS").arg(&keys);
                // A bucket may have expired meanwhile.
                let _: Value = migrate.query(&mut source.connection()).unwrap();
            }
            for node in [target, source] {
                let () = node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]);
            }
        }
    }
}

fn node(settings: &[&str]) -> Redis {
    let arguments = arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(settings.iter().copied()).collect();
    Redis::start_with(&arguments)
}

fn arguments() -> [String; 10] {
    [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &free_port().to_string(),
        "--cluster-require-full-coverage",
        "no",
        "--cluster-node-timeout",
        "500",
        "--repl-diskless-sync-delay",
        "0",
    ]
    .map(str::to_owned)
}

fn bus_port(node: &Redis) -> u16 {
    let myself: String = node.command(&["CLUSTER", "NODES"]);
    let line = myself.lines().find(|line| line.contains("myself")).unwrap();
    let (_, bus) = line.split(' ').nth(1).unwrap().split_once('@').unwrap();
    bus.split(',').next().unwrap().parse().unwrap()
}

/// Returns a value of CLUSTER INFO.
fn info(node: &Redis, name: &str) -> String {
    let text: String = node.command(&["CLUSTER", "INFO"]);
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
}
