//! The sections about launches and waits by call site, for recordings with stacks of calls.

use gpuprobe_analysis::{CallsBySite, SiteCalls};

use super::brief::brief;
use super::sections::{MOST_ROWS, end_table, table};
use super::svg::{bar, escape, put};
use crate::units::duration;

pub(super) fn calls_by_site(out: &mut String, calls: &CallsBySite) {
    if !calls.launches.is_empty() {
        out.push_str("<h2>Launches, by call site</h2>\n");
        table(out, "launch-sites", &["call site", "launches", "", "process"]);
        let most = calls.launches.first().map_or(0, |site| site.launches);
        for site in calls.launches.iter().take(MOST_ROWS) {
            row(out, site, &[site.launches.to_string(), bar(site.launches, most, "launch")]);
        }
        end_table(out, calls.launches.len());
    }
    if !calls.waits.is_empty() {
        out.push_str("<h2>Waiting, by call site</h2>\n");
        table(out, "wait-sites", &["call site", "time", "", "calls", "process"]);
        let most = calls.waits.first().map_or(0, |site| site.waiting_ns);
        for site in calls.waits.iter().take(MOST_ROWS) {
            let (time, drawn) = (duration(site.waiting_ns), bar(site.waiting_ns, most, "sync"));
            row(out, site, &[time, drawn, site.waits.to_string()]);
        }
        end_table(out, calls.waits.len());
    }
}

fn row(out: &mut String, site: &SiteCalls, cells: &[String]) {
    let (name, short) = (escape(&site.call_site), escape(&brief(&site.call_site)));
    put!(out, "<tr data-name=\"{name}\"><td class=\"name\" title=\"{name}\"><div>{short}</div></td>");
    cells.iter().for_each(|cell| put!(out, "<td>{cell}</td>"));
    put!(out, "<td>{} {}</td></tr>\n", site.pid, escape(&site.process));
}
