//! The scripts for Redis use only what every supported server has: Redis since 7.0, and Valkey.

use std::collections::BTreeSet;
use std::path::Path;

use regex::Regex;

use super::imports::source_folders;

/// The permitted library functions. All are in Lua 5.1 or in Redis since 2.6. Only `struct` and `unpack` have other names in
/// later versions of Lua, and every server with Lua 5.1 has them.
const FUNCTIONS: [&str; 20] = [
    "math.abs",
    "math.ceil",
    "math.floor",
    "math.max",
    "math.min",
    "redis.call",
    "redis.log",
    "redis.pcall",
    "redis.LOG_NOTICE",
    "string.byte",
    "string.find",
    "string.format",
    "string.gsub",
    "string.rep",
    "string.sub",
    "struct.pack",
    "struct.unpack",
    "table.concat",
    "table.remove",
    "table.sort",
];

/// The permitted functions without a library, and the functions that the gateway puts before a script.
const GLOBALS: [&str; 7] = ["ipairs", "make_raises", "make_twin", "pairs", "tonumber", "type", "unpack"];

/// The permitted commands. `SET` with `PX` exists since 2.6.12.
const COMMANDS: [&str; 3] = ["GET", "SET", "TIME"];

/// Returns every script, without its comments.
fn scripts() -> Vec<(String, String)> {
    fn find(folder: &Path, found: &mut Vec<(String, String)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                find(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "lua") {
                let text = std::fs::read_to_string(&path).unwrap();
                let lines = text.lines().map(|line| line.split("--").next().unwrap());
                found.push((path.display().to_string(), lines.collect::<Vec<_>>().join("\n")));
            }
        }
    }
    let mut found = Vec::new();
    source_folders().iter().for_each(|folder| find(folder, &mut found));
    found
}

fn matches<'t>(pattern: &str, text: &'t str) -> BTreeSet<&'t str> {
    let pattern = Regex::new(pattern).unwrap();
    pattern.captures_iter(text).map(|found| found.get(1).unwrap().as_str()).collect()
}

#[test]
fn scripts_use_only_functions_and_commands_that_every_supported_server_has() {
    let scripts = scripts();
    assert!(scripts.len() >= 9, "{}", scripts.len());
    let (_, entries) = scripts.iter().find(|(name, _)| name.ends_with("owner_entries.lua")).unwrap();
    let entries: String = matches(r"local (?:function )?([\w, ]+)", entries).into_iter().collect::<Vec<_>>().join(",");
    let entries = entries.replace(',', " ");
    for (name, text) in &scripts {
        let of_libraries = r"\b((?:math|string|table|struct|redis|server|cjson|cmsgpack|bit|bit32|utf8|os|io)\.\w+)";
        for used in matches(of_libraries, text) {
            assert!(FUNCTIONS.contains(&used), "{name}: {used}");
        }
        // A function that is called is of the script itself, of the text that is put before the script, or one of these.
        let mut local = matches(r"function (\w+)", text);
        let assigned: BTreeSet<_> = text
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("local "))
            .flat_map(|line| line.split('=').next().unwrap().split(','))
            .map(str::trim)
            .collect();
        if !name.ends_with("take.lua") {
            local.extend(entries.split_whitespace());
        }
        let keywords = ["function", "and", "or", "not", "if", "while", "in", "return", "elseif", "until"];
        for called in matches(r"(?:^|[^\w.:])([A-Za-z_]\w*)\(", text) {
            let known = local.contains(called) || assigned.contains(called) || GLOBALS.contains(&called);
            assert!(known || keywords.contains(&called), "{name}: {called}");
        }
        for command in matches(r"call\('([A-Za-z]+)'", text) {
            assert!(COMMANDS.contains(&command), "{name}: {command}");
        }
        // Operators and statements of later versions of Lua.
        for later in [r"(//)", r"(\bgoto\b)", r"( & )", r"( \| )", r"(<<|>>)"] {
            assert!(matches(later, text).is_empty(), "{name}: {later}");
        }
    }
}
