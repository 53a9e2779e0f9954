//! How the summary of a recording is shown: options of `run`, `record` and `report`.

use std::os::fd::AsFd;

use clap::Args;
use gpuprobe_capture::terminal_size;
use gpuprobe_output::SummaryOptions;

use super::value_parsers::rows;

#[derive(Debug, Default, Clone, Args)]
pub(crate) struct SummaryArgs {
    /// In the summary: names of CUDA kernels in full, with namespaces, template arguments and parameters
    #[arg(long)]
    pub(crate) full_names: bool,
    /// In the summary: also the calls made inside other calls, indented below them
    #[arg(long)]
    pub(crate) nested: bool,
    /// In the summary: show at most N functions, N CUDA kernels, and a third of N rows in other tables; 0 shows all
    /// [default: 6]
    #[arg(long, value_name = "N", value_parser = rows)]
    pub(crate) rows: Option<usize>,
    /// In the summary: the width in columns [default: that of the terminal, or 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..=10_000))]
    pub(crate) width: Option<u16>,
}

impl SummaryArgs {
    /// The options for a summary that is printed to this file.
    pub(crate) fn options(&self, printed_to: impl AsFd) -> SummaryOptions {
        let default = SummaryOptions::default();
        let width = self.width.or_else(|| terminal_size(printed_to).map(|(columns, _)| columns));
        SummaryOptions {
            width: width.map_or(default.width, usize::from),
            rows: self.rows.unwrap_or(default.rows),
            full_names: self.full_names,
            nested: self.nested,
            ..default
        }
    }
}
