//! Messages per second by size and mode, as an SVG file.

use std::path::Path;

use plotters::prelude::*;

use super::options::Mode;
use super::report::Row;
use super::svg;

/// Draws bars of each mode side by side, for each size.
pub(crate) fn draw(file: &Path, rows: &[Row]) -> Result<(), String> {
    let mut text = String::new();
    paint(&mut text, rows).map_err(|error| format!("{}: {error}", file.display()))?;
    svg::write(file, &text)
}

fn paint(svg: &mut String, rows: &[Row]) -> Result<(), String> {
    let failed = |error: DrawingAreaErrorKind<_>| error.to_string();
    let mut sizes: Vec<u32> = rows.iter().map(|row| row.size).collect();
    sizes.dedup();
    let most = rows.iter().map(|row| row.messages_per_sec).fold(1.0, f64::max);
    let area = SVGBackend::with_string(svg, (960, 540)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let (head, body) = area.split_vertically(110);
    let what = rows.first().map_or_else(String::new, |row| {
        let srq = if row.srq { ", one shared receive queue" } else { "" };
        format!(", {} streams on {}{srq}", row.streams, row.device)
    });
    let title = Text::new(format!("messages/s received{what}"), (12, 12), ("sans-serif", 20));
    head.draw(&title).map_err(failed)?;
    let mut chart = ChartBuilder::on(&body)
        .margin(12)
        .margin_right(36)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d(0.0..sizes.len().max(1) as f64, 0.0..most * 1.1)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .light_line_style(WHITE)
        .y_desc("messages/s")
        .y_label_style(("sans-serif", 13))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .draw()
        .map_err(failed)?;
    let wide = 0.8 / Mode::ALL.len() as f64;
    let is_there = |mode: &Mode| rows.iter().any(|row| row.mode == mode.name());
    for (number, mode) in Mode::ALL.into_iter().filter(is_there).enumerate() {
        // Without the palette's yellow, which is hard to see.
        let style = Palette99::pick(if number < 2 { number } else { number + 1 }).filled();
        let at = 42 + 20 * number as i32;
        head.draw(&Rectangle::new([(70, at), (98, at + 12)], style)).map_err(failed)?;
        let name = Text::new(mode.name(), (106, at - 1), ("sans-serif", 15));
        head.draw(&name).map_err(failed)?;
        for row in rows.iter().filter(|row| row.mode == mode.name()) {
            let group = sizes.iter().position(|size| *size == row.size).unwrap_or(0) as f64;
            let (left, rate) = (group + 0.1 + wide * number as f64, row.messages_per_sec);
            let bar = Rectangle::new([(left, 0.0), (left + wide * 0.94, rate)], style);
            let value = format!("{rate:.0}");
            let over =
                Text::new(value, (left + wide * 0.1, rate + most * 0.04), ("sans-serif", 13));
            chart.draw_series([bar]).map_err(failed)?;
            chart.draw_series([over]).map_err(failed)?;
        }
    }
    for (group, size) in sizes.iter().enumerate() {
        let (at, _) = chart.backend_coord(&(group as f64 + 0.5, 0.0));
        let name = Text::new(format!("{size} bytes"), (at - 30, 540 - 44), ("sans-serif", 14));
        area.draw(&name).map_err(failed)?;
    }
    area.present().map_err(failed)
}
