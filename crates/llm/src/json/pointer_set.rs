//! The pointers that a scanner looks for, as one tree.

use super::pointer::{Pointer, PointerToken};

/// The question about the value at a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// The value.
    Value,
    /// The number of bytes of the decoded string.
    TextBytes,
    /// The number of bytes of the value, as it was sent.
    SentBytes,
    /// The number of bytes of all names, strings and numbers of the value, decoded. A string with such a pointer of its
    /// own that is a data URL (RFC 2397) counts as a medium instead.
    TextBelow,
    /// The same of a string. Nothing is counted for another value.
    OwnText,
    /// Nothing is recorded here. But a string here counts as a medium in the [`Interest::TextBelow`] around it, and not
    /// as text.
    Medium,
}

/// Pointers with their questions. A pointer is identified by its index in the list of [`PointerSet::new`].
#[derive(Clone, Debug)]
pub struct PointerSet {
    nodes: Vec<Node>,
    /// The longest name in a pointer, in bytes.
    longest_name: usize,
    /// The number of pointers.
    count: usize,
}

/// The index of a node. The root is 0.
pub(super) type NodeId = usize;

#[derive(Clone, Debug, Default)]
struct Node {
    children: Vec<Child>,
    each_element: Option<NodeId>,
    /// The indices of the pointers that end here.
    wanted: Vec<(usize, Interest)>,
}

#[derive(Clone, Debug)]
struct Child {
    name: String,
    element: Option<u64>,
    node: NodeId,
}

impl PointerSet {
    /// Makes a set of pointers. A pointer may be in the list more than once.
    pub fn new(pointers: impl IntoIterator<Item = (Pointer, Interest)>) -> PointerSet {
        let mut set = PointerSet { nodes: vec![Node::default()], longest_name: 0, count: 0 };
        for (pointer, interest) in pointers {
            let end = pointer.tokens().iter().fold(0, |node, token| set.child_or_new(node, token));
            let index = set.count;
            set.count += 1;
            if let Some(node) = set.nodes.get_mut(end) {
                node.wanted.push((index, interest));
            }
        }
        set
    }

    fn child_or_new(&mut self, parent: NodeId, token: &PointerToken) -> NodeId {
        let new = self.nodes.len();
        let Some(node) = self.nodes.get_mut(parent) else { return new };
        let found = match token {
            PointerToken::EachElement => *node.each_element.get_or_insert(new),
            PointerToken::Name { name, element } => {
                self.longest_name = self.longest_name.max(name.len());
                match node.children.iter().find(|child| child.name == *name) {
                    Some(child) => child.node,
                    None => {
                        node.children.push(Child { name: name.clone(), element: *element, node: new });
                        new
                    }
                }
            }
            PointerToken::AnyOf(names) => {
                let known = node.children.iter().find(|child| names.contains(&child.name));
                let found = known.map_or(new, |child| child.node);
                for name in names {
                    self.longest_name = self.longest_name.max(name.len());
                    if !node.children.iter().any(|child| child.name == *name) {
                        node.children.push(Child { name: name.clone(), element: None, node: found });
                    }
                }
                found
            }
        };
        if found == new {
            self.nodes.push(Node::default());
        }
        found
    }

    /// The number of pointers.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn longest_name(&self) -> usize {
        self.longest_name
    }

    pub(super) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn member(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        let children = &self.nodes.get(parent)?.children;
        children.iter().find(|child| child.name.as_bytes() == name).map(|child| child.node)
    }

    /// The nodes of members whose names differ from this name only in case.
    pub(super) fn members_in_other_case(&self, parent: NodeId, name: &[u8]) -> impl Iterator<Item = NodeId> {
        let children = self.nodes.get(parent).map_or(&[][..], |node| &node.children);
        let named = children.iter().filter(|child| folded(child.name.as_bytes()).eq(folded(name)));
        named.map(|child| child.node)
    }

    /// The node of an element of an array. A node for this number is preferred to one for every element.
    pub(super) fn element(&self, parent: NodeId, number: u64) -> Option<NodeId> {
        let node = self.nodes.get(parent)?;
        let child = node.children.iter().find(|child| child.element == Some(number));
        child.map(|child| child.node).or(node.each_element)
    }

    /// The node of an object. If pointers lead only into the elements of an array here, the object is its only element.
    pub(super) fn object(&self, node: NodeId) -> NodeId {
        let only = self.nodes.get(node).filter(|node| node.children.is_empty() && node.wanted.is_empty());
        only.and_then(|node| node.each_element).unwrap_or(node)
    }

    pub(super) fn wanted(&self, node: NodeId) -> &[(usize, Interest)] {
        self.nodes.get(node).map_or(&[], |node| &node.wanted)
    }

    /// Calls `on_pointer` with the index of every pointer that ends at this node or below.
    pub(super) fn each_below(&self, node: NodeId, on_pointer: &mut impl FnMut(usize)) {
        // Children come after their parents, so one pass over the nodes is enough.
        let mut below = vec![false; self.nodes.len()];
        if let Some(start) = below.get_mut(node) {
            *start = true;
        }
        for (id, node) in self.nodes.iter().enumerate() {
            if !below.get(id).copied().unwrap_or_default() {
                continue;
            }
            node.wanted.iter().for_each(|(index, _)| on_pointer(*index));
            for child in node.children.iter().map(|child| child.node).chain(node.each_element) {
                if let Some(child) = below.get_mut(child) {
                    *child = true;
                }
            }
        }
    }
}

/// The bytes of a name without case, as encoding/json of Go compares names: also the long s (U+017F) is an `s`, and the
/// Kelvin sign (U+212A) is a `k`.
fn folded(name: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let (byte, after) = match rest {
            [0xC5, 0xBF, after @ ..] => (b's', after),
            [0xE2, 0x84, 0xAA, after @ ..] => (b'k', after),
            [byte, after @ ..] => (byte.to_ascii_lowercase(), after),
            [] => return None,
        };
        rest = after;
        Some(byte)
    })
}
