// Numbers as text.

function scaled(value, units, step, digits) {
  let at = 0;
  while (value >= step && at + 1 < units.length) {
    value /= step;
    at += 1;
  }
  return `${at === 0 ? value.toFixed(0) : value.toFixed(digits)} ${units[at]}`;
}

export function bytes(n) {
  return scaled(n, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024, 1);
}

export function duration(ns) {
  return scaled(ns, ["ns", "us", "ms", "s"], 1000, 1);
}

export function count(n) {
  return n.toLocaleString("en");
}

export function orDash(value, show = String) {
  return value === null || value === undefined ? "-" : show(value);
}

export function rate(perSecond) {
  return orDash(perSecond, (n) => (n > 0 && n < 10 ? n.toFixed(1) : count(Math.round(n))));
}

export function percent(share) {
  return orDash(share, (n) => `${(n * 100).toFixed(n < 0.1 ? 1 : 0)}%`);
}

export function growth(perSecond) {
  if (!perSecond || Math.abs(perSecond) < 1) return "0";
  return `${perSecond < 0 ? "-" : "+"}${bytes(Math.abs(perSecond))}`;
}

/** Estimates are marked as everywhere else. */
export function estimated(text, isEstimated) {
  return isEstimated && text !== "-" ? `~${text}` : text;
}

export function causes(losses) {
  return losses.map(([cause, n]) => `${cause.replaceAll("_", " ")}: ${count(n)}`).join(", ");
}

/** How much time the curves of a history cover. */
export function spanOf(history) {
  const seconds = history.times.length > 1 ? history.times.at(-1) - history.times[0] : 0;
  return seconds < 120 ? `last ${Math.round(seconds)} s` : `last ${Math.round(seconds / 60)} min`;
}
