//! The screens of `gpuprobe top`: an overview of GPUs and processes, one process in detail, and the keys. Nothing here
//! reads a terminal: keys come in, and a screen is drawn into a buffer.

mod canvas;
mod columns;
mod details_screen;
mod figures;
mod frame_text;
mod help_screen;
mod key_input;
mod key_parser;
mod overview;
mod readings;

use std::collections::HashMap;

use gpuprobe_analysis::view::{Arranged, Details, ProcessId, View};
use ratatui_core::buffer::Buffer;

pub use self::frame_text::frame_text;
pub use self::key_input::{Key, Reaction};
pub use self::key_parser::take_keys;
pub use self::readings::{reading_of, reading_of_answer};
use crate::curve::Strokes;

/// What is on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Screen {
    #[default]
    Overview,
    Details(ProcessId),
    Help,
}

/// What one screen shows, apart from what the user has chosen.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    pub view: &'a View,
    /// Of the process that is open.
    pub details: Option<&'a Details>,
    /// Names of the users of this host.
    pub users: &'a HashMap<u32, String>,
    /// The time of day, as it is to be shown.
    pub time: &'a str,
    /// Why there are no new figures.
    pub problem: Option<&'a str>,
    /// Whether a user can press keys: they are explained in the last line.
    pub has_keys: bool,
}

/// The state of the screens: what the user has chosen.
#[derive(Clone, Debug)]
pub struct TopScreens {
    screen: Screen,
    /// The screen before the help.
    before_help: Screen,
    /// The terminal sends a text that was pasted.
    is_pasting: bool,
    arranged: Arranged,
    /// The process under the cursor.
    selected: Option<ProcessId>,
    /// The user has moved the cursor. Until then it is on the first line.
    has_moved: bool,
    /// The first line of the list that is shown.
    scrolled: usize,
    /// The user types a filter.
    is_typing: bool,
    is_paused: bool,
    strokes: Strokes,
    /// Where the table of processes was drawn: its first row and its columns, for the mouse.
    drawn: DrawnTable,
}

#[derive(Clone, Debug, Default)]
struct DrawnTable {
    heading_row: u16,
    rows: u16,
    columns: Vec<(u16, u16, gpuprobe_analysis::view::Column)>,
}

impl TopScreens {
    pub fn new(arranged: Arranged, strokes: Strokes) -> Self {
        Self {
            screen: Screen::default(),
            before_help: Screen::default(),
            is_pasting: false,
            arranged,
            selected: None,
            has_moved: false,
            scrolled: 0,
            is_typing: false,
            is_paused: false,
            strokes,
            drawn: DrawnTable::default(),
        }
    }

    /// The process that is open.
    pub fn open_process(&self) -> Option<ProcessId> {
        match self.screen {
            Screen::Details(id) => Some(id),
            _ => None,
        }
    }

    /// Whether new figures are to be left out until the user continues.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Which processes are shown, and how.
    pub fn arranged(&self) -> &Arranged {
        &self.arranged
    }

    /// The rows that a frame needs to show everything.
    pub fn full_height(&self, view: &View) -> u16 {
        // GPUs have at most two lines each, and at most a third of the screen
        let (gpus, lines) = (view.gpus.len() * 6, self.arranged.lines(view).len());
        u16::try_from(gpus + lines + 5).unwrap_or(u16::MAX)
    }

    /// Draws the screen into a buffer of the terminal's size.
    pub fn draw(&mut self, shown: &Shown<'_>, buffer: &mut Buffer) {
        let mut canvas = canvas::Canvas::new(buffer, self.strokes);
        match self.screen {
            Screen::Overview => self.draw_overview(shown, &mut canvas),
            Screen::Details(id) => self.draw_details(id, shown, &mut canvas),
            Screen::Help => help_screen::draw(&mut canvas),
        }
    }

    /// The processes of the table in their order.
    fn listed(&self, view: &View) -> Vec<ProcessId> {
        self.arranged.processes(view).into_iter().map(|row| row.id).collect()
    }
}
