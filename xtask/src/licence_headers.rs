//! Every BPF source names its licence on the first line: Linux loads GPL-compatible programs only, and the sources are shared with
//! MIT and Apache code. Licences of dependencies are checked by `cargo deny`.

use anyhow::Result;

use crate::{Findings, files};

const BPF_SOURCES: &str = "crates/gpuprobe-capture/bpf/";

pub(crate) fn check() -> Result<Findings> {
    let tracked = files::tracked()?;
    let bpf: Vec<&String> = tracked.iter().filter(|name| is_bpf(name)).collect();
    let mut problems = Vec::new();
    for name in &bpf {
        if !names_its_licence(&files::read(name)?) {
            problems.push(format!("{name} does not begin with an SPDX-License-Identifier line"));
        }
    }
    Ok(Findings { looked_at: format!("{} BPF files", bpf.len()), problems })
}

fn is_bpf(name: &str) -> bool {
    name.starts_with(BPF_SOURCES) && (name.ends_with(".c") || name.ends_with(".h"))
}

fn names_its_licence(source: &str) -> bool {
    source.lines().next().is_some_and(|line| line.contains("SPDX-License-Identifier: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_licence_of_a_source_is_on_its_first_line() {
        assert!(names_its_licence("/* SPDX-License-Identifier: MIT */\nint x;\n"));
        assert!(!names_its_licence("/* about */\n/* SPDX-License-Identifier: MIT */\n"));
        assert!(!names_its_licence(""));
    }
}
