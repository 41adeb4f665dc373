//! Results: to stdout, as text for people or JSON for programs. Everything else goes to stderr.

use std::io::{self, Write as _};

use serde::Serialize;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// One JSON document per result
    Json,
}

/// Prints results.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    format: Format,
}

impl Output {
    pub(crate) const fn new(format: Format) -> Self {
        Self { format }
    }

    pub(crate) fn is_text(self) -> bool {
        self.format == Format::Text
    }

    /// Prints a result in the format that was asked for.
    pub(crate) fn result<T: Serialize>(self, value: &T, text: impl FnOnce(&T) -> String) {
        match self.format {
            Format::Text => line(&text(value)),
            Format::Json => match serde_json::to_string(value) {
                Ok(json) => line(&json),
                Err(error) => tracing::error!(%error, "a result cannot be written as JSON"),
            },
        }
    }
}

/// Prints a line to stdout. A reader that went away (`| head`) is no error.
pub(crate) fn line(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    if let Err(error) = written {
        tracing::debug!(%error, "nobody reads the results any more");
    }
}

/// Tells people how it goes, on stderr.
pub(crate) fn note(text: &str) {
    let written = writeln!(io::stderr().lock(), "{text}");
    if let Err(error) = written {
        tracing::debug!(%error, "nobody reads the notes any more");
    }
}

/// Columns as wide as their widest cell, two spaces apart, without spaces at the end of lines.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            let width = cell.chars().count();
            match widths.get_mut(i) {
                Some(widest) => *widest = (*widest).max(width),
                None => widths.push(width),
            }
        }
    }
    let lines: Vec<String> = rows
        .iter()
        .map(|row| {
            let cells = row.iter().zip(&widths);
            let padded: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            padded.join("  ").trim_end().to_owned()
        })
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_trailing_space() {
        let rows = [
            vec!["a".to_owned(), "long name".to_owned(), String::new()],
            vec!["bcd".to_owned(), "x".to_owned(), "end".to_owned()],
        ];

        assert_eq!(table(&rows), "a    long name\nbcd  x          end");
    }
}
