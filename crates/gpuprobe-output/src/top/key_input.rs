//! What keys and clicks do.

use gpuprobe_analysis::view::{Column, Order, View};

use super::{Screen, TopScreens};

/// A key or a click.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    F1,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// The keys up to [`Key::PasteEnd`] are a text that was pasted.
    PasteStart,
    PasteEnd,
    /// The mouse at a column and a row of the screen.
    Click(u16, u16),
    ScrollUp,
    ScrollDown,
}

/// What the program does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    Redraw,
    /// Give the terminal back until the shell continues the program.
    Suspend,
    Quit,
}

/// The longest filter.
const LONGEST_FILTER: usize = 100;
/// Lines of a turn of the mouse wheel.
const WHEEL: isize = 3;

impl TopScreens {
    /// Handles a key.
    pub fn press(&mut self, key: Key, view: &View) -> Reaction {
        match (key, self.screen) {
            (Key::Interrupt, _) => return Reaction::Quit,
            (Key::Suspend, _) => return Reaction::Suspend,
            (Key::PasteStart, _) => self.is_pasting = true,
            // Esc, too, in case the end got lost
            (Key::PasteEnd | Key::Escape, _) if self.is_pasting => self.is_pasting = false,
            (Key::PasteEnd, _) => {}
            // a pasted text is no command: it has a meaning as part of a filter only
            _ if self.is_pasting => {
                if let (Key::Char(_), true) = (key, self.is_typing) {
                    self.type_filter(key);
                }
            }
            _ if self.is_typing => self.type_filter(key),
            (Key::Char('q'), Screen::Overview | Screen::Details(_)) => return Reaction::Quit,
            (_, Screen::Help) => self.screen = self.before_help,
            (Key::Char('?' | 'h') | Key::F1, _) => {
                self.before_help = self.screen;
                self.screen = Screen::Help;
            }
            (Key::Char('p' | ' '), _) => self.is_paused = !self.is_paused,
            (_, Screen::Overview) => self.press_in_overview(key, view),
            (_, Screen::Details(_)) => self.press_in_details(key),
        }
        Reaction::Redraw
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Char(c) if self.arranged.filter.chars().count() < LONGEST_FILTER => {
                self.arranged.filter.push(c)
            }
            Key::Backspace => {
                self.arranged.filter.pop();
            }
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.arranged.filter.clear();
            }
            _ => {}
        }
    }

    fn press_in_overview(&mut self, key: Key, view: &View) {
        let page = isize::try_from(self.drawn.rows).unwrap_or(1).max(1);
        match key {
            Key::Enter => self.open(),
            Key::Escape | Key::Backspace => self.arranged.filter.clear(),
            Key::Char('/') => self.is_typing = true,
            Key::Char('<' | ',') => self.sort_by_next(-1),
            Key::Char('>' | '.') => self.sort_by_next(1),
            Key::Char('r') => self.arranged.order = self.arranged.order.reversed(),
            Key::Char('t') => self.arranged.is_tree = !self.arranged.is_tree,
            Key::Char('e') => self.arranged.hides_exited = !self.arranged.hides_exited,
            Key::Up | Key::Char('k') => self.move_cursor(view, -1),
            Key::Down | Key::Char('j') => self.move_cursor(view, 1),
            Key::PageUp => self.move_cursor(view, -page),
            Key::PageDown => self.move_cursor(view, page),
            Key::Home => self.move_cursor(view, isize::MIN),
            Key::End => self.move_cursor(view, isize::MAX),
            Key::ScrollUp => self.move_cursor(view, -WHEEL),
            Key::ScrollDown => self.move_cursor(view, WHEEL),
            Key::Click(x, y) => self.click(view, x, y),
            _ => {}
        }
    }

    fn press_in_details(&mut self, key: Key) {
        let page = usize::from(self.drawn.rows).max(1);
        match key {
            Key::Escape | Key::Backspace => {
                self.screen = Screen::Overview;
                self.scrolled = 0;
            }
            Key::Up | Key::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            Key::ScrollUp => self.scrolled = self.scrolled.saturating_sub(WHEEL.unsigned_abs()),
            Key::PageUp => self.scrolled = self.scrolled.saturating_sub(page),
            Key::Home => self.scrolled = 0,
            Key::Down | Key::Char('j') => self.scrolled = self.scrolled.saturating_add(1),
            Key::ScrollDown => self.scrolled = self.scrolled.saturating_add(WHEEL.unsigned_abs()),
            Key::PageDown => self.scrolled = self.scrolled.saturating_add(page),
            // drawing stops at the last line
            Key::End => self.scrolled = usize::MAX,
            _ => {}
        }
    }

    fn open(&mut self) {
        if let Some(id) = self.selected {
            self.screen = Screen::Details(id);
            self.has_moved = true;
            self.scrolled = 0;
        }
    }

    /// Sorts by the column on the screen before or after the present one.
    fn sort_by_next(&mut self, step: isize) {
        let mut shown: Vec<Column> = self.drawn.columns.iter().map(|(_, _, column)| *column).collect();
        if shown.is_empty() {
            shown = Column::ALL.to_vec();
        }
        let at = shown.iter().position(|column| *column == self.arranged.order.column);
        let next = match at {
            Some(at) => at.saturating_add_signed(step).min(shown.len() - 1),
            None => 0,
        };
        self.arranged.order = Order::by(shown[next]);
    }

    fn move_cursor(&mut self, view: &View, step: isize) {
        let listed = self.listed(view);
        let at = listed.iter().position(|id| Some(*id) == self.selected).unwrap_or(0);
        let next = at.saturating_add_signed(step).min(listed.len().saturating_sub(1));
        self.selected = listed.get(next).copied();
        self.has_moved = true;
    }

    /// A click on a heading sorts, one on a process selects it, and a second one opens it.
    fn click(&mut self, view: &View, x: u16, y: u16) {
        let heading = self.drawn.heading_row;
        if y == heading {
            let is_at = |(start, width, _): &&(u16, u16, Column)| x >= *start && x < start + width;
            if let Some((_, _, column)) = self.drawn.columns.iter().find(is_at) {
                let is_present = self.arranged.order.column == *column;
                self.arranged.order =
                    if is_present { self.arranged.order.reversed() } else { Order::by(*column) };
            }
            return;
        }
        let Some(row) = y.checked_sub(heading + 1).filter(|row| *row < self.drawn.rows) else { return };
        let lines = self.arranged.lines(view);
        let line = lines.get(self.scrolled + usize::from(row));
        if let Some(gpuprobe_analysis::view::Line::Process(process)) = line {
            if self.selected == Some(process.id) {
                self.open();
            } else {
                self.selected = Some(process.id);
                self.has_moved = true;
            }
        }
    }
}
