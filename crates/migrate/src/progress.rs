//! How a move goes: a bar on a terminal while memory is on its way, and how long each part took.

use std::time::Instant;

use serde::Serialize;

use skiff_output as output;

/// A part of a move and how long it took.
#[derive(Clone, Debug, Serialize)]
pub struct MigrationPhase {
    phase: &'static str,
    ms: u128,
}

/// Progress of a move, so far.
pub struct Progress {
    phases: Vec<MigrationPhase>,
    since: Instant,
    /// Bytes that are expected.
    size: u64,
    /// Bytes that have arrived.
    bytes: u64,
    bar: bool,
    drawn: bool,
}

impl Progress {
    /// Begins now.
    pub fn begin(size: u64) -> Self {
        let bar = output::can_redraw();
        Self { phases: vec![], since: Instant::now(), size, bytes: 0, bar, drawn: false }
    }

    /// A part is over.
    pub fn done(&mut self, phase: &'static str) {
        self.phases.push(MigrationPhase { phase, ms: self.since.elapsed().as_millis() });
        self.since = Instant::now();
        self.clear();
    }

    /// So many bytes have arrived.
    pub fn arrived(&mut self, bytes: u64) {
        self.bytes = bytes;
        if self.bar {
            self.drawn = true;
            output::draw(&format!("\r\x1b[2K{}", bar(bytes, self.size.max(bytes))));
        }
    }

    /// How many have.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many are expected, at least.
    pub fn size(&self) -> u64 {
        self.size.max(self.bytes)
    }

    /// All that has been done.
    pub fn phases(&self) -> &[MigrationPhase] {
        &self.phases
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            output::draw("\r\x1b[2K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Within 80 columns.
fn bar(bytes: u64, size: u64) -> String {
    const WIDTH: u64 = 40;
    let done = bytes.saturating_mul(WIDTH).checked_div(size).unwrap_or(WIDTH) as usize;
    let bar = ["=".repeat(done), " ".repeat(WIDTH as usize - done)].concat();
    format!("memory [{bar}] {:>10} / {}", output::size(bytes), output::size(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fits_80_columns() {
        for (bytes, size) in [(0, 0), (1 << 39, 1 << 40), (9, 9)] {
            assert!(bar(bytes, size).chars().count() <= 79, "{}", bar(bytes, size));
        }
    }
}
