//! Parses the reply to CLUSTER SLOTS: the hash slots of each node.

use redis::Value;

use base::host_port::HostPort;

/// A range of hash slots, with the master that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotRange {
    pub first: u16,
    pub last: u16,
    pub master: HostPort,
}

/// Parses the ranges of hash slots in a reply. `None` if the reply is invalid. `asked` is the node that replied, which
/// may not know its own name. A range without a known address is left out.
pub(crate) fn slot_ranges(reply: &Value, asked: &HostPort) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = reply else { return None };
    let mut read = Vec::with_capacity(ranges.len());
    for range in ranges {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else { return None };
        let [host, Value::Int(port), ..] = &master[..] else { return None };
        let host = match host {
            Value::Nil => asked.host.clone(),
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            Value::SimpleString(host) => host.clone(),
            _ => return None,
        };
        let [first, last, port] = [first, last, port].map(|number| u16::try_from(*number).ok());
        let (first, last, port) = (first?, last?, port?);
        match &*host {
            "?" => {}
            "" => read.push(SlotRange { first, last, master: HostPort { host: asked.host.clone(), port } }),
            _ => read.push(SlotRange { first, last, master: HostPort { host, port } }),
        }
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node.clone(), node])
    }

    #[test]
    fn nodes_without_a_name_are_at_the_address_that_was_asked() {
        let asked = HostPort { host: "seed".to_owned(), port: 1 };
        let named = Value::BulkString(b"10.0.0.1".to_vec());
        let reply = Value::Array(vec![
            range(0, 9, named, 7000),
            range(10, 10, Value::Nil, 7001),
            range(11, 20, Value::BulkString(Vec::new()), 7002),
            range(21, 22, Value::BulkString(b"?".to_vec()), 7003),
        ]);
        let read: Vec<_> = slot_ranges(&reply, &asked).unwrap().into_iter().map(|range| range.master).collect();
        let at = |host: &str, port| HostPort { host: host.to_owned(), port };
        assert_eq!(read, [at("10.0.0.1", 7000), at("seed", 7001), at("seed", 7002)]);
        assert_eq!(slot_ranges(&Value::Array(vec![range(0, 70_000, Value::Nil, 1)]), &asked), None);
        assert_eq!(slot_ranges(&Value::Int(1), &asked), None);
    }
}
