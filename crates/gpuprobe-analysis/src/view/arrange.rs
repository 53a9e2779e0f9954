//! Filters, sorts and groups the processes of a view.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::rows::{ProcessRow, View};

/// A column of the table of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Shown if there are several hosts.
    Host,
    Pid,
    User,
    Gpu,
    Busy,
    Live,
    Growth,
    Launches,
    Copies,
    Calls,
    Errors,
    Pending,
    Cost,
    Container,
    Name,
}

impl Column {
    /// All columns, in their order on the screen.
    pub const ALL: [Self; 15] = [
        Self::Host,
        Self::Pid,
        Self::User,
        Self::Gpu,
        Self::Busy,
        Self::Live,
        Self::Growth,
        Self::Launches,
        Self::Copies,
        Self::Calls,
        Self::Errors,
        Self::Pending,
        Self::Cost,
        Self::Container,
        Self::Name,
    ];

    /// The heading.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "HOST",
            Self::Pid => "PID",
            Self::User => "USER",
            Self::Gpu => "GPU",
            Self::Busy => "GPU%",
            Self::Live => "LIVE",
            Self::Growth => "GROWTH/s",
            Self::Launches => "LAUNCH/s",
            Self::Copies => "COPY/s",
            Self::Calls => "CALLS%",
            Self::Errors => "ERRORS",
            Self::Pending => "PENDING",
            Self::Cost => "COST%",
            Self::Container => "CONTAINER",
            Self::Name => "COMMAND",
        }
    }

    /// The column with this heading, in any case and without its unit.
    pub fn from_name(name: &str) -> Option<Self> {
        let plain = |text: &str| text.trim_end_matches("/s").trim_end_matches('%').to_ascii_lowercase();
        let exact = Self::ALL.into_iter().find(|column| column.as_str().eq_ignore_ascii_case(name));
        exact.or_else(|| Self::ALL.into_iter().find(|column| plain(column.as_str()) == plain(name)))
    }

    /// Whether large values come first when a user chooses the column.
    fn is_descending(self) -> bool {
        !matches!(self, Self::Host | Self::Pid | Self::User | Self::Gpu | Self::Container | Self::Name)
    }

    fn compare(self, a: &ProcessRow, b: &ProcessRow) -> Ordering {
        let numbers = |a: Option<f64>, b: Option<f64>| {
            a.unwrap_or(f64::NEG_INFINITY).total_cmp(&b.unwrap_or(f64::NEG_INFINITY))
        };
        match self {
            Self::Host => a.id.host.cmp(&b.id.host),
            Self::Pid => a.id.pid.cmp(&b.id.pid),
            Self::User => a.uid.cmp(&b.uid),
            Self::Gpu => a.gpus.cmp(&b.gpus),
            Self::Busy => a.gpu_percent.cmp(&b.gpu_percent),
            Self::Live => a.live_bytes.cmp(&b.live_bytes),
            Self::Growth => numbers(a.growth_per_second, b.growth_per_second),
            Self::Launches => numbers(a.launches_per_second, b.launches_per_second),
            Self::Copies => numbers(a.copies_per_second, b.copies_per_second),
            Self::Calls => numbers(a.calls_share, b.calls_share),
            Self::Errors => a.errors.cmp(&b.errors),
            Self::Pending => {
                let age = |row: &ProcessRow| row.pending.as_ref().map(|pending| pending.age_ns);
                age(a).cmp(&age(b))
            }
            Self::Cost => numbers(a.cost_share, b.cost_share),
            Self::Container => a.container.cmp(&b.container),
            Self::Name => a.name.cmp(&b.name),
        }
    }
}

/// How processes are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub column: Column,
    pub is_descending: bool,
}

impl Default for Order {
    fn default() -> Self {
        Self::by(Column::Live)
    }
}

impl Order {
    /// The order in which a column is most useful.
    pub fn by(column: Column) -> Self {
        Self { column, is_descending: column.is_descending() }
    }

    #[must_use]
    pub fn reversed(self) -> Self {
        Self { is_descending: !self.is_descending, ..self }
    }
}

/// Which processes are shown, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arranged {
    pub order: Order,
    /// Shows processes whose name, pid, container, pending function or host contains this text, in any case.
    pub filter: String,
    /// Groups processes by container.
    pub is_tree: bool,
    /// Leaves out exited processes.
    pub hides_exited: bool,
}

/// A line of the table of processes.
#[derive(Clone, Debug, PartialEq)]
pub enum Line<'a> {
    /// The heading of a group: the container, if there is one, and its processes.
    Group {
        container: Option<&'a str>,
        processes: usize,
        live_bytes: u64,
    },
    Process(&'a ProcessRow),
}

impl Arranged {
    /// The processes to show, in their order.
    pub fn processes<'a>(&self, view: &'a View) -> Vec<&'a ProcessRow> {
        let process = |line| match line {
            Line::Process(row) => Some(row),
            Line::Group { .. } => None,
        };
        self.lines(view).into_iter().filter_map(process).collect()
    }

    /// The lines to show. Running processes come first.
    pub fn lines<'a>(&self, view: &'a View) -> Vec<Line<'a>> {
        let wanted = self.filter.to_lowercase();
        let mut rows: Vec<&ProcessRow> = view
            .processes
            .iter()
            .filter(|row| {
                !(self.hides_exited && row.has_exited) && fits(row, view.host_name(row.id.host), &wanted)
            })
            .collect();
        rows.sort_by(|a, b| self.compare(a, b));
        if !self.is_tree {
            return rows.into_iter().map(Line::Process).collect();
        }
        let mut groups: BTreeMap<Option<&str>, Vec<&ProcessRow>> = BTreeMap::new();
        rows.into_iter().for_each(|row| groups.entry(row.container.as_deref()).or_default().push(row));
        let live =
            |rows: &[&ProcessRow]| rows.iter().fold(0_u64, |sum, row| sum.saturating_add(row.live_bytes));
        let lines = groups.into_iter().flat_map(|(container, rows)| {
            let group = Line::Group { container, processes: rows.len(), live_bytes: live(&rows) };
            std::iter::once(group).chain(rows.into_iter().map(Line::Process))
        });
        lines.collect()
    }

    fn compare(&self, a: &ProcessRow, b: &ProcessRow) -> Ordering {
        let by_column = self.order.column.compare(a, b);
        let by_column = if self.order.is_descending { by_column.reverse() } else { by_column };
        a.has_exited.cmp(&b.has_exited).then(by_column).then_with(|| a.id.cmp(&b.id))
    }
}

fn fits(row: &ProcessRow, host: Option<&str>, wanted: &str) -> bool {
    let contains = |text: &str| text.to_lowercase().contains(wanted);
    wanted.is_empty()
        || contains(&row.name)
        || host.is_some_and(contains)
        || row.id.pid.to_string().contains(wanted)
        || row.container.as_deref().is_some_and(contains)
        || row.pending.as_ref().is_some_and(|pending| contains(&pending.function))
}
