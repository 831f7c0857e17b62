//! The table of dependencies in ARCHITECTURE.md has exactly the packages that the manifests name.

use std::collections::BTreeSet;

use super::imports::root;

#[test]
fn the_table_of_dependencies_names_every_package_of_the_manifests_and_no_other() {
    let folders = std::fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let folders: Vec<_> = folders.chain([root().to_owned()]).collect();
    let own: BTreeSet<_> = folders.iter().map(|folder| folder.file_name().unwrap().to_str().unwrap()).collect();
    let mut needed = BTreeSet::new();
    for folder in &folders {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let lines = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
        let lines = lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.starts_with('#'));
        needed.extend(lines.filter_map(|line| line.split([' ', '.', '=']).next()).map(str::to_owned));
    }
    needed.retain(|package| !package.is_empty() && !own.contains(&**package));

    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, table) = page.split_once("## Dependencies\n").unwrap();
    let rows = table.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let rows = rows.take_while(|line| line.starts_with("| ")).filter_map(|line| line.split('|').nth(1));
    let named: BTreeSet<String> = rows.flat_map(|names| names.split(',')).map(|name| name.trim().to_owned()).collect();
    assert!(needed.len() > 50 && needed.contains("pingora"), "{needed:?}");
    assert_eq!(named, needed);
}
