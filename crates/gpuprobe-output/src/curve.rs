//! A curve in one line of text.

/// How the line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strokes {
    /// Blocks of eight heights.
    Blocks,
    /// Characters that every terminal has.
    Ascii,
}

impl Strokes {
    /// From the lowest that is not nothing to the highest.
    fn levels(self) -> [char; 8] {
        match self {
            Self::Blocks => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
            Self::Ascii => ['.', ':', '-', '=', '+', 'o', '#', '@'],
        }
    }
}

/// Values as a line of at most `width` characters, from nothing (a space) to the largest of them. Where there are more
/// values than characters, each stands for the last of a few.
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
    fn the_largest_is_full_and_nothing_is_empty() {
        assert_eq!(line(&[0, 1, 50, 99, 100], 10, Strokes::Blocks), " ▁▄▇█");
        assert_eq!(line(&[0, 1, 50, 99, 100], 10, Strokes::Ascii), " .=#@");
        assert_eq!(line(&[7, 7], 10, Strokes::Ascii), "@@");
        assert_eq!(line(&[0, 0], 10, Strokes::Ascii), "  ");
        assert_eq!(line(&[], 10, Strokes::Ascii), "");
        assert_eq!(line(&[u64::MAX, u64::MAX / 2], 2, Strokes::Ascii), "@=");
    }

    #[test]
    fn many_values_fit_and_the_last_is_the_last() {
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
