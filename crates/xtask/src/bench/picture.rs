//! A bar chart as SVG: horizontal bars to the median, a line over the whole spread, a mark at the limit. This one shape
//! is all the benchmarks need, which is less than a drawing library asks for its configuration.

use super::stats::Spread;

/// One row of the chart.
pub struct Bar {
    pub label: String,
    pub unit: &'static str,
    pub median: f64,
    /// What the line over the bar spans.
    pub line: [f64; 2],
    pub limit: Option<f64>,
    /// Ours, not what it is compared with.
    pub ours: bool,
}

impl Bar {
    /// With a line from the smallest to the largest sample.
    pub fn over_all(label: &str, unit: &'static str, spread: Spread, ours: bool) -> Self {
        Self {
            label: label.into(),
            unit,
            median: spread.median,
            line: [spread.min, spread.max],
            limit: None,
            ours,
        }
    }

    /// With a line over the interval that the median is known to lie in.
    pub fn over_median(label: &str, unit: &'static str, spread: Spread, limit: f64) -> Self {
        let line = [spread.from, spread.to];
        Self { label: label.into(), unit, median: spread.median, line, limit: Some(limit), ours: true }
    }
}

const WIDTH: f64 = 960.0;
const LABELS: f64 = 330.0;
const VALUES: f64 = 110.0;
const ROW: f64 = 30.0;
const TOP: f64 = 62.0;

/// The whole file.
pub fn draw(title: &str, footer: &str, bars: &[Bar]) -> String {
    let axis = Axis::over(bars);
    let height = TOP + ROW * bars.len() as f64 + 56.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"14\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    text(&mut svg, 16.0, 30.0, "start", "font-size=\"18\" font-weight=\"bold\"", title);
    grid(&mut svg, &axis, TOP + ROW * bars.len() as f64);
    for (index, bar) in bars.iter().enumerate() {
        row(&mut svg, &axis, TOP + ROW * index as f64, bar);
    }
    text(&mut svg, 16.0, height - 12.0, "start", "font-size=\"12\" fill=\"#666666\"", footer);
    svg.push_str("</svg>\n");
    svg
}

fn row(svg: &mut String, axis: &Axis, y: f64, bar: &Bar) {
    let (zero, end) = (axis.x(0.0), axis.x(bar.median));
    let fill = if bar.ours { "#2266aa" } else { "#a9b4bf" };
    text(svg, LABELS - 10.0, y + 20.0, "end", "", &bar.label);
    shape(svg, zero.min(end), y + 6.0, (end - zero).abs(), ROW - 12.0, fill);
    let (from, to, middle) = (axis.x(bar.line[0]), axis.x(bar.line[1]), y + ROW / 2.0 - 0.75);
    shape(svg, from, middle, to - from, 1.5, "#222222");
    for end in [from, to] {
        shape(svg, end - 0.75, middle - 4.0, 1.5, 9.5, "#222222");
    }
    if let Some(limit) = bar.limit {
        shape(svg, axis.x(limit) - 1.0, y + 2.0, 2.0, ROW - 4.0, "#cc3311");
    }
    let value = format!("{:.*} {}", decimals(bar.median), bar.median, bar.unit);
    text(svg, WIDTH - 16.0, y + 20.0, "end", "font-weight=\"bold\"", &value);
}

fn grid(svg: &mut String, axis: &Axis, bottom: f64) {
    let mut tick = (axis.from / axis.step).ceil() * axis.step;
    while tick <= axis.to + axis.step * 1e-6 {
        let strong = tick.abs() < axis.step * 1e-6;
        shape(svg, axis.x(tick) - 0.5, TOP, 1.0, bottom - TOP, if strong { "#888888" } else { "#e4e4e4" });
        let digits = usize::from(axis.step < 1.0) + usize::from(axis.step < 0.1);
        let label = format!("{:.digits$}", if strong { 0.0 } else { tick });
        text(svg, axis.x(tick), bottom + 16.0, "middle", "font-size=\"12\" fill=\"#666666\"", &label);
        tick += axis.step;
    }
}

fn shape(svg: &mut String, x: f64, y: f64, width: f64, height: f64, fill: &str) {
    let line = format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>\n"
    );
    svg.push_str(&line);
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, style: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let line = format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{content}</text>\n");
    svg.push_str(&line);
}

fn decimals(value: f64) -> usize {
    match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    }
}

/// The horizontal scale; zero is always on it.
struct Axis {
    from: f64,
    to: f64,
    step: f64,
}

impl Axis {
    fn over(bars: &[Bar]) -> Self {
        let values = bars.iter().flat_map(|b| [b.median, b.line[0], b.line[1], b.limit.unwrap_or(0.0)]);
        let (from, to) = values.fold((0.0, 0.0_f64), |(low, high): (f64, f64), v| (low.min(v), high.max(v)));
        let span = (to - from).max(1e-9);
        // 1, 2 or 5 times a power of ten, five to ten of them.
        let power = 10.0_f64.powf((span / 5.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|f| f * power)
            .into_iter()
            .find(|s| span / s <= 8.0)
            .unwrap_or(10.0 * power);
        Self { from, to, step }
    }

    fn x(&self, value: f64) -> f64 {
        let width = WIDTH - LABELS - VALUES;
        LABELS + (value - self.from) / (self.to - self.from).max(1e-9) * width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, samples: &[f64]) -> Bar {
        Bar { limit: Some(2.0), ..Bar::over_all(label, "ms", Spread::of(samples), true) }
    }

    #[test]
    fn labels_are_escaped_and_every_bar_drawn() {
        let svg = draw("a < b", "", &[bar("x & y", &[1.0, 3.0]), bar("z", &[-1.0])]);
        assert!(svg.contains("a &lt; b") && svg.contains("x &amp; y") && svg.ends_with("</svg>\n"), "{svg}");
        // Bar, three of the spread and the limit for each; the background; the grid from -1 to 3 in steps of a half.
        assert_eq!(svg.matches("<rect").count(), 2 * 5 + 1 + 9, "{svg}");
    }

    #[test]
    fn axis_has_readable_steps() {
        for (most, step) in [(0.9, 0.2), (3.0, 0.5), (9.0, 2.0), (69.0, 10.0), (131.0, 20.0)] {
            let axis = Axis::over(&[Bar { limit: None, ..bar("", &[most]) }]);
            assert!((axis.step - step).abs() < 1e-9, "{most}: {}", axis.step);
        }
    }
}
