//! `doc/tutorial.md`: its listings are the files of `tests/tutorial`, which are compiled, and its
//! commands print what it shows.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use urdma_harness::instance::LeasePolicy;
use urdma_harness::process::{wait_until, Process};
use urdma_harness::tshark;
use urdma_tests::{alone, OneHost, NOTICE, SHORT};

const PAGE: &str = include_str!("../doc/tutorial.md");
/// The number of messages of programs that Ctrl-C ends.
const ENDLESS: &str = "1000000000";
/// A line of the page that stands for any number of lines.
const ELLIPSIS: &str = "...";

/// The sources, in the order of their names.
fn sources() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tutorial");
    let entries = fs::read_dir(folder).unwrap();
    let mut sources: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    sources.sort();
    sources
}

/// The code blocks of `language` in the page.
fn blocks(language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}\n");
    let rest = PAGE.split(begin.as_str()).skip(1);
    rest.map(|rest| rest.split_once("```").unwrap().0).collect()
}

/// Compiles the steps into `directory`.
fn compile(directory: &Path) {
    for source in sources() {
        if source.extension().unwrap() != "c" {
            continue;
        }
        let mut command = Command::new("cc");
        command
            .args(["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(directory.join(source.file_stem().unwrap()))
            .arg(&source)
            .args(["-lrdmacm", "-libverbs"]);
        let ended = Process::run(&mut command, SHORT).unwrap();
        assert!(ended.succeeded(), "cc: {}", ended.describe());
    }
}

/// A command of the page, and what it prints there.
#[derive(Debug)]
struct Shown {
    words: Vec<&'static str>,
    lines: Vec<&'static str>,
}

impl Shown {
    fn of(block: &'static str) -> Self {
        let mut lines = block.lines();
        let first = lines.next().unwrap().strip_prefix("$ ").unwrap();
        let mut words: Vec<_> = first.split_whitespace().collect();
        while words.last() == Some(&"\\") {
            words.pop();
            words.extend(lines.next().unwrap().split_whitespace());
        }
        let lines = lines.filter(|line| *line != "^C").collect();
        Self { words, lines }
    }

    fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    /// The command, for the instance of the test. The page's has the name `default`.
    fn command(&self, one: &OneHost) -> Command {
        let directory = one.scratch.path();
        let mut words = &self.words[..];
        let variable = words[0].split_once('=');
        if variable.is_some() {
            words = &words[1..];
        }
        let mut command = match words {
            ["urdma", "run", "--", program, arguments @ ..] => {
                let program = directory.join(program.strip_prefix("./").unwrap());
                let argv = [&[program.to_str().unwrap()], arguments].concat();
                one.host.run(LeasePolicy::Never, &argv).unwrap()
            }
            ["urdma", name, arguments @ ..] => {
                let mut command = one.host.subcommand(name).unwrap();
                command.args(arguments);
                command
            }
            other => panic!("the test does not know {other:?}"),
        };
        command.current_dir(directory).envs(variable);
        command
    }

    /// Checks the output of a step.
    fn expect_exactly(&self, output: &str) {
        let printed: Vec<_> = output.lines().collect();
        assert_eq!(self.lines, printed, "{:?}", self.words);
    }

    /// A line that is not in the output, where any number is as good as another.
    fn missing(&self, output: &str) -> Option<String> {
        let printed: Vec<_> = output.lines().map(shape).collect();
        let lines = self.lines.iter().filter(|line| **line != ELLIPSIS);
        lines
            .map(|line| shape(line))
            .find(|line| !printed.contains(line))
    }

    fn expect_shape(&self, output: &str) {
        let missing = self.missing(output);
        assert_eq!(missing, None, "{:?} printed:\n{output}", self.words);
    }
}

/// A line without its numbers, and with what else depends on the time.
fn shape(line: &str) -> String {
    let mut shape = String::new();
    for word in line.split_whitespace() {
        match word {
            "asleep" | "awake" => shape += "STATE",
            "kB/s" | "MB/s" | "GB/s" => shape += "B/s",
            _ if word.starts_with("0x") => shape += "HEX",
            _ => {
                for character in word.chars() {
                    let in_number = shape.ends_with('#') && ".:".contains(character);
                    if !(character.is_ascii_digit() || in_number) {
                        shape.push(character);
                    } else if !shape.ends_with('#') {
                        shape.push('#');
                    }
                }
            }
        }
        shape.push(' ');
    }
    shape
}

/// The programs of the page that have not ended.
#[derive(Debug, Default)]
struct Running {
    server: Option<(Shown, Process)>,
    endless: Option<Process>,
}

impl Running {
    /// Ends the programs that Ctrl-C ends: the client, and the server when it was told.
    fn interrupt(&mut self, one: &OneHost) {
        let Some(client) = self.endless.take() else {
            return;
        };
        client.signal(Signal::SIGINT).unwrap();
        client.wait(SHORT).unwrap();
        wait_until("the end of the client, in the trace,", NOTICE, || {
            let mut command = one.host.subcommand("trace").unwrap();
            let ended = Process::run(command.arg("--failed"), SHORT).unwrap();
            ended.output.contains("the peer's process has ended")
        })
        .unwrap();
        let (shown, mut server) = self.server.take().unwrap();
        if server.is_running() {
            server.signal(Signal::SIGINT).unwrap();
        }
        shown.expect_shape(&server.wait(SHORT).unwrap().output);
    }

    fn expect_server(&mut self) {
        let (shown, server) = self.server.take().unwrap();
        let ended = server.wait(SHORT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
        shown.expect_exactly(&ended.output);
    }
}

/// Merges the captures of both programs; `mergecap` of the page.
fn merge(directory: &Path) {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut command = Command::new("mergecap");
    command.args(["-w", "send.pcapng"]).current_dir(directory);
    command.args(paths.filter(|path| path.extension().is_some_and(|end| end == "pcapng")));
    let ended = Process::run(&mut command, SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
}

fn run(one: &OneHost, shown: Shown, running: &mut Running) {
    let directory = one.scratch.path();
    let watches = shown.has("top") || shown.has("status");
    if !(watches || shown.has("client")) {
        running.interrupt(one);
    }
    if shown.has("server") {
        let mut server = Process::start(&mut shown.command(one)).unwrap();
        server.wait_for_text("listening", SHORT).unwrap();
        running.server = Some((shown, server));
    } else if shown.has(ENDLESS) {
        running.endless = Some(Process::start(&mut shown.command(one)).unwrap());
    } else if watches {
        // A process reports once a second.
        wait_until("the output of the page", SHORT, || {
            let ended = Process::run(&mut shown.command(one), SHORT).unwrap();
            shown.missing(&ended.output).is_none()
        })
        .unwrap();
    } else if shown.has("mergecap") {
        merge(directory);
    } else if shown.has("tshark") {
        let capture = directory.join("send.pcapng");
        let lines = tshark::read(directory, &capture, &[]).unwrap();
        shown.expect_shape(&lines.join("\n"));
    } else {
        let ended = Process::run(&mut shown.command(one), SHORT).unwrap();
        assert!(ended.succeeded(), "{:?}: {}", shown.words, ended.describe());
        if shown.has("trace") {
            shown.expect_shape(&ended.output);
        } else {
            shown.expect_exactly(&ended.output);
        }
        if shown.has("client") {
            running.expect_server();
        }
    }
}

#[test]
fn listings_are_short_and_those_of_the_files() {
    let listings = blocks("c");
    let sources = sources();
    assert_eq!(listings.len(), sources.len());
    for source in sources {
        let text = fs::read_to_string(&source).unwrap();
        assert!(listings.contains(&text.as_str()), "{}", source.display());
        assert!(text.lines().count() < 60, "{}", source.display());
    }
}

#[test]
fn commands_print_what_the_page_shows() {
    let _alone = alone();
    let one = OneHost::up();
    compile(one.scratch.path());
    let mut running = Running::default();
    for block in blocks("console") {
        run(&one, Shown::of(block), &mut running);
    }
    assert!(running.server.is_none() && running.endless.is_none());
    one.down();
}
