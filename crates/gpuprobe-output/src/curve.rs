//! A value over time as one line of text.

/// The characters that the line is drawn with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strokes {
    /// Unicode blocks of eight heights.
    Blocks,
    /// ASCII characters, for terminals without Unicode.
    Ascii,
}

impl Strokes {
    /// From the lowest level above zero to the highest.
    pub(crate) fn levels(self) -> [char; 8] {
        match self {
            Self::Blocks => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
            Self::Ascii => ['.', ':', '-', '=', '+', 'o', '#', '@'],
        }
    }
}

/// Values as a line of at most `width` characters. Zero is a space, and the largest value is the highest level. If
/// there are more values than characters, each character shows the last value of its group.
pub(crate) fn line(values: &[u64], width: usize, strokes: Strokes) -> String {
    let most = values.iter().copied().max().unwrap_or(0);
    let shown = values.len().min(width);
    let levels = strokes.levels();
    (1..=shown)
        .map(|i| {
            let value = values[i * values.len() / shown - 1];
            match value {
                0 => ' ',
                value => {
                    let steps = (levels.len() - 1) as u128;
                    let level = u128::from(value) * steps / u128::from(most);
                    levels[usize::try_from(level).unwrap_or(0)]
                }
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_value_is_the_highest_level_and_zero_is_a_space() {
        assert_eq!(line(&[0, 1, 50, 99, 100], 10, Strokes::Blocks), " ▁▄▇█");
        assert_eq!(line(&[0, 1, 50, 99, 100], 10, Strokes::Ascii), " .=#@");
        assert_eq!(line(&[7, 7], 10, Strokes::Ascii), "@@");
        assert_eq!(line(&[0, 0], 10, Strokes::Ascii), "  ");
        assert_eq!(line(&[], 10, Strokes::Ascii), "");
        assert_eq!(line(&[u64::MAX, u64::MAX / 2], 2, Strokes::Ascii), "@=");
    }

    #[test]
    fn the_last_character_shows_the_last_value() {
        for count in 1..200_u64 {
            let values: Vec<u64> = (1..=count).collect();
            for width in 1..20 {
                let line = line(&values, width, Strokes::Ascii);
                assert_eq!(line.len(), width.min(values.len()));
                assert!(line.ends_with('@'), "{count} {width}");
            }
        }
        assert_eq!(line(&[1, 2], 0, Strokes::Ascii), "");
    }
}
