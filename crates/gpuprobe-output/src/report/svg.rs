//! Parts of the page: escaped text, and charts drawn as SVG.

use gpuprobe_analysis::SiteCurve;
use gpuprobe_analysis::distribution::Bucket;
use gpuprobe_analysis::flame::FlameNode;
use gpuprobe_analysis::trend::Trend;

use super::brief::brief;
use crate::units::{bytes, duration, printable};

/// Appends formatted text. Writing into a `String` cannot fail.
macro_rules! put {
    ($out:expr, $($word:tt)*) => {{
        use std::fmt::Write as _;
        let written = write!($out, $($word)*);
        debug_assert!(written.is_ok());
    }};
}
pub(super) use put;

/// Escapes text for HTML. Names come from programs and may contain anything.
pub(super) fn escape(text: &str) -> String {
    let text = printable(text);
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            _ => safe.push(c),
        }
    }
    safe
}

/// A bar as long as the share of `value` in `most`.
pub(super) fn bar(value: u64, most: u64, class: &str) -> String {
    let share = 100.0 * value as f64 / most.max(1) as f64;
    format!(
        "<svg class=\"bar\" role=\"img\"><rect class=\"{class}\" width=\"{share:.2}%\" height=\"100%\"/></svg>"
    )
}

/// A chart of live memory over time: all of it, and in front the largest call sites, stacked.
pub(super) fn curve(out: &mut String, trend: &Trend, sites: &[&SiteCurve], (from_ns, to_ns): (u64, u64)) {
    const HEIGHT: f64 = 120.0;
    const WIDTH: f64 = 1000.0;
    const COLUMNS: usize = 250;
    let span = to_ns.saturating_sub(from_ns).max(1) as f64;
    let mut stacked = vec![0; COLUMNS];
    let mut areas = Vec::new();
    for site in sites {
        let below = stacked.clone();
        for (sum, bytes) in stacked.iter_mut().zip(site.columns((from_ns, to_ns), COLUMNS)) {
            *sum = bytes.saturating_add(*sum);
        }
        areas.push((below, stacked.clone()));
    }
    let most = stacked.iter().copied().fold(trend.peak, u64::max).max(1);
    let y = |value: u64| HEIGHT - HEIGHT * value as f64 / most as f64;
    let (mut points, mut last) = (String::new(), 0);
    for (times, bin) in trend.bins.iter() {
        let Some(values) = bin else { continue };
        let x = WIDTH * (times.start.saturating_sub(from_ns) as f64 / span).min(1.0);
        for value in [last, values.most, values.least, values.last] {
            put!(points, "{x:.1},{:.1} ", y(value));
        }
        last = values.last;
    }
    let end = y(trend.last);
    let [all, half] = [most, most / 2].map(bytes);
    put!(
        out,
        "<div class=\"chart\"><div class=\"y\"><span>{all}</span><span>{half}</span><span>0</span></div>\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" height=\"140\" preserveAspectRatio=\"none\" role=\"img\">\
         <line class=\"grid\" x1=\"0\" y1=\"60\" x2=\"{WIDTH}\" y2=\"60\"/>\
         <line class=\"grid\" x1=\"0\" y1=\"{HEIGHT}\" x2=\"{WIDTH}\" y2=\"{HEIGHT}\"/>\
         <polygon class=\"area\" points=\"0,{HEIGHT} {points}{WIDTH},{end:.1} {WIDTH},{HEIGHT}\"/>"
    );
    for (at, (below, above)) in areas.iter().enumerate() {
        put!(out, "<polygon class=\"site{at}\" points=\"");
        let edge = |values: &[u64]| values.iter().copied().enumerate().collect::<Vec<_>>();
        let step = WIDTH / COLUMNS as f64;
        for (column, value) in edge(above).into_iter().chain(edge(below).into_iter().rev()) {
            put!(out, "{:.1},{:.1} ", step * (column + 1) as f64, y(value));
        }
        put!(out, "\"><title>{}</title></polygon>", escape(&sites[at].call_site));
    }
    put!(out, "</svg><div class=\"axis\"></div></div><p>the peak is {}</p>", bytes(trend.peak));
    site_legend(out, sites);
}

/// The colours of the call sites in a chart.
fn site_legend(out: &mut String, sites: &[&SiteCurve]) {
    if sites.is_empty() {
        return;
    }
    out.push_str("<ul class=\"sites\">");
    for (at, site) in sites.iter().enumerate() {
        put!(
            out,
            "<li title=\"{}\"><i class=\"key site{at}\"></i>{}: {}</li>",
            escape(&site.call_site),
            bytes(site.peak),
            escape(&brief(&site.call_site))
        );
    }
    out.push_str("</ul><p>the largest call sites by their own peaks; the area behind them is all memory of the process</p>");
}

/// The distribution of durations: a bar for each bucket, on a logarithmic time axis.
pub(super) fn distribution(buckets: &[Bucket], class: &str) -> String {
    let (Some(first), Some(last)) = (buckets.first(), buckets.last()) else { return String::new() };
    let log = |ns: u64| (ns.max(1) as f64).log2();
    let (from, to) = (log(first.from), log(last.to.max(first.from + 1)));
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(1) as f64;
    let mut out = String::from("<svg class=\"bar\" height=\"24\" style=\"height:24px\" role=\"img\">");
    for bucket in buckets {
        let x = 100.0 * (log(bucket.from) - from) / (to - from).max(1e-9);
        let width = 100.0 * (log(bucket.to) - log(bucket.from)) / (to - from).max(1e-9);
        let height = 100.0 * (bucket.count as f64).ln_1p() / most.ln_1p();
        put!(
            out,
            "<rect class=\"{class}\" x=\"{x:.2}%\" y=\"{:.1}%\" width=\"{width:.2}%\" height=\"{height:.1}%\"><title>{} to {}: {}</title></rect>",
            100.0 - height,
            duration(bucket.from),
            duration(bucket.to),
            bucket.count
        );
    }
    out.push_str("</svg>");
    out
}

/// A flame graph: a callee is drawn below its caller, as wide as its share.
pub(super) fn flame(out: &mut String, root: &FlameNode, unit: fn(u64) -> String) {
    const ROW: usize = 18;
    let mut nodes = String::new();
    let deepest =
        flame_nodes(&mut nodes, root, &Position { x: 0.0, depth: 0, total: root.total.max(1) }, unit);
    put!(
        out,
        "<div class=\"flame\"><svg height=\"{}\" role=\"img\">{nodes}</svg></div>",
        ROW * (deepest + 1)
    );
}

struct Position {
    x: f64,
    depth: usize,
    total: u64,
}

/// Appends the nodes below a node, widest first. Returns the depth of the deepest.
fn flame_nodes(out: &mut String, node: &FlameNode, at: &Position, unit: fn(u64) -> String) -> usize {
    /// Narrower nodes would be invisible.
    const LEAST: f64 = 0.0005;
    let mut children: Vec<_> = node.children.iter().collect();
    children.sort_by_key(|(_, child)| std::cmp::Reverse(child.total));
    let (mut x, mut deepest) = (at.x, at.depth);
    for (name, child) in children {
        let width = child.total as f64 / at.total as f64;
        if width < LEAST {
            break;
        }
        let name = escape(name);
        // the colour depends only on the name
        let hue =
            name.bytes().fold(17_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into())) % 60;
        put!(
            out,
            "<svg x=\"{:.4}%\" y=\"{}\" width=\"{:.4}%\" height=\"17\" data-x=\"{x:.6}\" data-w=\"{width:.6}\" data-name=\"{name}\">\
             <title>{name}: {} ({:.1} %)</title><rect width=\"100%\" height=\"100%\" fill=\"hsl({hue} 75% 65%)\"/>\
             <text x=\"3\" y=\"12\">{name}</text></svg>",
            100.0 * x,
            18 * at.depth,
            100.0 * width,
            unit(child.total),
            100.0 * width
        );
        let below = Position { x, depth: at.depth + 1, total: at.total };
        deepest = deepest.max(flame_nodes(out, child, &below, unit));
        x += width;
    }
    deepest
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::flame::Flame;

    use super::*;

    #[test]
    fn names_are_escaped() {
        assert_eq!(escape("<b a=\"1\" b='2'>&"), "&lt;b a=&quot;1&quot; b=&#39;2&#39;&gt;&amp;");
        let mut flame_of = Flame::default();
        flame_of.add(["</svg><script>alert(1)</script>"], 5);
        let mut out = String::new();
        flame(&mut out, flame_of.root(), bytes);
        assert!(!out.contains("<script") && out.contains("&lt;script&gt;"), "{out}");
    }

    #[test]
    fn nodes_are_as_wide_as_their_share_and_below_their_callers() {
        let mut tree = Flame::default();
        tree.add(["a", "b"], 25);
        tree.add(["a"], 50);
        tree.add(["c"], 25);
        let mut out = String::new();
        flame(&mut out, tree.root(), bytes);
        assert!(out.contains("y=\"0\" width=\"75.0000%\" height=\"17\" data-x=\"0.000000\""), "{out}");
        assert!(out.contains("y=\"18\" width=\"25.0000%\" height=\"17\" data-x=\"0.000000\""), "{out}");
        assert!(out.contains("data-x=\"0.750000\" data-w=\"0.250000\" data-name=\"c\""), "{out}");
    }

    #[test]
    fn empty_and_very_large_values_are_drawn() {
        let mut out = String::new();
        curve(&mut out, &Trend::default(), &[], (0, 0));
        let mut trend = Trend::default();
        trend.set(u64::MAX, u64::MAX);
        curve(&mut out, &trend, &[], (0, u64::MAX));
        let buckets =
            [Bucket { from: 0, to: 1, count: u64::MAX }, Bucket { from: 5, to: u64::MAX, count: 1 }];
        out += &distribution(&buckets, "launch");
        out += &distribution(&[], "launch");
        assert!(!out.contains("NaN") && !out.contains("inf"), "{out}");
    }

    #[test]
    fn a_curve_begins_at_the_start_of_the_recording() {
        let minute = 60_000_000_000;
        let (mut trend, mut out) = (Trend::default(), String::new());
        trend.set(minute, 50);
        trend.set(minute + 500, 100);
        curve(&mut out, &trend, &[], (minute, minute + 1000));
        assert!(out.contains("0.0,60.0 500.0,60.0 500.0,0.0"), "{out}");
        assert!(out.contains("<span>100 B</span><span>50 B</span><span>0</span>"), "{out}");
        assert!(out.contains("<div class=\"axis\"></div></div><p>the peak is 100 B</p>"), "{out}");
    }
}
