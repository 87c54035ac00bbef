//! A picture (SVG): latency by percentile, and throughput over time, a line for each target.

use std::fmt::Write;

use super::Report;
use super::figures::{all, quantile_us};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 50.0;
/// Told apart also by who does not see colours well (Okabe and Ito).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
/// Targets beyond the colours have the same ones with gaps.
const GAPS: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];
const PERCENTILES: [(f64, &str); 6] =
    [(0.0, "0"), (0.5, "50"), (0.9, "90"), (0.99, "99"), (0.999, "99.9"), (0.9999, "99.99")];

/// A line of a chart.
struct Line<'a> {
    name: &'a str,
    points: Vec<(f64, f64)>,
}

/// Marks of an axis: where, and what is written there.
type Marks = Vec<(f64, String)>;

/// The whole picture.
#[must_use]
pub fn svg(report: &Report) -> String {
    let measured = || report.targets.iter().filter(|target| target.has_figures());
    let latencies: Vec<Line<'_>> = measured()
        .map(|target| {
            let all = all(&target.measured.measure);
            let points = (0..=160).map(|step| {
                let nines = f64::from(step) / 40.0;
                (nines, quantile_us(&all, 1.0 - 10f64.powf(-nines)).max(0.01).log10())
            });
            Line { name: &target.name, points: points.collect() }
        })
        .collect();
    let throughput: Vec<Line<'_>> = measured()
        .map(|target| {
            let seconds = target.measured.seconds.iter().enumerate();
            let full = target.measured.elapsed.as_secs() as usize;
            let points =
                seconds.take(full).map(|(second, one)| (second as f64, one.operations as f64));
            let mut points: Vec<_> = points.collect();
            if points.len() < 2 {
                // Too short for seconds: its mean, as long as it took.
                let (end, mean) =
                    (target.measured.elapsed.as_secs_f64(), target.measured.throughput());
                points = vec![(0.0, mean), (end, mean)];
            }
            Line { name: &target.name, points }
        })
        .collect();
    let mut svg = String::new();
    let height = 2.0 * HEIGHT;
    // A String takes every write.
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>"
    );
    let title = format!("onesided-bench {}, workload {}", report.command, report.workload);
    let nines = PERCENTILES.map(|(quantile, name)| (-(1.0 - quantile).log10(), name.to_owned()));
    chart(
        &mut svg,
        0.0,
        &format!("{title}: latency in us by percentile"),
        &latencies,
        Axes { x: nines.to_vec(), y: powers_of_ten(&latencies) },
    );
    chart(
        &mut svg,
        HEIGHT,
        "operations/s in each second",
        &throughput,
        Axes {
            x: steps(throughput.iter().flat_map(|line| &line.points).map(|point| point.0)),
            y: steps(throughput.iter().flat_map(|line| &line.points).map(|point| point.1)),
        },
    );
    svg.push_str("</svg>\n");
    svg
}

struct Axes {
    x: Marks,
    y: Marks,
}

fn powers_of_ten(lines: &[Line<'_>]) -> Marks {
    let all = || lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let low = all().fold(f64::INFINITY, f64::min).min(2.0).floor() as i32;
    let high = all().fold(1.0, f64::max).ceil() as i32;
    (low..=high.max(low + 1))
        .map(|power| (f64::from(power), 10f64.powi(power).to_string()))
        .collect()
}

/// Round marks from 0 to the greatest value.
fn steps(values: impl Iterator<Item = f64>) -> Marks {
    let greatest = values.fold(1.0, f64::max);
    let power = 10f64.powf((greatest / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|step| greatest / step <= 5.0).unwrap_or(10.0 * power);
    let digits = if step < 1.0 { 1 } else { 0 };
    let count = (greatest / step).ceil() as u32;
    let mark = |number| f64::from(number) * step;
    (0..=count).map(|number| (mark(number), format!("{:.digits$}", mark(number)))).collect()
}

fn chart(svg: &mut String, top: f64, title: &str, lines: &[Line<'_>], axes: Axes) {
    let range = |marks: &Marks| {
        let first = marks.first().map_or(0.0, |mark| mark.0);
        (first, (marks.last().map_or(1.0, |mark| mark.0) - first).max(1e-9))
    };
    let ((x0, x_range), (y0, y_range)) = (range(&axes.x), range(&axes.y));
    let x = |value: f64| LEFT + (value - x0) / x_range * (WIDTH - LEFT - RIGHT);
    let bottom = top + HEIGHT - BOTTOM;
    let y = |value: f64| bottom - (value - y0) / y_range * (HEIGHT - TOP - BOTTOM);
    let title = escape(title);
    let _ =
        writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\" font-size=\"15\">{title}</text>", top + 28.0);
    for (value, name) in &axes.y {
        let (at, right) = (y(*value), WIDTH - RIGHT);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    for (value, name) in &axes.x {
        let (at, low) = (x(*value), bottom + 18.0);
        let _ =
            writeln!(svg, "<text x=\"{at:.1}\" y=\"{low}\" text-anchor=\"middle\">{name}</text>");
    }
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let gaps = GAPS[number / COLOURS.len() % GAPS.len()];
        let points = line.points.iter().map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1)));
        let points = points.collect::<Vec<_>>().join(" ");
        let (name, at) = (escape(line.name), top + TOP + 18.0 * (number + 1) as f64);
        let (mark, middle) = (WIDTH - RIGHT + 8.0, at - 4.0);
        let _ = writeln!(
            svg,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{gaps}\"/>\
             <path d=\"M{mark} {middle}h18\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{gaps}\"/>\
             <text x=\"{}\" y=\"{at}\" fill=\"{colour}\">{name}</text>",
            mark + 24.0
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_hold_the_greatest() {
        let names = |values: &[f64]| {
            let marks = steps(values.iter().copied());
            marks.into_iter().map(|mark| mark.1).collect::<Vec<_>>()
        };
        assert_eq!(names(&[7.0]), ["0", "2", "4", "6", "8"]);
        assert_eq!(names(&[123_456.0]), ["0", "50000", "100000", "150000"]);
        assert_eq!(names(&[]), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
    }
}
