//! doc/configuration.md lists every key of urdmad and every variable that `urdma run` sets, and its
//! examples are valid.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use urdma_harness::instance::{binary_dir, LeasePolicy, Scratch};
use urdma_harness::process::{Ended, Process};
use urdma_tests::{alone, OneHost};

const LIMIT: Duration = Duration::from_secs(30);

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../doc/configuration.md");
    fs::read_to_string(path).unwrap()
}

/// urdmad's message about a configuration.
fn check_config(text: &str) -> Ended {
    let scratch = Scratch::new("test").unwrap();
    let file = scratch.path().join("a.toml");
    fs::write(&file, text).unwrap();
    let mut command = Command::new(binary_dir().unwrap().join("urdmad"));
    command.arg("--check-config").arg("--config").arg(&file);
    Process::run(&mut command, LIMIT).unwrap()
}

/// Whether a table of the page has a row that begins with `name`.
fn has_row(page: &str, name: &str) -> bool {
    page.lines()
        .any(|line| line.starts_with(&format!("| `{name}` |")))
}

#[test]
fn page_has_a_row_for_every_key() {
    let page = page();
    let mut keys = 0;
    for table in [
        "",
        "[quota]\n",
        "[port]\nkind = \"none\"\n",
        "[kernel]\n",
        "[metrics]\n",
        "[fault]\n",
        "[sockets]\n",
    ] {
        let said = check_config(&format!("{table}no_such_key = 1\n"));
        assert!(!said.succeeded());
        // "... unknown field `no_such_key`, expected one of `a`, `b`, ..."
        let (_, expected) = said.output.split_once("expected").unwrap();
        for key in expected.split('`').skip(1).step_by(2) {
            keys += 1;
            let is_table =
                ["quota", "kernel", "metrics", "port", "fault", "sockets"].contains(&key);
            let is_there =
                has_row(&page, key) || is_table && page.contains(&format!("## `[{key}]`"));
            assert!(is_there, "no row for \"{key}\" of {table:?}");
        }
    }
    assert!(keys >= 20, "{keys}");
}

#[test]
fn examples_of_the_page_are_valid() {
    let page = page();
    let examples: Vec<&str> = page
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert_eq!(examples.len(), 4);
    for example in examples {
        let said = check_config(example);
        assert!(said.succeeded(), "{example}{}", said.output);
    }
}

#[test]
fn page_names_every_variable_that_run_sets() {
    let _alone = alone();
    let one = OneHost::up();
    let ended = Process::run(
        &mut one.host.run(LeasePolicy::Never, &["env"]).unwrap(),
        LIMIT,
    )
    .unwrap();
    let page = page();
    let mut set = 0;
    for variable in ended
        .output
        .lines()
        .filter_map(|line| Some(line.split_once('=')?.0))
    {
        if std::env::var_os(variable).is_none() {
            set += 1;
            assert!(has_row(&page, variable), "no row for {variable}");
        }
    }
    assert!(set >= 5, "{}", ended.output);
    one.down();
}
