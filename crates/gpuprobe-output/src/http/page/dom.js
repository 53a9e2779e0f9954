// Makes and updates elements. Texts of processes are only ever set as text, so none of them becomes markup.

/** An element with a text, and a class. */
export function element(tag, text, look) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (look) made.className = look;
  return made;
}

export function textNode(text) {
  return document.createTextNode(text);
}

export function byId(id) {
  return document.getElementById(id);
}

/**
 * Gives an element these children. Elements that are there already are changed instead of replaced, so that the focus,
 * the selection and the scroll positions stay. Those with a `data-item` move to their new places, so that a click on one
 * cannot reach another one that has just taken its place.
 */
export function show(parent, children) {
  const active = document.activeElement;
  const focused = parent.contains(active) ? active.dataset.key : undefined;
  update(parent, children);
  // an element that moves loses the focus
  if (focused && document.activeElement?.dataset?.key !== focused) {
    for (const candidate of parent.querySelectorAll("[data-key]")) {
      if (candidate.dataset.key === focused) candidate.focus({ preventScroll: true });
    }
  }
}

function update(parent, children) {
  const items = new Map([...parent.children].map((child) => [child.dataset.item, child]));
  children.forEach((wanted, at) => {
    const item = wanted.dataset?.item;
    let there = parent.childNodes[at];
    if (item !== undefined && there?.dataset?.item !== item) {
      const known = items.get(item);
      parent.insertBefore(known ?? wanted, there ?? null);
      if (!known) return;
      there = known;
    }
    if (!there) parent.append(wanted);
    else if (there.nodeName !== wanted.nodeName) there.replaceWith(wanted);
    else if (wanted.nodeType === Node.TEXT_NODE) {
      if (there.data !== wanted.data) there.data = wanted.data;
    } else {
      copyAttributes(there, wanted);
      update(there, [...wanted.childNodes]);
    }
  });
  while (parent.childNodes.length > children.length) parent.lastChild.remove();
}

function copyAttributes(there, wanted) {
  for (const name of there.getAttributeNames()) {
    if (!wanted.hasAttribute(name)) there.removeAttribute(name);
  }
  for (const name of wanted.getAttributeNames()) {
    const value = wanted.getAttribute(name);
    if (there.getAttribute(name) !== value) there.setAttribute(name, value);
  }
}
