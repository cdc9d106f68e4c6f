//! The examples in the documents are compiled and run; what pages name exists.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use urdma_harness::instance::{binary_dir, LeasePolicy, Scratch};
use urdma_harness::process::Process;
use urdma_ipc::SocketReason;
use urdma_tests::{alone, OneHost, SHORT};

/// The first block of `language` in a document.
fn example(document: &str, language: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../doc");
    let text = std::fs::read_to_string(path.join(document)).unwrap();
    let begin = format!("```{language}\n");
    let (_, rest) = text.split_once(&begin).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

fn compile(scratch: &Scratch, source: &str) -> PathBuf {
    let (file, program) = (scratch.path().join("hello.c"), scratch.path().join("hello"));
    std::fs::write(&file, source).unwrap();
    let mut command = Command::new("cc");
    command.args([
        "-Wall",
        "-Wextra",
        "-Wno-missing-field-initializers",
        "-Werror",
    ]);
    command.arg("-o").args([&program, &file]);
    command.args(["-lrdmacm", "-libverbs"]);
    let ended = Process::run(&mut command, SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    program
}

#[test]
fn example_of_connections_carries_a_message() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile(&one.scratch, &example("connections.md", "c"));
    let program = program.to_str().unwrap();
    let command = |role| {
        let argv = [program, role, "127.0.0.1"];
        one.host.run(LeasePolicy::Never, &argv).unwrap()
    };
    let mut server = Process::start(&mut command("server")).unwrap();
    server.wait_for_text("listening", SHORT).unwrap();
    let client = Process::run(&mut command("client"), SHORT).unwrap();
    let server = server.wait(SHORT).unwrap();
    for end in [client, server] {
        assert!(end.succeeded(), "{}", end.describe());
        assert!(end.output.contains("success: hello"), "{}", end.describe());
    }
    one.down();
}

/// The anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept =
        |character: &char| character.is_alphanumeric() || matches!(character, ' ' | '-' | '_');
    let text: String = heading.trim().chars().filter(kept).collect();
    text.to_lowercase().replace(' ', "-")
}

/// The text of a page without its blocks of code.
fn prose(page: &Path) -> String {
    let text = std::fs::read_to_string(page).unwrap();
    let parts: Vec<&str> = text.split("```").step_by(2).collect();
    parts.concat()
}

/// The targets of a page's links to files of this repository.
fn links(page: &Path) -> Vec<String> {
    let text = prose(page);
    let targets = text.split("](").skip(1);
    let targets = targets.map(|rest| rest.split(')').next().unwrap().to_owned());
    targets.filter(|target| !target.contains("://")).collect()
}

fn repository() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap().to_owned()
}

/// The pages in a folder of the repository, but for those below it.
fn pages(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository().join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect()
}

#[test]
fn readme_has_a_link_to_each_page() {
    let linked = links(&repository().join("README.md"));
    for page in ["doc", "doc/spec"].iter().flat_map(|folder| pages(folder)) {
        let name = page.strip_prefix(repository()).unwrap();
        let found = linked.iter().any(|link| Path::new(link) == name);
        assert!(found, "README.md has no link to {}", name.display());
    }
}

#[test]
fn map_of_the_tree_is_short_and_leads_to_each_page_of_the_design() {
    let map = repository().join("doc/architecture.md");
    let words = std::fs::read_to_string(&map).unwrap();
    let words = words.split_whitespace().count();
    assert!(words <= 1500, "doc/architecture.md has {words} words");
    let linked = links(&map);
    for page in pages("doc/design") {
        let name = page.file_name().unwrap().to_str().unwrap();
        let found = linked.iter().any(|link| {
            let file = link.split('#').next().unwrap();
            file == format!("design/{name}")
        });
        assert!(found, "doc/architecture.md has no link to {name}");
    }
}

/// Whether a word in backticks of a page is the path of a source file.
fn is_path_of_a_source(word: &str) -> bool {
    let of_a_path = |octet: u8| octet.is_ascii_alphanumeric() || b"_-./".contains(&octet);
    let ends = [".rs", ".c", ".h", ".sh", ".py", ".lua", ".toml", ".md"];
    word.contains('/')
        && !word.starts_with('/')
        && word.bytes().all(of_a_path)
        && ends.iter().any(|end| word.ends_with(end))
}

/// The paths of all files below a folder of the repository, but for what is built.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let kept = paths.filter(|path| !path.ends_with("target") && !path.ends_with(".git"));
    kept.flat_map(|path| match path.is_dir() {
        true => files(&path),
        false => vec![path],
    })
    .collect()
}

#[test]
fn paths_of_sources_that_pages_name_exist() {
    // Of rdma-core and of DPDK, and a pattern.
    let others = ["libibverbs/", "rdma/", "drivers/net/", "crates/NAME/"];
    let files = files(&repository());
    let folders = ["", "doc", "doc/design", "doc/spec", "python"];
    for page in folders.iter().flat_map(|folder| pages(folder)) {
        // What these name existed when it was written.
        if page.ends_with("performance-log.md") || page.ends_with("CHANGELOG.md") {
            continue;
        }
        let text = prose(&page);
        let words = text.split('`').skip(1).step_by(2);
        let paths = words.filter(|word| is_path_of_a_source(word));
        for path in paths.filter(|path| !others.iter().any(|other| path.starts_with(other))) {
            let found = files.iter().any(|file| file.ends_with(path));
            assert!(found, "{}: {path} does not exist", page.display());
        }
    }
}

#[test]
fn reasons_of_sockets_with_tcp_are_those_of_the_page() {
    let page = std::fs::read_to_string(repository().join("doc/sockets.md")).unwrap();
    let (_, section) = page.split_once("### Reasons").unwrap();
    let (section, _) = section.split_once("\n### ").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let names: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    let reasons: Vec<&str> = SocketReason::ALL.iter().map(|of| of.name()).collect();
    assert_eq!(names, reasons);
}

#[test]
fn version_of_recordings_is_that_of_the_page() {
    let source = repository().join("crates/channel/src/recording.rs");
    let source = std::fs::read_to_string(source).unwrap();
    let (_, version) = source.split_once("\nconst VERSION: u32 = ").unwrap();
    let (version, _) = version.split_once(';').unwrap();
    let page = std::fs::read_to_string(repository().join("doc/tracing.md")).unwrap();
    assert!(page.contains(&format!("**Format**, version {version},")));
}

#[test]
fn links_of_pages_lead_to_files_and_headings() {
    let folders = [
        "",
        "doc",
        "doc/adr",
        "doc/design",
        "doc/spec",
        "python",
        "tools/wireshark",
    ];
    for page in folders.iter().flat_map(|folder| pages(folder)) {
        for link in links(&page) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let from = page.display();
            assert!(target.exists(), "{from}: {link} does not exist");
            let headings = || {
                let text = prose(&target);
                let lines = text.lines().filter(|line| line.starts_with('#'));
                lines
                    .map(|line| anchor(line.trim_start_matches('#')))
                    .collect::<Vec<_>>()
            };
            let found = heading.is_empty() || headings().iter().any(|name| name == heading);
            assert!(found, "{from}: {link}: no such heading");
        }
    }
}

#[test]
fn manual_page_shows_what_connections_may_be_excluded() {
    let scratch = Scratch::new("pages").unwrap();
    let mut command = Command::new(binary_dir().unwrap().join("urdma-pages"));
    let ended = Process::run(command.arg(scratch.path()), SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    let page = scratch.path().join("man/man1/urdma-run.1");
    // Without escape sequences and overstriking.
    let mut command = Command::new("groff");
    command
        .args(["-man", "-Tascii", "-rLL=300n", "-P-cbou"])
        .arg(page);
    let shown = Process::run(&mut command, SHORT).unwrap();
    assert!(shown.succeeded(), "{}", shown.describe());
    let mut lines = shown.output.lines().map(str::trim);
    let option = "--sockets-exclude <RULES>";
    assert!(lines.any(|line| line == option), "{}", shown.output);
    let text = lines.next().unwrap();
    for rule in [
        "(6379)",
        "(6000-6999)",
        "(10.0.0.0/8, ::1)",
        "(127.0.0.1:6379, [::1]:6000-6999)",
    ] {
        assert!(text.contains(rule), "{text}");
    }
    assert!(lines.next().unwrap().contains("URDMA_SOCKETS_EXCLUDE"));
}
