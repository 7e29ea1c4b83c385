//! How a pull goes, as the user wants to see it: bars on a terminal, else a line now and then, or JSON for programs.

use std::time::{Duration, Instant};

use rustix::termios::tcgetwinsize;

use skiff_output as output;
use skiff_store::protocol::LayerState;
use skiff_sys::IgnoreError;

/// Format of the progress display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ProgressKind {
    /// A line every few seconds
    Plain,
    /// A JSON object several times a second, on stderr
    Json,
}

/// Between two lines that are no bars.
const PAUSE: Duration = Duration::from_secs(5);
/// More bars than this nobody reads; the rest is in the total.
const MOST_BARS: usize = 12;

/// Shows it.
pub struct PullProgress {
    kind: Shown,
    begun: Instant,
    told: Option<Instant>,
    drawn: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Bars,
    Lines,
    Json,
    Nothing,
}

impl PullProgress {
    /// As asked for; without a wish, as fits where stderr goes.
    pub fn new(wish: Option<ProgressKind>, quiet: bool) -> Self {
        let terminal = output::can_redraw();
        let kind = match wish {
            _ if quiet => Shown::Nothing,
            Some(ProgressKind::Json) => Shown::Json,
            Some(ProgressKind::Plain) => Shown::Lines,
            None if terminal => Shown::Bars,
            None => Shown::Lines,
        };
        Self { kind, begun: Instant::now(), told: None, drawn: 0 }
    }

    /// Another process does the work.
    pub fn waiting(&self) {
        if self.kind != Shown::Nothing {
            output::note("another pull of this image is under way; waiting for it");
        }
    }

    /// How far the layers are.
    pub fn layers(&mut self, layers: &[LayerState]) {
        match self.kind {
            Shown::Nothing => {}
            Shown::Json => self.json(layers),
            Shown::Lines => self.line(layers),
            Shown::Bars => self.bars(layers),
        }
    }

    /// Ends the display: no bar stays.
    pub fn end(&mut self) {
        if self.drawn > 0 {
            let clear = format!("\x1b[{}A\x1b[J", self.drawn);
            output::draw(&clear);
            self.drawn = 0;
        }
    }

    fn due(&mut self) -> bool {
        let due = self.told.unwrap_or(self.begun).elapsed() >= PAUSE;
        if due {
            self.told = Some(Instant::now());
        }
        due
    }

    fn json(&self, layers: &[LayerState]) {
        let text = serde_json::to_string(&serde_json::json!({ "layers": layers }))
            .default_on_error("plain data cannot fail to become JSON");
        output::draw(&format!("{text}\n"));
    }

    fn line(&mut self, layers: &[LayerState]) {
        if self.due() {
            output::note(&total(layers, self.begun.elapsed()));
        }
    }

    fn bars(&mut self, layers: &[LayerState]) {
        let mut text = String::new();
        if self.drawn > 0 {
            text = format!("\x1b[{}A", self.drawn);
        }
        let (rows, columns) = room();
        let busy = layers.iter().filter(|l| l.unpacked < l.size).take(MOST_BARS.min(rows));
        let lines: Vec<String> = busy.map(bar).chain([total(layers, self.begun.elapsed())]).collect();
        for line in &lines {
            let shown: String = line.chars().take(columns).collect();
            text.push_str(&format!("\x1b[2K{shown}\n"));
        }
        text.push_str("\x1b[J");
        self.drawn = lines.len();
        output::draw(&text);
    }
}

/// How many bars the terminal has room for beside the total and the cursor, and how many characters a line may have: one that wraps, or
/// that has left the screen, would never be drawn over.
fn room() -> (usize, usize) {
    let or = |given: u16, usual: u16| usize::from(if given == 0 { usual } else { given });
    let (rows, columns) =
        tcgetwinsize(std::io::stderr()).map_or((24, 80), |size| (or(size.ws_row, 24), or(size.ws_col, 80)));
    (rows.saturating_sub(2), columns.saturating_sub(1))
}

/// Within 80 columns: `sha256:0123456789ab  [======>-----]   12.3 MiB / 45.6 MiB`. What is fetched is `-`, what is unpacked `=`.
fn bar(layer: &LayerState) -> String {
    const WIDTH: u64 = 26;
    let part = |n: u64| (n.min(layer.size) * WIDTH).checked_div(layer.size).unwrap_or(WIDTH) as usize;
    let (done, here) = (part(layer.unpacked), part(layer.fetched).max(part(layer.unpacked)));
    let bar = ["=".repeat(done), "-".repeat(here - done), " ".repeat(WIDTH as usize - here)].concat();
    let name: String = layer.digest.chars().take(19).collect();
    format!("{name} [{bar}] {:>10} / {}", output::size(layer.fetched), output::size(layer.size))
}

/// `3 of 6 layers, 123.4 MiB of 584.0 MiB (45.6 MiB/s), 11 s left`; also of an image that is built or imported.
fn total(layers: &[LayerState], since: Duration) -> String {
    let (size, fetched) = layers.iter().fold((0, 0), |(s, f), l| (s + l.size, f + l.fetched));
    let whole = layers.iter().filter(|l| l.unpacked >= l.size).count();
    let rate = fetched as f64 / since.as_secs_f64().max(0.001);
    let mut text = format!(
        "{whole} of {} layers, {} of {} ({}/s)",
        layers.len(),
        output::size(fetched),
        output::size(size),
        output::size(rate as u64)
    );
    if whole < layers.len() && fetched >= size {
        text.push_str("; writing the image");
    }
    if rate >= 1.0 && fetched < size {
        text.push_str(&format!(", {} left", time((size - fetched) as f64 / rate)));
    }
    text
}

/// So many seconds for people, rounded up.
fn time(seconds: f64) -> String {
    match seconds {
        ..=99.0 => format!("{:.0} s", seconds.ceil()),
        ..=5940.0 => format!("{:.0} min", (seconds / 60.0).ceil()),
        _ => format!("{:.0} h", (seconds / 3600.0).ceil()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(size: u64, fetched: u64, unpacked: u64) -> LayerState {
        LayerState { digest: format!("sha256:{}", "ab".repeat(32)), size, fetched, unpacked }
    }

    #[test]
    fn every_line_fits_80_columns() {
        for layer in [layer(0, 0, 0), layer(1 << 40, 1 << 39, 1 << 38), layer(10, 10, 10), layer(10, 99, 99)]
        {
            assert!(bar(&layer).chars().count() <= 79, "{}", bar(&layer));
            let text = total(&vec![layer; 127], Duration::from_millis(1));
            assert!(text.chars().count() <= 79, "{text}");
        }
    }

    #[test]
    fn totals() {
        let layers = [layer(1 << 20, 1 << 20, 1 << 20), layer(3 << 20, 1 << 20, 0)];
        assert_eq!(
            total(&layers, Duration::from_secs(2)),
            "1 of 2 layers, 2.0 MiB of 4.0 MiB (1.0 MiB/s), 2 s left"
        );
        let text = total(&[layer(1 << 20, 1 << 20, 0)], Duration::from_secs(1));
        assert_eq!(text, "0 of 1 layers, 1.0 MiB of 1.0 MiB (1.0 MiB/s); writing the image");
        for (seconds, text) in
            [(0.2, "1 s"), (99.0, "99 s"), (99.5, "2 min"), (5940.0, "99 min"), (5941.0, "2 h")]
        {
            assert_eq!(time(seconds), text);
        }
    }
}
