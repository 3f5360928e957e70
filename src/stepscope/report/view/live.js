"use strict";
/* A running run: its facts, read again every two seconds until it has ended. */
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent), place = data.key.split("/").map(encodeURIComponent).join("/");
const node = (tag, text) => { const made = document.createElement(tag); made.textContent = text; return made; };
$("whole").href = "/run/" + place;
function show(now) {
  $("facts").replaceChildren(...now.rows.map(([name, value]) => { const row = document.createElement("div"); row.append(node("dt", name), node("dd", value)); return row; }));
  $("warnings").replaceChildren(...now.warnings.map((said) => node("li", said)));
  const lede = now.ended ? "This run has ended (" + now.status + ")." : "This run goes on; the numbers follow it.";
  if ($("lede").textContent !== lede) $("lede").textContent = lede; // what is said again is read aloud again
  if (now.ended) $("whole").textContent = "The page of this run";
}
async function follow() {
  try {
    if (!document.hidden) {
      const answer = await fetch("/now/" + place);
      if (answer.ok) { const now = await answer.json(); show(now); if (now.ended) return; }
      if (answer.status === 403) $("lede").textContent = "This page is not let in any more: open the address that stepscope view printed.";
    }
  } catch { $("lede").textContent = "The server does not answer."; }
  setTimeout(follow, 2000);
}
show(data);
if (!data.ended) setTimeout(follow, 2000);
