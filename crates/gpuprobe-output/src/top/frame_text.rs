//! A screen as plain text, for `top -b`.

use ratatui_core::buffer::Buffer;

/// The lines of a screen without styles, without spaces at their ends and without empty lines at the end.
pub fn frame_text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in 0..buffer.area.height {
        let mut line = String::new();
        let mut covered = 0;
        for x in 0..buffer.area.width {
            let Some(cell) = buffer.cell((x, y)) else { continue };
            // a wide character covers the cells after it
            if covered > 0 {
                covered -= 1;
                continue;
            }
            line.push_str(cell.symbol());
            covered = ratatui_core::text::Span::raw(cell.symbol()).width().saturating_sub(1);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}
