//! Puts the directives of the named files where other files include them, as nginx does.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::super::Losses;
use super::syntax::Directive;

/// The most files that are put in the places of all `include` together.
const MOST: usize = 10_000;

/// Blocks in which requests of HTTP are limited. An `include` elsewhere is of no interest.
const BLOCKS: [&str; 5] = ["http", "server", "location", "if", "limit_except"];

/// A file with its directives.
#[derive(Debug)]
pub(super) struct ParsedFile<'f> {
    pub name: &'f str,
    pub directives: Vec<Directive>,
}

/// Returns the directives of the files that no other file includes, in the order of the files. Each `include` in them has
/// become the directives of the included files.
pub(super) fn assembled(files: &[ParsedFile<'_>], losses: &RefCell<Losses>) -> Vec<Vec<Directive>> {
    let unheard = RefCell::default();
    let first = Assembly::new(files, &unheard);
    (0..files.len()).for_each(|index| _ = first.file(index, &[]));
    let assembly = Assembly::new(files, losses);
    let included = first.included.into_inner();
    let outermost = (0..files.len()).filter(|index| included.get(*index) == Some(&false));
    let mut roots: Vec<_> = outermost.map(|index| (index, assembly.file(index, &[]))).collect();
    // Files that include each other in a circle are no configuration of nginx, but must not be lost.
    for index in 0..files.len() {
        let is_read = assembly.included.borrow().get(index) == Some(&true);
        if !is_read && roots.iter().all(|(root, _)| *root != index) {
            roots.push((index, assembly.file(index, &[])));
        }
    }
    roots.into_iter().map(|(_, whole)| whole).collect()
}

/// The files that each `include` has, by its pattern and the outermost file.
type MatchingFiles = HashMap<(String, Option<usize>), Vec<usize>>;

struct Assembly<'a> {
    files: &'a [ParsedFile<'a>],
    losses: &'a RefCell<Losses>,
    count: Cell<usize>,
    matching: RefCell<MatchingFiles>,
    /// Whether another file includes the file.
    included: RefCell<Vec<bool>>,
}

impl<'a> Assembly<'a> {
    fn new(files: &'a [ParsedFile<'a>], losses: &'a RefCell<Losses>) -> Assembly<'a> {
        Assembly {
            files,
            losses,
            count: Cell::new(0),
            matching: RefCell::default(),
            included: RefCell::new(vec![false; files.len()]),
        }
    }
}

impl Assembly<'_> {
    /// Returns the directives of a file. `outer` are the files that include it.
    fn file(&self, index: usize, outer: &[usize]) -> Vec<Directive> {
        let stack: Vec<usize> = outer.iter().copied().chain([index]).collect();
        self.files.get(index).map(|file| self.block(&file.directives, &stack, true)).unwrap_or_default()
    }

    /// Returns the directives of a block. `limits` says whether requests of HTTP are limited there.
    fn block(&self, directives: &[Directive], stack: &[usize], limits: bool) -> Vec<Directive> {
        let mut whole = Vec::with_capacity(directives.len());
        for directive in directives {
            match &directive.block {
                None if directive.name() == "include" => whole.extend(self.included(directive, stack, limits)),
                None => whole.push(directive.clone()),
                Some(inner) => {
                    let limits = limits && BLOCKS.contains(&directive.name());
                    let block = Some(self.block(inner, stack, limits));
                    let (file, words) = (Rc::clone(&directive.file), directive.words.clone());
                    whole.push(Directive { file, position: directive.position, words, block });
                }
            }
        }
        whole
    }

    /// Returns the files that an `include` with this pattern includes, without those that include it.
    fn matching(&self, pattern: &str, stack: &[usize]) -> Vec<usize> {
        let main = stack.first().copied();
        let name = main.and_then(|index| self.files.get(index)).map_or("", |file| file.name);
        let mut known = self.matching.borrow_mut();
        let found =
            known.entry((pattern.to_owned(), main)).or_insert_with(|| matching(pattern, name, self.files).collect());
        found.iter().copied().filter(|index| !stack.contains(index)).collect()
    }

    /// Returns the directives of the files that an `include` names. Adds a loss if they are not among the files.
    fn included(&self, directive: &Directive, stack: &[usize], limits: bool) -> Vec<Directive> {
        let pattern = directive.argument();
        let found = self.matching(pattern, stack);
        self.count.set(self.count.get() + found.len());
        let is_of_no_interest = !limits || pattern.ends_with("mime.types") || pattern.ends_with("_params");
        if (found.is_empty() && !is_of_no_interest) || self.count.get() > MOST {
            let what = format!("{pattern} is not read: name the files that it includes too, if they have limits");
            self.losses.borrow_mut().add(&directive.file, directive.position, "include", what);
            return Vec::new();
        }
        for index in &found {
            if let Some(included) = self.included.borrow_mut().get_mut(*index) {
                *included = true;
            }
        }
        found.into_iter().flat_map(|index| self.file(index, stack)).collect()
    }
}

/// Returns the indices of the files that an `include` with this pattern includes. `main` is the outermost file. Files may be
/// named relative to any folder, so the ends of paths are compared: all of a relative pattern, two parts of another one.
fn matching<'a>(pattern: &str, main: &str, files: &'a [ParsedFile<'a>]) -> impl Iterator<Item = usize> + use<'a> {
    let compared = if pattern.starts_with('/') { 2 } else { usize::MAX };
    let regexes = parts(pattern).take(compared).map(|part| regex::Regex::new(&regex_of(part)).ok());
    let regexes: Vec<_> = regexes.collect();
    let folder = |name: &str| name.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    // The folder of a name alone is that of the main file.
    let only_in = (regexes.len() == 1).then(|| folder(main));
    let is_match = move |name: &str| {
        let pairs: Vec<_> = regexes.iter().zip(parts(name)).collect();
        let is_whole = !regexes.is_empty() && pairs.len() == regexes.len();
        let is_here = only_in.as_ref().is_none_or(|only| *only == folder(name));
        is_whole
            && is_here
            && pairs.iter().all(|(regex, part)| regex.as_ref().is_some_and(|regex| regex.is_match(part)))
    };
    files.iter().enumerate().filter(move |(_, file)| file.name != "-" && is_match(file.name)).map(|(index, _)| index)
}

/// Returns the parts of a path, from the last.
fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').rev().filter(|part| !matches!(*part, "" | "."))
}

/// Returns the regular expression of one part of a pattern, in which `*`, `?` and `[…]` stand for other characters.
fn regex_of(part: &str) -> String {
    let mut regex = String::from("^");
    for char in part.chars() {
        match char {
            '*' => regex.push_str(".*"),
            '?' => regex.push('.'),
            '[' | ']' | '-' => regex.push(char),
            '!' if regex.ends_with('[') => regex.push('^'),
            char => regex.push_str(&regex::escape(char.encode_utf8(&mut [0; 4]))),
        }
    }
    regex.push('$');
    regex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_compared_with_the_end_of_a_path() {
        let names = ["nginx.conf", "conf.d/a.conf", "/etc/nginx/conf.d/b.conf", "old/sites/c", "c", "-"];
        let files = names.map(|name| ParsedFile { name, directives: Vec::new() });
        for (pattern, main, expected) in [
            ("conf.d/*.conf", "nginx.conf", &[1, 2][..]),
            ("/etc/nginx/conf.d/[!a].conf", "nginx.conf", &[2]),
            ("/etc/nginx/sites/?", "old/nginx.conf", &[3]),
            ("c", "nginx.conf", &[4]),
            ("c", "old/sites/nginx.conf", &[3]),
            ("conf.d/a+conf", "nginx.conf", &[]),
            ("", "nginx.conf", &[]),
        ] {
            assert_eq!(matching(pattern, main, &files).collect::<Vec<_>>(), expected, "{pattern}");
        }
    }
}
