//! Additions to a copy of the tree, as doc/extending.md describes them: the files that a row has,
//! and no others, are enough for it to compile and work.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use urdma_harness::instance::Scratch;
use urdma_harness::process::Process;

/// Limit of a build.
const BUILD: Duration = Duration::from_secs(1200);

/// New files, and their lines in files that are there.
struct Addition {
    /// The files, in the folder of this test, and where they are added.
    files: &'static [(&'static str, &'static str)],
    /// The files that list them, and the new lines, each after a line that is there.
    lists: &'static [(&'static str, &'static [(&'static str, &'static str)])],
    /// The package, and its test that the addition brings.
    tested: (&'static str, &'static str),
}

/// Copies the tree, without what is built.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (name, kind) = (entry.file_name(), entry.file_type().unwrap());
        if name == "target" || name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if kind.is_dir() {
            copy(&entry.path(), &to.join(name));
        } else if kind.is_file() {
            std::fs::copy(entry.path(), to.join(name)).unwrap();
        }
    }
}

fn add(tree: &Path, addition: &Addition) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("extending");
    for (file, to) in addition.files {
        std::fs::copy(here.join(file), tree.join(to)).unwrap();
    }
    for (list, lines) in addition.lists {
        let list = tree.join(list);
        let mut text = std::fs::read_to_string(&list).unwrap();
        for (after, line) in *lines {
            let after = format!("\n{after}\n");
            assert_eq!(text.matches(&after).count(), 1, "{after} in {list:?}");
            text = text.replace(&after, &format!("{after}{line}\n"));
        }
        std::fs::write(list, text).unwrap();
    }
}

/// Adds it to a copy of the tree, where the test that it brings passes.
fn compiles_and_works(addition: &Addition) {
    let scratch = Scratch::new("extending").unwrap();
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let tree = scratch.path().join("tree");
    copy(&repository, &tree);
    add(&tree, addition);
    let (package, test) = addition.tested;
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(&tree);
    command.env(
        "CARGO_TARGET_DIR",
        repository.canonicalize().unwrap().join("target/extending"),
    );
    let words = [
        "test",
        "--locked",
        "--offline",
        "--lib",
        "-p",
        package,
        "--",
    ];
    command.args(words).args(["--exact", test]);
    let ended = Process::run(&mut command, BUILD).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    assert!(ended.output.contains("1 passed"), "{}", ended.describe());
}

#[test]
#[ignore = "compiles a part of the tree: make test-all"]
fn congestion_controller_is_a_file_and_lines_of_a_list() {
    compiles_and_works(&Addition {
        files: &[(
            "controller.rs",
            "proto-trp/src/conn/stream/congestion/half_window.rs",
        )],
        lists: &[(
            "proto-trp/src/conn/stream/congestion.rs",
            &[
                ("mod fixed_window;", "mod half_window;"),
                (
                    "use fixed_window::FixedWindow;",
                    "use half_window::HalfWindow;",
                ),
                ("    FixedWindow,", "    /// Half of it.\n    HalfWindow,"),
            ],
        )],
        tested: (
            "proto-trp",
            "conn::stream::congestion::half_window::tests::algorithm_has_its_window",
        ),
    });
}

#[test]
#[ignore = "compiles a part of the tree: make test-all"]
fn port_kind_is_a_file_and_lines_of_a_list() {
    compiles_and_works(&Addition {
        files: &[("port_kind.rs", "urdmad/src/kinds/null.rs")],
        lists: &[(
            "urdmad/src/kinds/mod.rs",
            &[
                ("mod needs;", "mod null;"),
                ("pub use self::memif::Memif;", "pub use self::null::Null;"),
                ("    Memif,", "    /// Discards what is sent.\n    Null,"),
            ],
        )],
        tested: ("urdmad", "kinds::null::tests::configuration_names_the_kind"),
    });
}

#[test]
#[ignore = "compiles a part of the tree: make test-all"]
fn kind_of_queue_pair_is_three_files_and_lines_of_their_lists() {
    compiles_and_works(&Addition {
        files: &[
            ("kind/objects.rs", "crates/engine/src/objects/kinds/sink.rs"),
            ("kind/data.rs", "crates/engine/src/data/kinds/sink.rs"),
            ("kind/calls.rs", "crates/engine/src/engine/kinds/sink.rs"),
        ],
        lists: &[
            (
                "crates/engine/src/objects/kinds/mod.rs",
                &[
                    ("pub(crate) mod handled;", "pub(crate) mod sink;"),
                    (
                        "            dc: crate::objects::kinds::dc::DcTable,",
                        "            sinks: crate::objects::kinds::sink::SinkTable,",
                    ),
                ],
            ),
            (
                "crates/engine/src/data/kinds/mod.rs",
                &[("mod kind;", "mod sink;")],
            ),
            (
                "crates/engine/src/engine/kinds/mod.rs",
                &[("mod dc;", "mod sink;")],
            ),
        ],
        tested: (
            "urdma-engine",
            "engine::kinds::sink::tests::queue_pair_of_the_kind_is_there",
        ),
    });
}
