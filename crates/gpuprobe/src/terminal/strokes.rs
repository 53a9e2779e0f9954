//! Which characters the terminal can show.

use gpuprobe_output::Strokes;

/// Block characters need a UTF-8 locale.
pub(crate) fn of_locale() -> Strokes {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default().to_lowercase();
    if locale.contains("utf-8") || locale.contains("utf8") { Strokes::Blocks } else { Strokes::Ascii }
}
