//! Draws text into cells. Styles use the palette of the terminal, so they fit light and dark ones.

use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Color, Modifier, Style};

use crate::curve::Strokes;
use crate::units::printable;

/// What a text means; its colours follow from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ink {
    Plain,
    /// Less important, such as units and exited processes.
    Faint,
    /// Headings and keys.
    Strong,
    /// The heading of a table.
    Heading,
    /// The heading of the column that the table is sorted by.
    SortedBy,
    /// The line under the cursor.
    Selected,
    Good,
    Warning,
    Alarm,
}

impl Ink {
    fn style(self) -> Style {
        let style = Style::new();
        match self {
            Self::Plain => style,
            Self::Faint => style.add_modifier(Modifier::DIM),
            Self::Strong => style.add_modifier(Modifier::BOLD),
            Self::Heading | Self::Selected => style.add_modifier(Modifier::REVERSED),
            Self::SortedBy => style.add_modifier(Modifier::REVERSED | Modifier::BOLD),
            Self::Good => style.fg(Color::Green),
            Self::Warning => style.fg(Color::Yellow),
            Self::Alarm => style.fg(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

/// A buffer to draw into. Everything outside of it is cut off.
pub(super) struct Canvas<'a> {
    buffer: &'a mut Buffer,
    pub(super) strokes: Strokes,
}

impl<'a> Canvas<'a> {
    pub(super) fn new(buffer: &'a mut Buffer, strokes: Strokes) -> Self {
        Self { buffer, strokes }
    }

    pub(super) fn width(&self) -> u16 {
        self.buffer.area.width
    }

    pub(super) fn height(&self) -> u16 {
        self.buffer.area.height
    }

    /// Writes at most `width` columns of a text, which may come from a process. Returns the column after it.
    pub(super) fn text(&mut self, x: u16, y: u16, width: u16, text: &str, ink: Ink) -> u16 {
        let width = width.min(self.width().saturating_sub(x));
        if y >= self.height() || width == 0 {
            return x;
        }
        let shown = printable(text);
        self.buffer.set_stringn(x, y, &shown, usize::from(width), ink.style()).0
    }

    /// Writes a text that ends at the column `x + width`.
    pub(super) fn right(&mut self, x: u16, y: u16, width: u16, text: &str, ink: Ink) {
        let length = u16::try_from(columns(text)).unwrap_or(u16::MAX);
        let shift = width.saturating_sub(length);
        self.text(x.saturating_add(shift), y, width - shift, text, ink);
    }

    /// Gives a whole line this look.
    pub(super) fn line(&mut self, y: u16, ink: Ink) {
        if y < self.height() {
            let area = ratatui_core::layout::Rect { y, height: 1, ..self.buffer.area };
            self.buffer.set_style(area, ink.style());
        }
    }
}

/// The columns that a text takes.
fn columns(text: &str) -> usize {
    ratatui_core::text::Span::raw(text).width()
}
