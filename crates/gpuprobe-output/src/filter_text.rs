//! What a filter removed, as text.

use gpuprobe_analysis::Filtered;

use crate::units::{count, printable};

/// One line about a filter, without a line feed.
pub fn filter_line(filtered: &Filtered) -> String {
    let Filtered { filter, events, removed, .. } = filtered;
    let filter = printable(filter);
    let events = count(*events, "event", "events");
    format!("filter: {filter}; {removed} of {events} removed, the figures are those of the rest")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_the_filter_and_the_number_of_removed_events() {
        let filtered =
            Filtered { filter: "-e a\x1b".to_owned(), events: 10, removed: 3, ..Filtered::default() };
        let expected = "filter: -e a\\u{1b}; 3 of 10 events removed, the figures are those of the rest";
        assert_eq!(filter_line(&filtered), expected);
    }
}
