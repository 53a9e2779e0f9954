// Curves as SVG.

import { element } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * A card with a curve. `values` are oldest first, and null where there is none; `top` is the value at the top of the
 * chart, `scale` says what it is.
 */
export function curveCard(title, values, top, scale, look) {
  const card = element("figure", undefined, "card");
  const caption = element("figcaption");
  caption.append(element("span", title, look), element("span", scale, "faint"));
  card.append(caption, chart(values, top, `${title}, ${scale}`));
  return card;
}

export function chart(values, top, label) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "chart");
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const curve = line(values, Math.max(top, 1e-9));
  for (const [look, d] of [["axis", "M0 29.5h100"], ["curve", curve]]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", look);
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}

/** The path of a curve. It begins anew after a gap; a single point is a short line. */
function line(values, top) {
  const step = values.length > 1 ? 100 / (values.length - 1) : 0;
  let path = "";
  let isDrawing = false;
  values.forEach((value, i) => {
    if (value === null || value === undefined) {
      isDrawing = false;
      return;
    }
    const y = (29 - (Math.min(value, top) / top) * 28).toFixed(2);
    path += `${isDrawing ? "L" : "M"}${(i * step).toFixed(2)} ${y}`;
    if (!isDrawing) path += "h0.5";
    isDrawing = true;
  });
  return path;
}
