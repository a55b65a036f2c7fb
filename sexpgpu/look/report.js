// The values under the pointer, read back from the curves themselves: the page works without this as well.
for (const field of document.querySelectorAll(".field")) {
  const { x0, x1, y0, y1, log } = field.dataset;
  const curves = [...field.querySelectorAll("path[data-label]")].map((path) => ({
    label: path.dataset.label,
    points: path.getAttribute("d").slice(1).split(" ").map(Number),
  }));
  const value = (place) => {
    const up = 1 - place / 1000;
    return log === "1" ? y0 * Math.pow(y1 / y0, up) : Number(y0) + (y1 - y0) * up;
  };
  const nearest = (points, at) => {
    let low = 0, high = points.length / 2 - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[2 * middle] <= at) low = middle; else high = middle;
    }
    return Math.abs(points[2 * low] - at) <= Math.abs(points[2 * high] - at) ? low : high;
  };
  const cursor = Object.assign(document.createElement("div"), { className: "cursor", hidden: true });
  const reading = Object.assign(document.createElement("div"), { className: "reading", hidden: true });
  field.append(cursor, reading);
  field.addEventListener("pointerleave", () => { cursor.hidden = reading.hidden = true; });
  field.addEventListener("pointermove", (event) => {
    const box = field.getBoundingClientRect();
    const at = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const rows = [`step ${Math.round(Number(x0) + (x1 - x0) * at).toLocaleString("en")}`];
    for (const { label, points } of curves) {
      const shown = value(points[2 * nearest(points, at * 1000) + 1]);
      rows.push(`${label}: ${shown.toPrecision(4)}`);
    }
    reading.replaceChildren(...rows.map((row) => Object.assign(document.createElement("div"), { textContent: row })));
    cursor.hidden = reading.hidden = false;
    cursor.style.left = `${at * 100}%`;
    reading.style.left = at < 0.5 ? `calc(${at * 100}% + .6rem)` : "auto";
    reading.style.right = at < 0.5 ? "auto" : `calc(${(1 - at) * 100}% + .6rem)`;
  });
}
