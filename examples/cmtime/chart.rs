//! The steps of several runs one below the other, as an SVG file.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::Report;
use super::{Step, svg};

/// The height of a bar, and what is free between two steps.
const BAR: f64 = 15.0;
const GAP: f64 = 14.0;

/// Draws the time of a connection at each step, of each run, on a scale of powers of ten. The file is there as
/// a whole, or as it was.
pub(crate) fn draw(file: &Path, reports: &[Report]) -> Result<(), String> {
    let mut text = String::new();
    paint(&mut text, reports).map_err(|error| format!("{}: {error}", file.display()))?;
    svg::write(file, &text)
}

fn paint(svg: &mut String, reports: &[Report]) -> Result<(), String> {
    let failed = |error: DrawingAreaErrorKind<_>| error.to_string();
    let (low, high) = range(reports);
    let step = GAP + BAR * reports.len().max(1) as f64;
    let steps = step * Step::ALL.len() as f64;
    // The names of the runs are above, where no bar can be.
    let head = 44 + 20 * reports.len() as u32;
    let area = SVGBackend::with_string(svg, (960, head + steps as u32 + 52)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let (head, body) = area.split_vertically(head);
    let title = Text::new(title(reports), (12, 12), ("sans-serif", 20));
    head.draw(&title).map_err(failed)?;
    for (number, report) in reports.iter().enumerate() {
        let at = 42 + 20 * number as i32;
        head.draw(&Rectangle::new([(120, at), (132, at + 12)], color(number))).map_err(failed)?;
        let name = Text::new(report.name(), (142, at - 1), ("sans-serif", 15));
        head.draw(&name).map_err(failed)?;
    }
    // Heights are from below.
    let mut chart = ChartBuilder::on(&body)
        .margin_top(4)
        .margin_right(84)
        .x_label_area_size(44)
        .y_label_area_size(120)
        .build_cartesian_2d((low..high).log_scale(), 0.0..steps)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .light_line_style(WHITE)
        .x_desc("time, on a scale of powers of ten")
        .x_label_style(("sans-serif", 14))
        .x_label_formatter(&|us| time(*us))
        .draw()
        .map_err(failed)?;
    let at_right = Pos::new(HPos::Right, VPos::Center);
    let at_left = Pos::new(HPos::Left, VPos::Center);
    let style = |size, pos| TextStyle::from(("sans-serif", size).into_font()).pos(pos);
    for (number, (_, name)) in Step::ALL.iter().enumerate() {
        let top = steps - step * number as f64 - GAP / 2.0;
        let (axis, middle) = chart.backend_coord(&(low, top - (step - GAP) / 2.0));
        let name = Text::new(*name, (axis - 10, middle), style(15, at_right));
        area.draw(&name).map_err(failed)?;
        for (run, report) in reports.iter().enumerate() {
            let (top, us) = (top - BAR * run as f64, report.steps[number].map(|it| it.us_per_conn));
            let end = us.unwrap_or(low).max(low);
            let bar = Rectangle::new([(low, top - BAR * 0.94), (end, top)], color(run));
            chart.draw_series(us.map(|_| bar)).map_err(failed)?;
            // Of a step that nobody did, as in the table.
            let value = us.map_or("-".into(), time);
            let (at, middle) = chart.backend_coord(&(end, top - BAR / 2.0));
            let value = Text::new(value, (at + 5, middle), style(13, at_left));
            area.draw(&value).map_err(failed)?;
        }
    }
    area.present().map_err(failed)
}

fn title(reports: &[Report]) -> String {
    let what = "what a step takes for each connection";
    let Some(first) = reports.first() else { return what.into() };
    format!("{what}, of {} that do each step together", first.connections)
}

/// Without the palette's yellow, which is hard to see.
fn color(run: usize) -> ShapeStyle {
    Palette99::pick(if run < 2 { run } else { run + 1 }).filled()
}

/// From the power of ten below all times, in us, to the one above.
fn range(reports: &[Report]) -> (f64, f64) {
    let all = reports.iter().flat_map(|report| report.steps).flatten();
    let (least, most) = all
        .map(|figures| figures.us_per_conn.max(1e-3))
        .fold((f64::INFINITY, 0_f64), |(least, most), us| (least.min(us), most.max(us)));
    if most == 0.0 {
        return (1.0, 10.0);
    }
    (10_f64.powf(least.log10().floor()), 10_f64.powf(most.log10().floor() + 1.0))
}

/// Two digits or more, and a unit.
fn time(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 1.0 => (us * 1e3, "ns"),
        us if us < 1e3 => (us, "µs"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    let digits = usize::from(value < 10.0 && value.fract() != 0.0);
    format!("{value:.digits$} {unit}")
}
