//! Latency by size, or messages per second by batch, as an SVG file.

use std::path::Path;

use plotters::prelude::*;

use super::report::Row;
use super::svg;

/// Sizes of what is published.
const SIZES: [f64; 7] = [2., 4., 8., 16., 32., 64., 128.];

/// The t_typical of `ib_write_lat` with 1000000 iterations, in us, at these sizes: on hardware, published 2014.
const PUBLISHED: [(&str, [f64; 7]); 4] = [
    ("2014: combined write, no write combining", [0.79, 0.78, 0.78, 0.86, 0.96, 1.11, 1.47]),
    ("2014: doorbell only, same virtual machine", [0.89, 0.89, 0.89, 0.90, 0.92, 0.93, 1.00]),
    ("2014: combined write, write combining", [0.79, 0.79, 0.79, 0.79, 0.83, 0.85, 0.98]),
    ("2014: doorbell only, bare metal", [1.10, 1.10, 1.10, 1.11, 1.14, 1.16, 1.27]),
];

/// A curve: its name and points.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
    dotted: bool,
}

/// Draws it. The file is there as a whole, or as it was.
pub(crate) fn draw(file: &Path, rows: &[Row]) -> Result<(), String> {
    let mut text = String::new();
    paint(&mut text, rows).map_err(|error| format!("{}: {error}", file.display()))?;
    svg::write(file, &text)
}

/// The curves, what they are over, what they show.
fn curves(rows: &[Row]) -> (Vec<Curve>, &'static str, &'static str) {
    let batches = rows.iter().any(|row| row.messages_per_sec.is_some());
    let mut all: Vec<Curve> = Vec::new();
    for row in rows {
        let point = match row.messages_per_sec {
            Some(rate) => (row.batch.into(), rate),
            None => (row.bytes as f64, row.times.t_typical),
        };
        let name = row.curve();
        match all.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => all.push(Curve { name, points: vec![point], dotted: false }),
        }
    }
    if batches {
        return (all, "work requests for one doorbell", "messages/s");
    }
    for (name, times) in PUBLISHED {
        let points = SIZES.into_iter().zip(times).collect();
        all.push(Curve { name: name.into(), points, dotted: true });
    }
    (all, "bytes", "t_typical, us")
}

/// From the power of two or ten below all to the one above.
fn range(values: impl Iterator<Item = f64>, base: f64) -> (f64, f64) {
    let (least, most) = values
        .map(|value| value.max(1e-3))
        .fold((f64::INFINITY, 0_f64), |(least, most), value| (least.min(value), most.max(value)));
    if most == 0.0 {
        return (1.0, base);
    }
    let (low, high) = (least.log(base).floor(), most.log(base).ceil());
    (base.powf(low), base.powf(if high > low { high } else { low + 1.0 }))
}

fn paint(svg: &mut String, rows: &[Row]) -> Result<(), String> {
    let failed = |error: DrawingAreaErrorKind<_>| error.to_string();
    let (curves, over, what) = curves(rows);
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (left, right) = range(points().map(|point| point.0), 2.0);
    let (low, high) = range(points().map(|point| point.1), 10.0);
    // The names of the curves are above, where no curve can be.
    let head = 40 + 20 * curves.len() as u32;
    let area = SVGBackend::with_string(svg, (960, 480 + head)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let (head, body) = area.split_vertically(head);
    let title = Text::new(format!("{what}, by {over}"), (12, 12), ("sans-serif", 20));
    head.draw(&title).map_err(failed)?;
    let mut chart = ChartBuilder::on(&body)
        .margin(12)
        .margin_right(36)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d((left..right).log_scale().base(2.0), (low..high).log_scale())
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_labels(24)
        .x_desc(over)
        .x_label_style(("sans-serif", 13))
        .x_label_formatter(&|at| short(*at))
        .y_desc(what)
        .y_label_style(("sans-serif", 13))
        .y_label_formatter(&|value| short(*value))
        .draw()
        .map_err(failed)?;
    for (number, curve) in curves.iter().enumerate() {
        let at = 46 + 20 * number as i32;
        // Without the palette's yellow, which is hard to see.
        let style = Palette99::pick(if number < 2 { number } else { number + 1 }).stroke_width(2);
        if curve.dotted {
            let marks = move |at| Circle::new(at, 1, style.filled());
            let dots = DottedLineSeries::new(curve.points.iter().copied(), 0, 5, marks);
            chart.draw_series(dots).map_err(failed)?;
            for dot in (72..100).step_by(6) {
                head.draw(&Circle::new((dot, at), 1, style.filled())).map_err(failed)?;
            }
        } else {
            let line = LineSeries::new(curve.points.iter().copied(), style);
            chart.draw_series(line.point_size(3)).map_err(failed)?;
            head.draw(&PathElement::new([(70, at), (98, at)], style)).map_err(failed)?;
        }
        let name = Text::new(curve.name.clone(), (106, at - 7), ("sans-serif", 15));
        head.draw(&name).map_err(failed)?;
    }
    area.present().map_err(failed)
}

/// A number with few digits: 64K, 8M, 0.5.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 1_048_576.0 && value % 1_048_576.0 == 0.0 => (value / 1_048_576.0, "Mi"),
        value if value >= 1024.0 && value % 1024.0 == 0.0 => (value / 1024.0, "Ki"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e4 => (value / 1e3, "k"),
        value => (value, ""),
    };
    format!("{value}{unit}")
}
