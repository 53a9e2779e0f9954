//! Names for a glob that matches no function.

use gpuprobe_event::catalogue;

/// The names that differ least from a glob, for an error message.
pub(super) fn advice(glob: &str) -> String {
    const MOST: usize = 3;
    let word = letters(glob);
    let mut near: Vec<_> = catalogue()
        .functions()
        .iter()
        .map(|f| {
            // compare only the length of the glob: the rest matches a star
            let name = letters(f.base);
            (distance(&word, &name[..name.len().min(word.len())]), f.base)
        })
        .filter(|(distance, _)| word.len() > 2 && *distance <= 3)
        .collect();
    near.sort_by_key(|(distance, name)| (*distance, name.len(), *name));
    near.dedup_by_key(|(_, name)| *name);
    let near: Vec<_> = near.into_iter().take(MOST).map(|(_, name)| name).collect();
    match near.as_slice() {
        [] if glob.contains(',') => "-e takes one name or glob, and can be repeated".to_owned(),
        [] => "`gpuprobe list` shows their names".to_owned(),
        near => format!("did you mean {}? `gpuprobe list` shows all names", near.join(", ")),
    }
}

fn letters(glob: &str) -> Vec<u8> {
    glob.bytes().filter(u8::is_ascii_alphanumeric).map(|b| b.to_ascii_lowercase()).collect()
}

/// The edit distance of two words.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let change = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}
