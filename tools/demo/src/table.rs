//! The table that the demo prints, and a line of progress for each row.

use std::fmt;

use urdma_harness::programs::Figure;
use urdma_harness::Failure;

/// One program on one path.
#[derive(Debug)]
pub(crate) struct Row {
    /// The program, with the options that distinguish the row.
    pub(crate) program: String,
    /// The path of its packets.
    pub(crate) path: &'static str,
    /// Message size, for programs that move messages.
    pub(crate) size_octets: Option<u32>,
    /// A figure if the program prints one, or the failure.
    pub(crate) result: Result<Option<Figure>, Failure>,
}

impl Row {
    fn size(&self) -> String {
        self.size_octets
            .map_or_else(String::new, |size| size.to_string())
    }

    fn figure(&self) -> String {
        match &self.result {
            Ok(Some(figure)) => format!("{:.2} {}", figure.value, figure.unit),
            Ok(None) | Err(_) => String::new(),
        }
    }

    fn verdict(&self) -> String {
        match &self.result {
            Ok(_) => "passed".to_owned(),
            Err(failure) => format!("FAILED: {failure}"),
        }
    }
}

/// All rows so far.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Row>);

impl Table {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a row and prints it as progress.
    pub(crate) fn add(&mut self, row: Row) {
        self.0.push(row);
        if let Some(row) = self.0.last() {
            println!(
                "[{:>3}] {}, {}: {} {}",
                self.0.len(),
                row.program,
                row.path,
                row.figure(),
                row.verdict()
            );
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn all_passed(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|row| row.result.is_ok())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (program, path) = ("program", "path");
        let (size, figure) = ("size", "typical or average");
        writeln!(f, "{program:<20} {path:<22} {size:>6} {figure:>20}  result")?;
        writeln!(f, "{:-<80}", "")?;
        for row in &self.0 {
            writeln!(
                f,
                "{:<20} {:<22} {:>6} {:>20}  {}",
                row.program,
                row.path,
                row.size(),
                row.figure(),
                row.verdict()
            )?;
        }
        Ok(())
    }
}
