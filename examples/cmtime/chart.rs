//! The steps of several runs side by side, as an SVG file.

use std::path::Path;

use plotters::prelude::*;

use super::Step;
use super::report::Report;

/// Whether the file can be written.
pub(crate) fn check(file: &Path) -> Result<(), String> {
    let opened = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(file);
    opened.map(|_| ()).map_err(|error| format!("{}: {error}", file.display()))
}

/// Draws the time of a connection at each step, of each run, on a scale of powers of ten.
pub(crate) fn draw(file: &Path, reports: &[Report]) -> Result<(), String> {
    let mut svg = String::new();
    paint(&mut svg, reports).map_err(|error| format!("{}: {error}", file.display()))?;
    std::fs::write(file, svg).map_err(|error| format!("{}: {error}", file.display()))
}

fn paint(svg: &mut String, reports: &[Report]) -> Result<(), String> {
    let failed = |error: DrawingAreaErrorKind<_>| error.to_string();
    let all = reports.iter().flat_map(|report| report.steps).flatten();
    let times: Vec<f64> = all.map(|figures| figures.us_per_conn.max(1e-3)).collect();
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    let most = times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (low, high) = match times.is_empty() {
        true => (1.0, 10.0),
        false => (10_f64.powf(least.log10().floor()), 10_f64.powf(most.log10().floor() + 1.0)),
    };
    // The names of the runs are above, where no bar can be.
    let head = 40 + 20 * reports.len() as u32;
    let area = SVGBackend::with_string(svg, (960, 400 + head)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let (head, body) = area.split_vertically(head);
    let title = ("us / conn, by step", (12, 12), ("sans-serif", 20));
    head.draw(&Text::new(title.0, title.1, title.2)).map_err(failed)?;
    for (number, report) in reports.iter().enumerate() {
        let at = 40 + 20 * number as i32;
        let color = Palette99::pick(number).filled();
        head.draw(&Rectangle::new([(84, at), (96, at + 12)], color)).map_err(failed)?;
        let name = Text::new(report.name(), (106, at - 1), ("sans-serif", 15));
        head.draw(&name).map_err(failed)?;
    }
    let mut chart = ChartBuilder::on(&body)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(72)
        .build_cartesian_2d(-0.5..7.5, (low..high).log_scale())
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels(8)
        .x_label_style(("sans-serif", 15))
        .x_label_formatter(&|at| name_at(*at))
        .y_desc("us")
        .y_label_style(("sans-serif", 15))
        .y_label_formatter(&|us| us.to_string())
        .draw()
        .map_err(failed)?;
    // A little free between two steps.
    let wide = 0.8 / reports.len().max(1) as f64;
    for (number, report) in reports.iter().enumerate() {
        let color = Palette99::pick(number).filled();
        let left = |step: usize| step as f64 - 0.4 + wide * number as f64;
        let taken = report.steps.iter().enumerate().filter_map(|(step, it)| Some((step, (*it)?)));
        let bars = taken.map(|(step, it)| {
            let (from, to) = (left(step), left(step) + wide * 0.94);
            Rectangle::new([(from, low), (to, it.us_per_conn.max(low))], color)
        });
        chart.draw_series(bars).map_err(failed)?;
    }
    area.present().map_err(failed)
}

fn name_at(at: f64) -> String {
    let whole = (at.round() - at).abs() < 1e-6 && (0.0..8.0).contains(&at.round());
    if whole { Step::ALL[at.round() as usize].1.into() } else { String::new() }
}
