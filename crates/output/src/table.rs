//! Tables: columns as wide as their widest cell. On a terminal they are no wider than that: there a long column is wrapped, or the last ones
//! stand below the others. Who reads a pipe gets each row on one line.

use std::io::{IsTerminal as _, stdout};

use rustix::termios::tcgetwinsize;
use skiff_spec::fault::Result;

use crate::line;
use crate::readable::readable_cell;

/// Between two columns.
const GAP: usize = 2;
/// In front of what stands below a row.
const INDENT: usize = 4;
/// A column is wrapped where it keeps so many characters. Narrower ones are hard to read.
const FEWEST: usize = 24;
/// A cell has at most so many lines; what is cut is seen in a pipe.
const MOST_LINES: usize = 4;
/// What stands in the place of nothing.
const NOTHING: &str = "-";

/// Prints a table: columns as wide as their widest cell, the last one free. On a terminal that is narrower, long cells are wrapped, and cut.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> Result<()> {
    print(head, rows, terminal_width(), MOST_LINES)
}

/// The same with nothing cut.
pub fn whole_table(head: &[&str], rows: &[Vec<String>]) -> Result<()> {
    print(head, rows, terminal_width(), usize::MAX)
}

/// Prints data on one line, or, on a terminal that has no room for it, the rest below the first.
pub fn line_and_rest(first: &str, rest: &str) -> Result<()> {
    let whole = format!("{first}  {rest}");
    match terminal_width().filter(|width| whole.chars().count() > *width) {
        None => line(&whole),
        Some(width) => {
            line(first)?;
            let rest = wrapped(rest, width.saturating_sub(INDENT).max(FEWEST), usize::MAX);
            rest.iter().try_for_each(|piece| line(&format!("{:INDENT$}{piece}", "")))
        }
    }
}

/// How many columns the terminal has to which data goes, if it goes to one.
fn terminal_width() -> Option<usize> {
    let stdout = stdout();
    let size = stdout.is_terminal().then(|| tcgetwinsize(&stdout).ok()).flatten()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

fn print(head: &[&str], rows: &[Vec<String>], width: Option<usize>, most_lines: usize) -> Result<()> {
    let head = head.iter().map(|cell| (*cell).to_owned()).collect();
    let shown = |cells: &Vec<String>| cells.iter().map(|cell| readable_cell(cell).into_owned()).collect();
    let all: Vec<Vec<String>> = std::iter::once(head).chain(rows.iter().map(shown)).collect();
    let lines = laid_out(&all, width, most_lines);
    lines.iter().flatten().try_for_each(|text| line(text))
}

/// The lines of each row.
fn laid_out(rows: &[Vec<String>], width: Option<usize>, most_lines: usize) -> Vec<Vec<String>> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
    let mut widths: Vec<usize> = (0..count).map(|column| widest(column).unwrap_or(0)).collect();
    let total = |widths: &[usize]| widths.iter().map(|width| width + GAP).sum::<usize>().saturating_sub(GAP);
    let Some(width) = width.filter(|width| total(&widths) > *width) else {
        return rows.iter().map(|row| vec![padded(row, &widths)]).collect();
    };
    let longest = (0..count).max_by_key(|column| widths[*column]).unwrap_or(0);
    let room = (width + widths[longest]).saturating_sub(total(&widths));
    if room >= FEWEST {
        widths[longest] = room;
        return rows.iter().map(|row| wrapped_row(row, (longest, most_lines), &widths)).collect();
    }
    let first = (1..count).rev().find(|first| total(&widths[..*first]) <= width).unwrap_or(1);
    let (above, below): (Vec<_>, Vec<_>) = rows.iter().map(|row| row.split_at(first.min(row.len()))).unzip();
    let to_vec = |rows: Vec<&[String]>| rows.into_iter().map(<[String]>::to_vec).collect::<Vec<_>>();
    let (above, below) = (to_vec(above), to_vec(below));
    let mut lines = laid_out(&above, None, most_lines);
    // One that is wider by itself is as it is.
    let inner = (count > first).then_some(width.saturating_sub(INDENT));
    for (lines, (row, more)) in lines.iter_mut().zip(below.iter().zip(laid_out(&below, inner, most_lines))) {
        if row.iter().any(|cell| !cell.is_empty() && cell != NOTHING) {
            lines.extend(more.iter().map(|text| format!("{:INDENT$}{text}", "")));
        }
    }
    lines
}

fn padded(row: &[String], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
    cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
}

/// A row of which one cell has several lines.
fn wrapped_row(row: &[String], (column, most_lines): (usize, usize), widths: &[usize]) -> Vec<String> {
    let pieces = wrapped(row.get(column).map_or("", String::as_str), widths[column], most_lines);
    let line = |(number, piece): (usize, &String)| {
        let cell = |(at, cell): (usize, &String)| match (at == column, number) {
            (true, _) => piece.clone(),
            (false, 0) => cell.clone(),
            (false, _) => String::new(),
        };
        padded(&row.iter().enumerate().map(cell).collect::<Vec<_>>(), widths)
    };
    pieces.iter().enumerate().map(line).collect()
}

/// A text in lines of at most so many characters, at least one line; parted at spaces where that leaves no line mostly empty.
fn wrapped(text: &str, width: usize, most_lines: usize) -> Vec<String> {
    let mut rest: Vec<char> = text.chars().collect();
    let mut lines = vec![];
    while rest.len() > width {
        if lines.len() + 1 == most_lines {
            rest.truncate(width - 1);
            rest.push('\u{2026}');
            break;
        }
        let space = (width / 2..=width).rev().find(|at| rest[*at] == ' ');
        let line: String = rest[..space.unwrap_or(width)].iter().collect();
        lines.push(line.trim_end().to_owned());
        rest.drain(..space.map_or(width, |space| space + 1));
    }
    lines.push(rest.into_iter().collect());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(all: &[&[&str]]) -> Vec<Vec<String>> {
        all.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    fn lines(all: &[&[&str]], width: Option<usize>) -> Vec<String> {
        laid_out(&rows(all), width, MOST_LINES).concat()
    }

    #[test]
    fn what_fits_and_what_goes_to_a_pipe_is_one_line_for_each_row() {
        let long = "x".repeat(200);
        let all = [&["NAME", "TEXT"][..], &["a", &long], &["bcdef", "-"]];
        assert_eq!(lines(&all, None), ["NAME   TEXT".into(), format!("a      {long}"), "bcdef  -".into()]);
        let all = [&["NAME", "TEXT"][..], &["a", "b c"]];
        assert_eq!(lines(&all, Some(10)), ["NAME  TEXT", "a     b c"].map(|line| line.trim_end()));
    }

    #[test]
    fn a_long_column_is_wrapped_at_spaces_and_cut() {
        let all = [
            &["AT", "CREATED BY", "N"][..],
            &["1", "RUN apt-get update && apt-get install -y gcc gfortran", "-"],
            &["2", &"y".repeat(200), "z"],
        ];
        let got = lines(&all, Some(40));
        let want = [
            "AT  CREATED BY                         N",
            "1   RUN apt-get update && apt-get      -",
            "    install -y gcc gfortran",
        ];
        assert_eq!(got[..3], want);
        assert_eq!(got.len(), 7, "{got:?}");
        assert!(got[6].ends_with("yy\u{2026}"), "{got:?}");
        assert!(got.iter().all(|line| line.chars().count() <= 40), "{got:?}");
        let whole = laid_out(&rows(&all), Some(40), usize::MAX).concat();
        assert_eq!(whole.concat().matches('y').count() - "apt-get -y".matches('y').count(), 200);
    }

    #[test]
    fn columns_that_have_no_room_stand_below() {
        let all = [
            &["REF", "ID", "CREATED", "HOW", "TAGS", "MESSAGE"][..],
            &["-", "7c31aa09be12", "2026-11-25 20:31", "job's changes", "job-4711-gpu1", "job 4711 on gpu1"],
            &["@~0", "9f31c07be2d4", "2026-11-25 20:29", "job", "-", ""],
        ];
        let want = [
            "REF  ID            CREATED           HOW",
            "    TAGS           MESSAGE",
            "-    7c31aa09be12  2026-11-25 20:31  job's changes",
            "    job-4711-gpu1  job 4711 on gpu1",
            "@~0  9f31c07be2d4  2026-11-25 20:29  job",
        ];
        assert_eq!(lines(&all, Some(60)), want);
        // No terminal is too narrow to print anything.
        for width in 0..60 {
            assert!(lines(&all, Some(width)).len() >= 3);
        }
    }
}
