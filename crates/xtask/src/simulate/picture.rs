//! Lines over two logarithmic axes, as SVG.

use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 240.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 50.0;
const COLOURS: [&str; 8] =
    ["#999999", "#bbbbbb", "#228833", "#66bb66", "#cc3311", "#ee9922", "#884499", "#2266aa"];

/// A line's name and points.
pub type Curve = (&'static str, Vec<(f64, f64)>);

/// The whole file.
pub fn draw(title: &str, lines: &[Curve]) -> String {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let (x, y) = (Axis::over(points().map(|p| p.0)), Axis::over(points().map(|p| p.1)));
    let across = |value| LEFT + x.share(value) * (WIDTH - LEFT - RIGHT);
    let down = |value| HEIGHT - BOTTOM - y.share(value) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    text(&mut svg, 16.0, 30.0, "start", "#000000", title);
    for power in x.powers() {
        line(&mut svg, (across(power), TOP), (across(power), HEIGHT - BOTTOM));
        text(&mut svg, across(power), HEIGHT - BOTTOM + 20.0, "middle", "#666666", &format!("{power}"));
    }
    for power in y.powers() {
        line(&mut svg, (LEFT, down(power)), (WIDTH - RIGHT, down(power)));
        text(&mut svg, LEFT - 8.0, down(power) + 4.0, "end", "#666666", &format!("{power} s"));
    }
    text(&mut svg, WIDTH - RIGHT, HEIGHT - 8.0, "end", "#666666", "nodes");
    for (at, (_, points)) in lines.iter().enumerate() {
        let way: Vec<String> =
            points.iter().map(|p| format!("{:.1},{:.1}", across(p.0), down(p.1))).collect();
        add(
            &mut svg,
            format_args!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\"/>\n",
                way.join(" "),
                COLOURS[at % COLOURS.len()]
            ),
        );
    }
    let ends = lines.iter().enumerate().filter_map(|(at, (_, points))| Some((down(points.last()?.1), at)));
    name_curves(&mut svg, ends.collect(), lines);
    svg.push_str("</svg>\n");
    svg
}

/// Writes each name beside the end of its curve, far enough from the others to be read.
fn name_curves(svg: &mut String, mut ends: Vec<(f64, usize)>, lines: &[Curve]) {
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut lowest = f64::MIN;
    for (end, at) in ends {
        lowest = end.max(lowest + 17.0);
        text(svg, WIDTH - RIGHT + 10.0, lowest + 4.0, "start", COLOURS[at % COLOURS.len()], lines[at].0);
    }
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let ends = format!("x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"", from.0, from.1, to.0, to.1);
    add(svg, format_args!("<line {ends} stroke=\"#e4e4e4\"/>\n"));
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, colour: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    add(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{content}</text>\n"
        ),
    );
}

fn add(svg: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing into memory does not fail.
    let (Ok(()) | Err(_)) = svg.write_fmt(what);
}

/// From a power of ten to another.
struct Axis {
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>) -> Self {
        let finite = values.filter(|value| value.is_finite() && *value > 0.0).map(f64::log10);
        let (from, to) =
            finite.fold((f64::MAX, f64::MIN), |(from, to), value| (from.min(value), to.max(value)));
        let (from, to) = if from > to { (0.0, 1.0) } else { (from.floor(), to.ceil()) };
        Self { from, to: to.max(from + 1.0) }
    }

    /// Where on it a value is, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        ((value.log10() - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    fn powers(&self) -> Vec<f64> {
        (self.from as i32..=self.to as i32).map(|power| 10_f64.powi(power)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_drawn_and_named() {
        let lines =
            [("a < b", vec![(100.0, 2.0), (1000.0, 20.0)]), ("c", vec![(100.0, 2.0), (1000.0, 19.0)])];
        let svg = draw("title", &lines);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        // Two powers of ten for nodes, and three of seconds.
        assert_eq!(svg.matches("<line ").count(), 2 + 3);
    }

    #[test]
    fn what_is_not_a_number_keeps_no_axis_from_being_drawn() {
        let axis = Axis::over([f64::NAN, f64::INFINITY].into_iter());
        assert_eq!((axis.share(1.0), axis.powers().len()), (0.0, 2));
    }
}
