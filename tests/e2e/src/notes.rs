//! Reads the lines that `--verbose` prints.

use std::path::Path;
use std::time::Duration;

/// How many functions of a library were attached, and how long that took.
pub fn attached(stderr: &str, library: &Path) -> (usize, Duration) {
    let head = format!("{}: ", library.display());
    let reported = stderr.lines().find_map(|line| {
        let (count, took) = line.split_once(&head)?.1.split_once(" functions in ")?;
        Some((count.parse().ok()?, duration(took)?))
    });
    reported.unwrap_or_else(|| panic!("nothing is reported about {}: {stderr}", library.display()))
}

fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_once(' ')?;
    let seconds = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    Some(Duration::from_secs_f64(number.parse::<f64>().ok()? * seconds))
}
