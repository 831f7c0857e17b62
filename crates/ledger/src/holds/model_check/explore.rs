//! Visits all states that can be reached, the nearest first, so that a counterexample is short.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::world::{Action, World};

pub(super) struct Report {
    pub states: usize,
    /// The number of transitions from one state to another.
    pub steps: usize,
    /// The number of actions in the longest history that was explored.
    pub depth: usize,
}

/// A sequence of actions after which an invariant is broken.
pub(super) struct Counterexample {
    pub broken: String,
    history: Vec<Action>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after {:?}", self.broken, self.history)
    }
}

/// Returns two hashes of a state, so that a collision is very unlikely.
fn fingerprint(world: &World) -> (u64, u64) {
    let hash = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, world).hash(&mut hasher);
        hasher.finish()
    };
    (hash(1), hash(2))
}

/// Explores all states that can be reached from this state, the nearest states first.
///
/// # Errors
///
/// Returns the shortest history that breaks an invariant.
pub(super) fn explore(start: World) -> Result<Report, Counterexample> {
    // For each state, the previous state and the action by which the state was first reached.
    let mut reached: Vec<Option<(usize, Action)>> = vec![None];
    let mut known = HashSet::from([fingerprint(&start)]);
    let mut next = VecDeque::from([(0, 0, start)]);
    let (mut steps, mut depth) = (0, 0);
    while let Some((index, length, world)) = next.pop_front() {
        depth = depth.max(length);
        for action in world.actions() {
            let mut after = world.clone();
            let broken = after.apply(action).and_then(|()| after.check());
            steps += 1;
            if let Err(broken) = broken {
                let mut history = vec![action];
                let mut from = index;
                while let Some((before, action)) = reached[from] {
                    history.push(action);
                    from = before;
                }
                history.reverse();
                return Err(Counterexample { broken, history });
            }
            if known.insert(fingerprint(&after)) {
                reached.push(Some((index, action)));
                next.push_back((reached.len() - 1, length + 1, after));
            }
        }
    }
    Ok(Report { states: reached.len(), steps, depth })
}
