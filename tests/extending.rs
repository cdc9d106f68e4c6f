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

/// An addition of one file.
struct Addition {
    /// The file, in the folder of this test.
    file: &'static str,
    /// The folder that it is added to.
    folder: &'static str,
    /// The file that lists it, and its lines there, each after a line that is there.
    list: (&'static str, &'static [(&'static str, &'static str)]),
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
    let to = tree.join(addition.folder).join(addition.file);
    std::fs::copy(here.join(addition.file), to).unwrap();
    let (list, lines) = addition.list;
    let list = tree.join(list);
    let mut text = std::fs::read_to_string(&list).unwrap();
    for (after, line) in lines {
        let after = format!("\n{after}\n");
        assert_eq!(text.matches(&after).count(), 1, "{after} in {list:?}");
        text = text.replace(&after, &format!("{after}{line}\n"));
    }
    std::fs::write(list, text).unwrap();
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
        file: "half_window.rs",
        folder: "proto-trp/src/conn/stream/congestion",
        list: (
            "proto-trp/src/conn/stream/congestion.rs",
            &[
                ("mod fixed_window;", "mod half_window;"),
                (
                    "use fixed_window::FixedWindow;",
                    "use half_window::HalfWindow;",
                ),
                ("    FixedWindow,", "    /// Half of it.\n    HalfWindow,"),
            ],
        ),
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
        file: "null.rs",
        folder: "urdmad/src/kinds",
        list: (
            "urdmad/src/kinds/mod.rs",
            &[
                ("mod needs;", "mod null;"),
                ("pub use self::memif::Memif;", "pub use self::null::Null;"),
                ("    Memif,", "    /// Sends to nobody.\n    Null,"),
            ],
        ),
        tested: ("urdmad", "kinds::null::tests::configuration_names_the_kind"),
    });
}
