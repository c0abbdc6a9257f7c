//! Tables and numbers as people read them.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, TableStyle};
use gristmill::text::Printable;
use std::io::{self, Write};

/// Which side a column is aligned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows under a header, without lines between columns.
#[derive(Debug)]
pub struct Table {
    table: comfy_table::Table,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[(&str, Side)]) -> Table {
        let mut table = comfy_table::Table::new();
        table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('-').junction(' ')));
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(columns.iter().map(|(name, _)| *name));
        for (index, (_, side)) in columns.iter().enumerate() {
            if let Some(column) = table.column_mut(index) {
                column.set_padding((0, 1));
                column.set_cell_alignment(match side {
                    Side::Left => CellAlignment::Left,
                    Side::Right => CellAlignment::Right,
                });
            }
        }
        Table { table }
    }

    /// Adds a row. A cell is one line, whatever a file has in a name.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.table.add_row(cells.into_iter().map(|cell| Printable(&cell).to_string()).collect::<Vec<_>>());
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Writes the rows alone, for a list of facts that needs no header.
    ///
    /// # Errors
    /// When `out` refuses.
    pub fn print_plain(&self, out: &mut dyn Write) -> io::Result<()> {
        for line in self.table.trim_fmt().lines().skip(2) {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    /// Writes it, without trailing blanks.
    ///
    /// # Errors
    /// When `out` refuses.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.table.trim_fmt())
    }
}

/// A count of bytes with three digits or so: `617 B`, `1.19 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ if value < 10.0 => format!("{value:.2} {}", UNITS[unit]),
        _ if value < 100.0 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// A measured number with about three digits: `0.123`, `4.56`, `78.9`, `1234`.
pub fn measured(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Each item once, in the order in which they first come: the rows or columns of a table, of its cells.
pub fn each_once<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for item in items {
        if !once.contains(&item) {
            once.push(item);
        }
    }
    once
}

/// `1 kernel`, `2 kernels`, `2 classes`.
pub fn counted(count: usize, noun: &str) -> String {
    let ending = match (count, noun.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {noun}{ending}")
}

/// The first `most` of a list, and how many there are besides: `a, b and 3 more`.
pub fn first_of(list: &[String], most: usize) -> String {
    let shown = list.get(..most).unwrap_or(list);
    match list.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A line for each reason, behind the first `most` of the names of which it is said: `a, b and 3 more: the reason`.
pub fn by_reason<'l>(said: impl IntoIterator<Item = (&'l str, &'l str)>, most: usize) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for (name, why) in said {
        let name = Printable(name).to_string();
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(name),
            None => reasons.push((why, vec![name])),
        }
    }
    reasons.iter().map(|(why, names)| format!("{}: {why}", first_of(names, most))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(617), "617 B");
        assert_eq!(bytes(1 << 20), "1.00 MiB");
        assert_eq!(bytes(150 << 10), "150 KiB");
        assert_eq!(measured(0.1234), "0.123");
        assert_eq!(measured(1234.6), "1235");
        assert_eq!(counted(1, "kernel"), "1 kernel");
        assert_eq!(counted(2, "kernel"), "2 kernels");
        assert_eq!(counted(0, "class"), "0 classes");
        let said = [("a", "late"), ("b", "lost"), ("c", "late"), ("d", "late")];
        assert_eq!(by_reason(said, 2), ["a, c and 1 more: late", "b: lost"]);
        assert_eq!(by_reason(said, 3), ["a, c, d: late", "b: lost"]);
    }

    #[test]
    fn columns_line_up_and_lines_end_with_text() -> io::Result<()> {
        let mut table = Table::new(&[("name", Side::Left), ("n", Side::Right)]);
        table.row(["a".to_owned(), "1000".to_owned()]);
        table.row(["long name".to_owned(), "7".to_owned()]);
        let mut out = Vec::new();
        table.print(&mut out)?;
        let text = String::from_utf8_lossy(&out).into_owned();
        let widths: Vec<usize> = text.lines().map(str::len).collect();
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
        assert_eq!(widths.first(), widths.last(), "{text}");
        Ok(())
    }
}
