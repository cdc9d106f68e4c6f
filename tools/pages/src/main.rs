//! `urdma-pages FOLDER`: writes the manual pages and the completions for bash, zsh and fish of
//! `urdma`, `urdmad`, `urdma-bench`, `urdma-stream` and `urdma-metad`, from the definitions by
//! which these programs parse their arguments, below a folder that is laid out as `/usr/share`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory, Parser};
use clap_complete::{generate_to, Shell};
use clap_mangen::Man;

/// What follows the generated sections of a page.
const URDMA_SECTIONS: &str = r#".SH EXAMPLES
Two programs on one host, each in a terminal of its own:
.PP
.nf
urdma up
urdma run \-\- ib_write_bw
urdma run \-\- ib_write_bw 127.0.0.1
urdma down
.fi
.PP
Two hosts, with "address" and "[port]" in the configuration of each:
.PP
.nf
urdma up \-\-config a.toml
urdma run \-\- ib_write_bw 192.0.2.1
.fi
.SH SEE ALSO
.BR urdmad (8),
.BR ibv_devinfo (1),
.BR ib_write_bw (1)
"#;
const URDMAD_SECTIONS: &str = r#".SH FILES
.TP
.I /etc/urdma/INSTANCE.toml
The configuration of the service urdmad@INSTANCE. /usr/share/doc/urdma/examples/default.toml lists
the keys and their defaults.
.TP
.I /run/urdma/INSTANCE
The run directory of an instance of root: the control socket and the log. An ordinary user's is
below $XDG_RUNTIME_DIR/urdma.
.SH SEE ALSO
.BR urdma (1)
"#;

const METAD_SECTIONS: &str = r#".SH DIAGNOSTICS
What refuses a node or a client has an errno: EPROTO, a connection of another kind; EINVAL, an
address that names no host or no port, or an impossible target; EACCES, an address of another host
than the connection comes from; EADDRINUSE, another living node has the address; ENOSPC and EUSERS,
\-\-nodes\-max and \-\-clients\-max.
.SH SEE ALSO
.BR urdma (1),
.BR urdmad (8)
"#;

const STREAM_SECTIONS: &str = r#".SH EXAMPLES
A directory from one host to another, which has the address 192.0.2.1:
.PP
.nf
urdma run \-\- urdma\-stream pipe \-\-listen 0.0.0.0:7000 | tar \-x
tar \-c directory | urdma run \-\- urdma\-stream pipe 192.0.2.1:7000
.fi
.SH SEE ALSO
.BR urdma (1)
"#;

/// Writes the manual pages and shell completions of urdma, urdmad, urdma-bench, urdma-stream and
/// urdma-metad
#[derive(Debug, Parser)]
struct Arguments {
    /// Directory to write into, laid out as /usr/share
    folder: PathBuf,
}

/// A program with a page of its own.
struct Program {
    command: Command,
    section: &'static str,
    sections: &'static str,
}

fn main() -> ExitCode {
    match run(&Arguments::parse().folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urdma-pages: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &Path) -> io::Result<()> {
    let urdma = Program {
        // `urdma help` needs no page.
        command: urdma_cli::command().disable_help_subcommand(true),
        section: "1",
        sections: URDMA_SECTIONS,
    };
    let urdmad = Program {
        command: urdmad::arguments::Arguments::command(),
        section: "8",
        sections: URDMAD_SECTIONS,
    };
    let stream = Program {
        command: urdma_exs_cli::command().disable_help_subcommand(true),
        section: "1",
        sections: STREAM_SECTIONS,
    };
    let metad = Program {
        command: urdma_metad::command(),
        section: "8",
        sections: METAD_SECTIONS,
    };
    for program in [&urdma, &urdmad, &stream, &metad] {
        write_page(folder, program)?;
        complete(folder, program.command.clone())?;
    }
    let [mut urdma, mut stream] = [urdma, stream].map(|program| program.command);
    urdma.build();
    stream.build();
    for subcommand in stream.get_subcommands() {
        let subcommand = Program {
            command: subcommand.clone(),
            section: "1",
            sections: ".SH SEE ALSO\n.BR urdma\\-stream (1)\n",
        };
        write_page(folder, &subcommand)?;
    }
    for subcommand in urdma.get_subcommands() {
        // The program that `urdma bench` executes has the arguments.
        let command = match subcommand.get_name() {
            "bench" => urdma_perf::bench::Arguments::command().display_name("urdma-bench"),
            _ => subcommand.clone(),
        };
        let subcommand = Program {
            command,
            section: "1",
            sections: ".SH SEE ALSO\n.BR urdma (1)\n",
        };
        write_page(folder, &subcommand)?;
    }
    Ok(())
}

/// Writes the manual page of a program or a subcommand.
fn write_page(folder: &Path, program: &Program) -> io::Result<()> {
    let folder = folder.join(format!("man/man{}", program.section));
    fs::create_dir_all(&folder)?;
    let man = Man::new(program.command.clone()).section(program.section);
    let mut page = File::create(folder.join(man.get_filename()))?;
    man.render(&mut page)?;
    page.write_all(program.sections.as_bytes())
}

/// Writes the completions of a program.
fn complete(folder: &Path, mut command: Command) -> io::Result<()> {
    let name = command.get_name().to_owned();
    for (shell, at) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/site-functions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ] {
        let folder = folder.join(at);
        fs::create_dir_all(&folder)?;
        let written = generate_to(shell, &mut command, &name, &folder)?;
        if shell == Shell::Bash {
            // bash-completion looks for a file with the name of the program.
            fs::rename(written, folder.join(&name))?;
        }
    }
    Ok(())
}
