/* Not needed to read the page: opens what a link leads to in older browsers, and sorts the long tables. */
function reveal() { const id = decodeURIComponent(location.hash.slice(1)), target = id && document.getElementById(id); if (!target) return; for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true; target.scrollIntoView({ block: "center", inline: target.tagName === "TH" ? "center" : "nearest" }); }
addEventListener("hashchange", reveal); reveal();
for (const head of document.querySelectorAll("table.long thead th")) {
  const button = document.createElement("button"); button.type = "button"; button.append(...head.childNodes); head.append(button);
  button.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0], down = head.ariaSort !== "descending", place = head.cellIndex;
    const value = row => { const text = row.cells[place].textContent.replace("\u2212", "-").replaceAll(",", ""), number = parseFloat(text); return isNaN(number) ? text : number; };
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.ariaSort = down ? "descending" : "ascending";
    const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * compare(value(a), value(b))));
  });
}
